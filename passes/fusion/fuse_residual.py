"""The Add of another branch to a Linear's or Conv's result goes into it."""

from __future__ import annotations

from typing import ClassVar

import onnx_ir as ir

from infc.passes.base import Miss, NodePass
from infc.passes.domain import DOMAIN
from infc.passes.fusion.fuse_activation import FUSED
from infc.passes.graph import at, constant, dims, emit, producer, replace, same_shape, sole_use


class FuseResidual(NodePass):
    """``Linear(x) + y`` or ``Conv(x) + y`` with y of the result's shape and the Linear used nowhere else. When both operands are
    such, the first takes the second."""

    name = "fuse_residual"
    roots: ClassVar[frozenset[str]] = frozenset({"Add"})

    def rewrite(self, node: ir.Node) -> str | None:
        if node.domain != "" or node.inputs[0] is node.inputs[1]:
            return None
        pairs = [
            (a, b) for a, b in (tuple(node.inputs), tuple(node.inputs)[::-1]) if producer(a, *FUSED, domain=DOMAIN) is not None
        ]
        if not pairs:
            return None
        reason = ""
        for value, residual in pairs:
            assert value is not None
            assert residual is not None
            reason = _objection(value, residual, node)
            if not reason:
                return _fuse(value, residual, node)
        raise Miss(node, reason)


def _objection(value: ir.Value, residual: ir.Value, node: ir.Node) -> str:
    linear = value.producer()
    assert linear is not None
    if sole_use(value) is not node:
        return f"{value.name} is used elsewhere"
    if at(linear, 3) is not None:
        return f"{linear.name} has a residual already"
    if constant(residual) is not None:
        return f"{residual.name} is a constant"
    if not same_shape(value, residual):
        return f"shapes are not known to be equal: {dims(value)} and {dims(residual)}"
    return ""


def _fuse(value: ir.Value, residual: ir.Value, node: ir.Node) -> str | None:
    linear = value.producer()
    assert linear is not None
    inputs = [*linear.inputs, *(None,) * (3 - len(linear.inputs)), residual]
    fused = emit(
        node,
        linear.op_type,
        inputs,
        {name: a.value for name, a in linear.attributes.items()},
        domain=DOMAIN,
        name=linear.name or "",
        like=node.outputs,
        sources=(linear, node),
    )
    replace(node.outputs[0], fused.outputs[0])
    return fused.name
