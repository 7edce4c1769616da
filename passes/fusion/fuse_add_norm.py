"""An Add in front of a norm becomes infc.AddNorm."""

from __future__ import annotations

from typing import ClassVar

import onnx_ir as ir

from infc.passes.base import Miss, NodePass
from infc.passes.domain import DOMAIN
from infc.passes.graph import at, attribute, constant, dims, emit, over_last_axis, producer, replace, same_shape

_KINDS = {"LayerNormalization": "layer", "RMSNormalization": "rms"}


class FuseAddNorm(NodePass):
    """LayerNormalization or RMSNormalization over the last axis of a sum of two values of one shape. Other users of the sum
    read the second output."""

    name = "fuse_add_norm"
    roots: ClassVar[frozenset[str]] = frozenset(_KINDS)

    def rewrite(self, node: ir.Node) -> str | None:
        add = producer(at(node, 0), "Add")
        if add is None or node.domain != "":
            return None
        total = add.outputs[0]
        if not same_shape(add.inputs[0], add.inputs[1]) or not same_shape(add.inputs[0], total):
            raise Miss(node, f"the sum's operands are not known to have one shape: {dims(add.inputs[0])} and {dims(add.inputs[1])}")
        if not over_last_axis(node):
            raise Miss(node, "the norm is not over the last axis")
        if any(v.uses() or v.is_graph_output() for v in node.outputs[1:]):
            raise Miss(node, "the norm's mean or deviation is used")
        if any(constant(v) is None for v in node.inputs[1:] if v is not None):
            raise Miss(node, "scale or bias of the norm is not constant")
        keeps_sum = len(total.uses()) > 1 or total.is_graph_output()
        fused = emit(
            add,
            "AddNorm",
            [*add.inputs, *node.inputs[1:]],
            {"kind": _KINDS[node.op_type], "epsilon": attribute(node, "epsilon", 1e-5)},
            domain=DOMAIN,
            name=node.name or "",
            like=[node.outputs[0], total] if keeps_sum else [node.outputs[0]],
            sources=(node, add),
        )
        replace(node.outputs[0], fused.outputs[0])
        if keeps_sum:
            replace(total, fused.outputs[1])
        return fused.name
