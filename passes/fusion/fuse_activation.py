"""An activation that follows a Linear or Conv goes into it."""

from __future__ import annotations

from typing import ClassVar

import onnx_ir as ir

from infc.passes.base import Miss, NodePass, PassResult
from infc.passes.domain import DOMAIN
from infc.passes.elementwise import recognise
from infc.passes.graph import at, attribute, emit, opset, producer, replace, scalar

_PLAIN = {"Relu": "relu", "Tanh": "tanh", "Sigmoid": "sigmoid", "HardSwish": "hard_swish"}
FUSED = ("Linear", "Conv")  # operators of the domain with an activation and a residual


class FuseActivation(NodePass):
    """Relu, Tanh, Sigmoid, HardSwish, Gelu, Clip from 0 to 6, and SiLU and quick GELU written with Sigmoid, of the only use of a
    Linear or Conv. Of one with a residual: the activation of the sum."""

    name = "fuse_activation"
    roots: ClassVar[frozenset[str]] = frozenset({*_PLAIN, "Gelu", "Clip", "Swish"})

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
        activation, argument = _activation(node), at(node, 0)
        return None if argument is None or activation is None else _fuse(argument, node, activation, [node])


def _activation(node: ir.Node) -> str | None:
    if node.op_type == "Gelu":
        return {"none": "gelu_erf", "tanh": "gelu_tanh"}.get(attribute(node, "approximate", "none"))
    if node.op_type == "Clip":
        return "relu6" if (scalar(at(node, 1)), scalar(at(node, 2))) == (0.0, 6.0) else None
    if node.op_type == "Swish":
        return "silu" if attribute(node, "alpha", 1.0) == 1.0 else None
    return _PLAIN[node.op_type]


def _fuse(argument: ir.Value, root: ir.Node, activation: str, nodes: list[ir.Node]) -> str | None:
    linear = producer(argument, *FUSED, domain=DOMAIN)
    if linear is None:
        return None
    if argument.is_graph_output() or any(use.node not in nodes for use in argument.uses()):
        raise Miss(root, f"{argument.name} is used before the activation as well")
    if attribute(linear, "activation"):
        raise Miss(root, f"{linear.name} has an activation already")
    attributes = {name: a.value for name, a in linear.attributes.items()} | {"activation": activation}
    if at(linear, 3) is not None:
        attributes["residual_first"] = 1
    fused = emit(
        root,
        linear.op_type,
        linear.inputs,
        attributes,
        domain=DOMAIN,
        name=linear.name or "",
        like=root.outputs,
        sources=(linear, *nodes),
    )
    replace(root.outputs[0], fused.outputs[0])
    return fused.name
