"""Operators that order elements or add them up along an axis."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from infc.compiler.artifact.ops import CUMULATE
from infc.plugins.cpu.layout import inverse
from infc.plugins.cpu.lower import Lowering, rule
from infc.plugins.cpu.rules.elementwise import binary
from infc.plugins.cpu.rules.indexing import iota
from infc.plugins.cpu.rules.movement import in_memory_order, transpose
from infc.plugins.cpu.types import cast
from infc.plugins.cpu.values import Tensor, product

ORDERED = ("f32", "f64", "i8", "u8", "i16", "u16", "i32", "i64", "u32", "u64")


def arg(lo: Lowering, x: Tensor, axis: int, smallest: bool, last: bool) -> Tensor:
    """The place of the extreme along an axis, which stays as 1."""
    lo.want(x, *ORDERED)

    def run(x: Tensor, axis: int, rows: int) -> Tensor:
        n, inner = x.dims[axis], product(x.dims[axis + 1 :])
        y = lo.new("i64", [1 if i == axis else d for i, d in enumerate(x.dims)], x.symbols)
        lo.emit("arg", [x.ref((rows, n, inner))], [y.ref((rows, inner))], (smallest, last, n, inner), rows, x.symbol)
        return y

    return in_memory_order(lo, x, axis, run)


@rule("ArgMax", "ArgMin")
def _arg(lo: Lowering, node: ir.Node) -> Tensor:
    x = lo.input(0)
    axis = lo.attribute("axis", 0) % len(x.dims)
    y = arg(lo, x, axis, node.op_type == "ArgMin", bool(lo.attribute("select_last_index", 0)))
    return y if lo.attribute("keepdims", 1) else transpose(y, [i for i in range(len(x.dims)) if i != axis])


@rule("Hardmax")
def _hardmax(lo: Lowering, node: ir.Node) -> Tensor:
    x = lo.input(0)
    axis = lo.attribute("axis", -1) % len(x.dims)
    place = arg(lo, x, axis, smallest=False, last=False)
    return cast(lo, binary(lo, place, iota(lo, place, x.dims[axis], len(x.dims), axis), "equal"), x.dtype)


@rule("TopK")
def _top_k(lo: Lowering, node: ir.Node) -> list[Tensor]:
    x, count = lo.want(lo.input(0), *ORDERED), lo.ints(1)
    assert count is not None
    rank, k = len(x.dims), count[0]
    axis, largest = lo.attribute("axis", -1) % rank, lo.attribute("largest", 1)
    lo.attribute("sorted")  # what is in order is also out of it
    if x.symbols[axis] or not 0 < k <= x.dims[axis]:
        raise lo.unsupported(f"the first {k} of {x.dims[axis]}")
    order = [i for i in range(rank) if i != axis] + [axis]
    x = lo.dense(transpose(x, order))
    source, rows, n = lo.matrix(x)
    outputs = [lo.new(dtype, (*x.dims[:-1], k), x.symbols) for dtype in (x.dtype, "i64")]
    lo.emit("top_k", [source], [y.ref((rows, k)) for y in outputs], (n, k, not largest), rows, x.symbol)
    return [transpose(y, inverse(order)) for y in outputs]


@rule("CumSum", "CumProd")
def _cumulate(lo: Lowering, node: ir.Node) -> Tensor:
    x, given = lo.want(lo.input(0), "f32", "f64", "i32", "i64"), lo.ints(1)
    assert given is not None
    kind = CUMULATE.index("sum" if node.op_type == "CumSum" else "prod")
    flags = [int(lo.attribute(n, 0)) for n in ("exclusive", "reverse")]

    def run(x: Tensor, axis: int, rows: int) -> Tensor:
        n, inner = x.dims[axis], product(x.dims[axis + 1 :])
        y = lo.like(x)
        lo.emit("cumulate", [x.ref((rows, n, inner))], [y.ref((rows, n, inner))], (kind, n, inner, *flags), rows, x.symbol)
        return y

    return in_memory_order(lo, x, given[0] % len(x.dims), run)


@rule("Det")
def _det(lo: Lowering, node: ir.Node) -> Tensor:
    x = lo.dense(lo.want(lo.input(0), "f32"))
    source, rows, _ = lo.matrix(x, len(x.dims) - 2)
    y = lo.new("f32", x.dims[:-2], x.symbols[:-2])
    lo.emit("det", [source], [y.ref((rows,))], (x.dims[-1],), rows, x.symbol)
    return y


@rule("Binarizer", domain="ai.onnx.ml")
def _binarizer(lo: Lowering, node: ir.Node) -> Tensor:
    x = lo.want(lo.input(0), "f32", "i32", "i64")
    threshold = lo.constant(np.array(lo.attribute("threshold", 0.0), np.float32))
    return cast(lo, binary(lo, cast(lo, x, "f32"), threshold, "greater"), x.dtype)
