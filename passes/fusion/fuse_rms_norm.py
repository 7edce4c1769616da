"""RMSNormalization in its written-out forms becomes ONNX's operator."""

from __future__ import annotations

from typing import ClassVar

import onnx_ir as ir

from infc.passes.base import Miss, NodePass
from infc.passes.fusion.fuse_layer_norm import build, deviation, divided
from infc.passes.graph import producer


class FuseRmsNorm(NodePass):
    """``x / sqrt(mean(x²) + epsilon) · gamma`` over the last axis, the division a Div or the product with a Reciprocal."""

    name = "fuse_rms_norm"
    roots: ClassVar[frozenset[str]] = frozenset({"Sqrt"})

    def rewrite(self, node: ir.Node) -> str | None:
        found = deviation(node)
        if found is None:
            return None
        x, epsilon, nodes = found
        norm = divided(node, x, x, epsilon, nodes)
        if norm is None:
            if producer(x, "Sub") is not None:
                return None  # a LayerNormalization, whose pass says what is missing
            raise Miss(node, "the root mean square does not divide what it was computed from")
        if norm.beta is not None:  # RMSNormalization has no shift
            norm.nodes.pop()
            norm.beta, norm.value = None, norm.nodes[-1].outputs[0]
        if any(u.node not in norm.nodes for u in node.outputs[0].uses()) or node.outputs[0].is_graph_output():
            raise Miss(node, f"{node.outputs[0].name} is used elsewhere")
        return build(norm, "RMSNormalization")
