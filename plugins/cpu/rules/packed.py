"""Rows packed without their padding, embeddings, and pooling."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from infc.compiler.artifact.ops import SEGMENT
from infc.plugins.cpu.lower import Lowering, rule, word
from infc.plugins.cpu.rules.elementwise import binary, scalar, select
from infc.plugins.cpu.rules.movement import expand
from infc.plugins.cpu.rules.rows import reduce
from infc.plugins.cpu.types import cast
from infc.plugins.cpu.values import Buffer, Tensor, dense_strides, itemsize, product


@rule("PackTokens", domain="infc")
def _pack_tokens(lo: Lowering, node: ir.Node) -> list[Tensor]:
    mask = lo.want(lo.input(0), "i32", "i64", "bool", "u8", "f32")
    if mask.buffer.space != "INPUT" or not mask.is_whole or not all(mask.symbols):
        raise lo.unsupported("the mask must be an input of the graph whose dimensions vary")
    batch, seq = mask.dims
    tokens = next((n for n, b in lo.symbols if n == _tokens_symbol(node)), None)
    if tokens is None:
        raise lo.unsupported("the number of rows has no bound")
    index, column = (lo.new("i32", (batch * seq,), (tokens,)) for _ in range(2))
    offsets, key_start = lo.new("i32", (batch + 1,)), lo.new("i32", (batch,), (mask.symbols[0],))
    words = (lo.symbol_index(mask.symbols[0]), lo.symbol_index(mask.symbols[1]), lo.symbol_index(tokens), 1,
             int(lo.attribute("keep_first", 0)))
    outputs = [index, column, offsets, key_start]
    lo.emit("pack_tokens", [mask.ref(mask.dims)], [t.ref(t.dims) for t in outputs], words, 1)
    return outputs


def _tokens_symbol(node: ir.Node) -> str:
    shape = node.outputs[0].shape
    return str(shape[0].value) if shape is not None and not isinstance(shape[0], int) else "tokens"


@rule("PackRows", domain="infc")
def _pack_rows(lo: Lowering, node: ir.Node) -> Tensor:
    x, index = lo.input(0), lo.input(1)
    if x.buffer.space != "INPUT" or not all(x.symbols[:2]):
        raise lo.unsupported("only inputs of the graph can be packed")
    y = lo.new(x.dtype, (*index.dims, *x.dims[2:]), (index.symbol, *x.symbols[2:]))
    words = [lo.symbol_index(s) for s in x.symbols[:2]]
    lo.emit("gather_rows", [x.ref(x.dims), index.ref(index.dims)], [y.ref(y.dims)], words, index.dims[0], index.symbol)
    return y


@rule("SumUntil", domain="infc")
def _sum_until(lo: Lowering, node: ir.Node) -> Tensor:
    x, index, column = lo.want(lo.input(0), "i32", "i64"), lo.input(1), lo.input(2)
    if x.buffer.space != "INPUT" or not all(x.symbols):
        raise lo.unsupported("only inputs of the graph can be summed before they are packed")
    y = lo.new("i64", index.dims, (index.symbol,))
    value = lo.attribute("value")
    words = (*(lo.symbol_index(s) for s in x.symbols), int(value is not None), (value or 0) & 0xFFFFFFFF)
    lo.emit("sum_until", [t.ref(t.dims) for t in (x, index, column)], [y.ref(y.dims)], words, index.dims[0], index.symbol)
    return y


@rule("UnpackRows", domain="infc")
def _unpack_rows(lo: Lowering, node: ir.Node) -> Tensor:
    x, index, mask = lo.dense(lo.input(0)), lo.input(1), lo.input(2)
    dims = (*mask.dims, *x.dims[1:])
    y = Tensor(Buffer("ARENA", product(dims) * itemsize(x.dtype)), x.dtype, dims, dense_strides(dims), 0,
               (*mask.symbols, *x.symbols[1:]))
    words = [lo.symbol_index(s) for s in mask.symbols]
    lo.emit("scatter_rows", [x.ref(x.dims), index.ref(index.dims)], [y.ref(dims)], words, x.dims[0], x.symbol)
    return y


@rule("Grow", domain="infc")
def _grow(lo: Lowering, node: ir.Node) -> Tensor:
    x = lo.input(0)
    lo.attribute("shape")  # what the bounds of the input's dimensions are
    if x.buffer.space != "INPUT" or not x.is_whole:
        raise lo.unsupported("only inputs of the graph are rectangles of the caller's")
    y = lo.new(x.dtype, x.dims)
    lo.emit("grow", [x.ref(x.dims)], [y.ref(y.dims)], _corner(lo, x), y.dims[0])
    return y


@rule("Crop", domain="infc")
def _crop(lo: Lowering, node: ir.Node) -> Tensor:
    x, like, axes = lo.dense(lo.input(0)), lo.input(1), int(lo.attribute("axes"))
    symbols = (*like.symbols[:axes], *(None for _ in x.dims[axes:]))
    y = Tensor(Buffer("ARENA", x.size * itemsize(x.dtype)), x.dtype, x.dims, dense_strides(x.dims), 0, symbols)
    lo.emit("crop", [x.ref(x.dims)], [y.ref(y.dims)], _corner(lo, y), x.dims[0])
    return y


def _corner(lo: Lowering, rectangle: Tensor) -> list[int]:
    return [lo.symbol_index(s) for s in (*rectangle.symbols, None)[:2]]


@rule("SegmentReduce", domain="infc")
def _segment_reduce(lo: Lowering, node: ir.Node) -> Tensor:
    x, offsets, key_start = lo.dense(lo.want(lo.input(0), "f32")), lo.input(1), lo.input(2)
    y = lo.new("f32", (*key_start.dims, x.dims[1]), (key_start.symbol, None))
    lo.emit("segment_reduce", [x.ref(x.dims), offsets.ref(offsets.dims), key_start.ref(key_start.dims)], [y.ref(y.dims)],
            (SEGMENT.index(lo.attribute("kind", "mean")), word(lo.attribute("epsilon", 0.0))), key_start.dims[0], key_start.symbol)
    return y


@rule("SegmentPool", domain="infc")
def _segment_pool(lo: Lowering, node: ir.Node) -> Tensor:
    x, mask, kind = lo.want(lo.input(0), "f32"), lo.input(1), lo.attribute("kind", "mean")
    attended = cast(lo, mask, "bool")
    chosen = attended.view((*attended.dims, 1), (*attended.strides, 1), (*attended.symbols, None))
    ignored = -np.inf if kind == "max" else 0.0
    kept = select(lo, chosen, x, scalar(lo, ignored))
    y = reduce(lo, kept, "max" if kind == "max" else "sum", [1], False)
    if kind == "sum":
        return y
    count = reduce(lo, cast(lo, attended, "f32"), "sum", [1], True)
    if kind == "max":
        return select(lo, binary(lo, count, scalar(lo, 0.0), "greater"), y, scalar(lo, 0.0))
    return binary(lo, y, binary(lo, count, scalar(lo, lo.attribute("epsilon", 0.0)), "max"), "div")


@rule("EmbeddingSum", domain="infc")
def _embedding_sum(lo: Lowering, node: ir.Node) -> Tensor:
    inputs = lo.inputs()
    ids, tables = [lo.want(t, "i32", "i64") for t in inputs[::2]], [lo.table(lo.want(t, "f32")) for t in inputs[1::2]]
    dims, symbols = lo.broadcast(ids)
    rows, n = product(dims), tables[0].dims[1]
    operands = []
    for index, table in zip(ids, tables, strict=True):
        wide = lo.dense(index if index.dims == dims else expand(index, dims, symbols))
        lo.rectangle(wide)
        operands += [wide.ref((rows,)), table.ref(table.dims)]
    symbol = symbols[0] if symbols else None
    y = lo.new("f32", (*dims, n), (*symbols, None))
    lo.emit("embed_sum", operands, [y.ref((rows, n))], (len(ids),), rows, symbol)
    return y

