"""ONNX's Attention on ``[batch, seq, heads*size]`` becomes that on ``[batch, heads, seq, size]``, the form other passes read."""

from __future__ import annotations

from typing import ClassVar

import onnx_ir as ir

from infc.passes.base import NodePass
from infc.passes.graph import Dims, at, attribute, dims, emit, int_constant, owner, replace

_SWAPPED = [0, 2, 1, 3]


class HeadsFirst(NodePass):
    """Query, key and value are reshaped to heads and transposed, the result is put back; not with a cache, nor where the
    scores are given out."""

    name = "heads_first"
    roots: ClassVar[frozenset[str]] = frozenset({"Attention"})

    def rewrite(self, node: ir.Node) -> str | None:
        count = {"q": attribute(node, "q_num_heads", 0), "kv": attribute(node, "kv_num_heads", 0)}
        shapes = [dims(at(node, i)) for i in range(3)]
        if node.domain != "" or not all(count.values()) or any(at(node, i) is not None for i in range(4, len(node.inputs))):
            return None
        if any(o.uses() or o.is_graph_output() for o in node.outputs[1:]):
            return None
        parts = [_size(shape, heads) for shape, heads in zip(shapes, (count["q"], count["kv"], count["kv"]), strict=True)]
        q, _, v = parts
        if q is None or v is None or None in parts:
            return None
        operands = [_heads(node, at(node, i), part, which) for i, (part, which) in enumerate(zip(parts, "qkv", strict=True))]
        batch, heads, seq, size = *q[:3], v[3]
        kept = {k: a.value for k, a in node.attributes.items() if k not in ("q_num_heads", "kv_num_heads")}
        dtype = node.outputs[0].dtype
        inner = emit(node, "Attention", [*operands, *node.inputs[3:]], kept, name=node.name or "",
                     like=[(dtype, (batch, heads, seq, size))], sources=[node])
        rows = emit(node, "Transpose", [inner.outputs[0]], {"perm": _SWAPPED}, name=f"{node.name}/rows",
                    like=[(dtype, (batch, seq, heads, size))])
        joined = emit(node, "Reshape", [rows.outputs[0], int_constant(owner(node), [0, 0, int(heads) * int(size)])],  # type: ignore[arg-type]
                      name=f"{node.name}/joined", like=node.outputs[:1])
        replace(node.outputs[0], joined.outputs[0])
        return inner.name


def _size(shape: Dims | None, heads: int) -> Dims | None:
    """``[B,H,S,d]`` of ``[B,S,H*d]``; None where that is not known."""
    if shape is None or len(shape) != 3 or not isinstance(shape[2], int) or shape[2] % heads:
        return None
    return (shape[0], heads, shape[1], shape[2] // heads)


def _heads(node: ir.Node, value: ir.Value | None, shape: Dims | None, which: str) -> ir.Value:
    assert value is not None
    assert shape is not None
    batch, heads, seq, size = shape
    split = emit(node, "Reshape", [value, int_constant(owner(node), [0, 0, int(heads), int(size)])],  # type: ignore[arg-type]
                 name=f"{node.name}/{which}_heads", like=[(value.dtype, (batch, seq, heads, size))])
    return emit(node, "Transpose", [split.outputs[0]], {"perm": _SWAPPED}, name=f"{node.name}/{which}",
                like=[(value.dtype, shape)]).outputs[0]
