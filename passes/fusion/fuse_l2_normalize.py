"""Division by the Euclidean norm becomes infc.L2Normalize."""

from __future__ import annotations

from typing import ClassVar

import onnx_ir as ir

from infc.passes.base import Miss, NodePass
from infc.passes.domain import DOMAIN
from infc.passes.graph import at, attribute, constant, dims, emit, producer, reduced_axes, replace, scalar


class FuseL2Normalize(NodePass):
    """``x / max(‖x‖₂, epsilon)`` over the last axis, the norm being ReduceL2, or the square root of a ReduceSum of squares."""

    name = "fuse_l2_normalize"
    roots: ClassVar[frozenset[str]] = frozenset({"Div"})

    def rewrite(self, node: ir.Node) -> str | None:
        x, divisor = at(node, 0), at(node, 1)
        limit = producer(divisor, "Clip", "Max")
        floor = lower_limit(limit) if limit is not None else (divisor, 0.0)
        if x is None or floor is None or floor[0] is None:
            return None
        norm, epsilon = floor
        nodes = _norm_of(norm, x)
        if nodes is None:
            return None
        if reduced_axes(nodes[-1]) != [len(dims(x) or ()) - 1] or not attribute(nodes[-1], "keepdims", 1):
            raise Miss(node, "the norm is not over the last axis, kept as 1")
        fused = emit(
            node,
            "L2Normalize",
            [x],
            {"epsilon": epsilon},
            domain=DOMAIN,
            name=node.name or "",
            like=node.outputs,
            sources=(node, *([limit] if limit is not None else []), *nodes),
        )
        replace(node.outputs[0], fused.outputs[0])
        return fused.name


def lower_limit(node: ir.Node) -> tuple[ir.Value | None, float] | None:
    """(value, limit) of a Clip without upper limit, or of a Max with a constant scalar."""
    if node.op_type == "Clip":
        low, high = scalar(at(node, 1)), at(node, 2)
        unlimited = high is None or (scalar(high) or 0.0) >= 3e38
        return (at(node, 0), low) if low is not None and unlimited else None
    if len(node.inputs) != 2:
        return None
    a, b = node.inputs
    value, limit = (b, scalar(a)) if constant(a) is not None else (a, scalar(b))
    return None if limit is None else (value, limit)


def _norm_of(value: ir.Value | None, x: ir.Value) -> list[ir.Node] | None:
    """The nodes that compute the norm of ``x``, the reduction last."""
    norm = producer(value, "ReduceL2", "Sqrt")
    if norm is None:
        return None
    if norm.op_type == "ReduceL2":
        return [norm] if at(norm, 0) is x else None
    total = producer(at(norm, 0), "ReduceSum", "ReduceSumSquare")
    if total is None:
        return None
    if total.op_type == "ReduceSumSquare":
        return [norm, total] if at(total, 0) is x else None
    square = square_of(at(total, 0), x)
    return [norm, square, total] if square is not None else None


def square_of(value: ir.Value | None, x: ir.Value | None) -> ir.Node | None:
    """The node that makes ``value``, if it squares ``x``."""
    node = producer(value, "Mul", "Pow")
    if node is None or at(node, 0) is not x:
        return None
    return node if (node.op_type == "Mul" and at(node, 1) is x) or (node.op_type == "Pow" and scalar(at(node, 1)) == 2) else None
