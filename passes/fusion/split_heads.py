"""Attention over ``[batch*heads, seq, size]`` is taken back to four dimensions, where fuse_attention looks for it."""

from __future__ import annotations

from typing import ClassVar

import onnx_ir as ir

from infc.passes.base import NodePass
from infc.passes.graph import Dims, at, attribute, constant, dims, emit, int_constant, known, owner, producer, replace, same_shape

_ELEMENTWISE = ("Add", "Sub", "Mul", "Div")


class SplitHeads(NodePass):
    """A Reshape that joins batch and heads moves behind MatMul, Softmax, the transpose of the last two axes, arithmetic. What else
    meets it there is divided likewise."""

    name = "split_heads"
    roots: ClassVar[frozenset[str]] = frozenset({"MatMul", "Softmax", "Transpose", *_ELEMENTWISE})

    def rewrite(self, node: ir.Node) -> str | None:
        out = dims(node.outputs[0])
        if node.domain != "" or out is None or len(out) != 3 or node.outputs[0].is_graph_output():
            return None
        joins = [_joined(v) for v in node.inputs]
        whole = next((j for j in joins if j is not None), None)
        if whole is None or not _moves(node, joins):
            return None
        batch, heads = (dims(whole) or ())[:2]
        inputs = [j if j is not None else _divided(node, v, whole) for v, j in zip(node.inputs, joins, strict=True)]
        attributes = {k: a.value for k, a in node.attributes.items()}
        if node.op_type == "Transpose":
            attributes["perm"] = [0, 1, 3, 2]
        if node.op_type == "Softmax":
            attributes["axis"] = -1
        dtype = node.outputs[0].dtype
        wide = emit(node, node.op_type, inputs, attributes, name=node.name or "", like=[(dtype, (batch, heads, *out[1:]))])
        inner = _sizes(node, wide.outputs[0], 2, 4, "inner")
        target = emit(node, "Concat", [int_constant(owner(node), [-1]), inner], {"axis": 0}, name=f"{node.name}/joined_shape",
                      like=[(ir.DataType.INT64, (3,))])
        back = emit(node, "Reshape", [wide.outputs[0], target.outputs[0]], name=f"{node.name}/joined", like=node.outputs)
        replace(node.outputs[0], back.outputs[0])
        return wide.name


def _joined(value: ir.Value | None) -> ir.Value | None:
    """``[B,H,x,y]`` of which the value is ``[B*H,x,y]``."""
    node = producer(value, "Reshape")
    source = at(node, 0) if node is not None else None
    wide, flat = dims(source), dims(value)
    if source is None or wide is None or flat is None or len(wide) != 4 or len(flat) != 3 or not known(wide):
        return None
    return source if wide[2:] == flat[1:] and isinstance(wide[1], int) else None


def _moves(node: ir.Node, joins: list[ir.Value | None]) -> bool:
    if node.op_type == "MatMul":
        return None not in joins and len({(dims(j) or ())[:2] for j in joins}) == 1
    if node.op_type == "Transpose":
        return list(attribute(node, "perm", ())) == [0, 2, 1]
    if node.op_type == "Softmax":
        return attribute(node, "axis", -1) in (-1, 2)
    return all(j is not None or _is_number(v) or same_shape(v, node.outputs[0]) for v, j in zip(node.inputs, joins, strict=True))


def _is_number(value: ir.Value | None) -> bool:
    tensor = constant(value)
    return tensor is not None and tensor.size == 1


def _divided(node: ir.Node, value: ir.Value | None, whole: ir.Value) -> ir.Value | None:
    """``[B*H,x,y]`` as ``[B,H,x,y]``; numbers as they are."""
    shape = dims(value)
    if value is None or shape is None or _is_number(value):
        return value
    heads = (dims(whole) or ())[1]
    parts = [int_constant(owner(node), [-1, int(heads)]), _sizes(node, value, 1, 3, "rest")]  # type: ignore[arg-type]
    target = emit(node, "Concat", parts, {"axis": 0}, name=f"{node.name}/{value.name}/shape", like=[(ir.DataType.INT64, (4,))])
    wide: Dims = (*(dims(whole) or ())[:2], *shape[1:])
    return emit(node, "Reshape", [value, target.outputs[0]], name=f"{node.name}/{value.name}/divided",
                like=[(value.dtype, wide)]).outputs[0]


def _sizes(node: ir.Node, value: ir.Value, start: int, end: int, name: str) -> ir.Value:
    shape = emit(node, "Shape", [value], {"start": start, "end": end}, name=f"{node.name}/{value.name}/{name}",
                 like=[(ir.DataType.INT64, (end - start,))])
    return shape.outputs[0]
