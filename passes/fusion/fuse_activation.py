"""An activation that follows a Linear goes into it."""

from __future__ import annotations

from typing import ClassVar

import onnx_ir as ir

from infc.passes.base import Miss, NodePass, PassResult
from infc.passes.domain import DOMAIN
from infc.passes.elementwise import recognise
from infc.passes.graph import at, attribute, emit, opset, producer, replace

_PLAIN = {"Relu": "relu", "Tanh": "tanh", "Sigmoid": "sigmoid"}


class FuseActivation(NodePass):
    """Relu, Tanh, Sigmoid, Gelu, and SiLU and quick GELU written with Sigmoid, of the only use of a Linear without residual."""

    name = "fuse_activation"
    roots: ClassVar[frozenset[str]] = frozenset({*_PLAIN, "Gelu"})

    def run(self, model: ir.Model) -> PassResult:
        self._opset = opset(model)
        return super().run(model)

    def rewrite(self, node: ir.Node) -> str | None:
        if node.domain != "":
            return None
        if node.op_type == "Sigmoid":
            found = recognise(node, ("silu", "quick_gelu"), self._opset)
            if isinstance(found, tuple):
                return _fuse(found[1], found[2], found[0], found[3])
        activation = (
            {"none": "gelu_erf", "tanh": "gelu_tanh"}[attribute(node, "approximate", "none")]
            if node.op_type == "Gelu"
            else _PLAIN[node.op_type]
        )
        argument = at(node, 0)
        return None if argument is None else _fuse(argument, node, activation, [node])


def _fuse(argument: ir.Value, root: ir.Node, activation: str, nodes: list[ir.Node]) -> str | None:
    linear = producer(argument, "Linear", domain=DOMAIN)
    if linear is None:
        return None
    if argument.is_graph_output() or any(use.node not in nodes for use in argument.uses()):
        raise Miss(root, f"{argument.name} is used before the activation as well")
    if attribute(linear, "activation") or at(linear, 3) is not None:
        raise Miss(root, f"{linear.name} has an activation or a residual already")
    fused = emit(
        root,
        "Linear",
        linear.inputs,
        {"activation": activation},
        domain=DOMAIN,
        name=linear.name or "",
        like=root.outputs,
        sources=(linear, *nodes),
    )
    replace(root.outputs[0], fused.outputs[0])
    return fused.name
