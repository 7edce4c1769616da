"""Operators over rows: norms, softmax, reductions."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from infc.compiler.artifact.ops import NORM, REDUCE
from infc.plugins.cpu.layout import inverse, memory_order, permuted
from infc.plugins.cpu.lower import Lowering, rule, word
from infc.plugins.cpu.rules.elementwise import ARITHMETIC, unary
from infc.plugins.cpu.rules.movement import axes_of, reshape, transpose
from infc.plugins.cpu.types import FLOATS, cast
from infc.plugins.cpu.values import Tensor, product

REDUCE_OPS = {
    "ReduceSum": "sum", "ReduceMean": "mean", "ReduceMax": "max", "ReduceMin": "min", "ReduceProd": "prod", "ReduceL1": "l1",
    "ReduceL2": "l2", "ReduceSumSquare": "sum_square", "ReduceLogSumExp": "log_sum_exp", "ReduceLogSum": "sum",
}


def vector(lo: Lowering, tensor: Tensor, size: int, dims: Sequence[int] = ()) -> Tensor:
    """A parameter as [size]: broadcast to ``dims`` first, then flattened and dense."""
    dims = tuple(dims) or (size,)
    while len(tensor.dims) > len(dims) and tensor.dims[0] == 1:
        tensor = transpose(tensor, range(1, len(tensor.dims)))
    missing = len(dims) - len(tensor.dims)
    if missing < 0 or any(d not in (1, w) for d, w in zip(tensor.dims, dims[missing:], strict=True)):
        raise lo.unsupported(f"a parameter of shape {list(tensor.dims)} for {list(dims)}")
    strides = [0] * missing + [s if d != 1 else 0 for d, s in zip(tensor.dims, tensor.strides, strict=True)]
    return lo.dense(reshape(lo, lo.dense(tensor.view(dims, strides)), (size,), (None,)))


def norm(lo: Lowering, x: Tensor, kind: str, epsilon: float, gamma: Tensor | None = None, beta: Tensor | None = None,
         residual: Tensor | None = None, want_sum: bool = False, axis: int = -1) -> tuple[Tensor, Tensor | None]:
    """norm(x + residual) over the dimensions from ``axis`` on, and the sum."""
    axis %= len(x.dims)
    lo.want(x, "f32")
    x = lo.dense(x)
    if x.symbol and product(x.dims[1:axis]) != 1:
        rows, n = x.dims[0], product(x.dims[axis:])
        shape: tuple[int, ...] = (rows, product(x.dims[1:axis]), n)
        source = x.ref(shape)
    else:
        source, rows, n = lo.matrix(x, axis)
        shape = (rows, n)
    inputs = [source]
    inputs += [vector(lo, p, n, x.dims[axis:]).ref((n,)) for p in (gamma, beta) if p is not None]
    if residual is not None:
        if residual.dims != x.dims:
            raise lo.unsupported(f"a residual of shape {list(residual.dims)} for {list(x.dims)}")
        inputs.append(lo.dense(residual).ref(shape))
    y = lo.like(x)
    total = lo.like(x) if want_sum else None
    outputs = [t.ref(shape) for t in (y, total) if t is not None]
    words = (NORM.index(kind), word(epsilon), gamma is not None, beta is not None, residual is not None, want_sum)
    lo.emit("norm", inputs, outputs, [int(w) for w in words], rows, x.symbol)
    return y, total


def reduce(lo: Lowering, x: Tensor, kind: str, axes: Sequence[int], keep: bool) -> Tensor:
    """Reduces over axes counted from the front; the result lies in memory as x does and has its type."""
    if x.dtype == "bool":  # the largest of bools is whether any holds
        return cast(lo, reduce(lo, cast(lo, x, "i32"), kind, axes, keep), "bool")
    if x.dtype in ("i32", "i64", "u64") and kind in ("mean", "l2", "log_sum_exp"):
        return cast(lo, reduce(lo, cast(lo, x, "f64"), kind, axes, keep), x.dtype)
    order = memory_order(x)
    y = permuted(_reduce_in_order(lo, permuted(x, order), kind, [order.index(a) for a in axes]), inverse(order))
    return y if keep else permuted(y, [i for i in range(len(x.dims)) if i not in axes])


def _reduce_in_order(lo: Lowering, x: Tensor, kind: str, axes: Sequence[int]) -> Tensor:
    """Keeps the dimensions, as 1."""
    lo.want(x, *ARITHMETIC)
    rank = len(x.dims)
    if 0 in x.dims:
        raise lo.unsupported("a tensor without elements")
    if any(x.symbols[a] for a in axes):
        raise lo.unsupported("a reduction over a dimension that varies at run time")
    first, last = min(axes), max(axes)
    inner = list(range(last + 1, rank))
    if any(x.dims[i] != 1 for i in range(first, last) if i not in axes):
        x, inner = transpose(x, [i for i in range(rank) if i not in axes] + list(axes)), []
        first = rank - len(axes)
        kept = x.dims[:first]
    else:
        kept = tuple(d for i, d in enumerate(x.dims) if i not in axes)
    symbols = (x.symbol, *[None] * (len(kept) - 1)) if kept else ()
    x = lo.dense(x)
    rows, width = product(x.dims[:first]), product([x.dims[i] for i in inner]) if inner else 1
    reduced = x.size // (rows * width)
    if x.symbol and rows != x.dims[0]:
        raise lo.unsupported("rows whose number is known at run time must be the only leading dimension")
    y = lo.new(x.dtype, kept, symbols)
    lo.rectangle(x)
    lo.emit("reduce", [x.ref((rows, reduced, width))], [y.ref((rows, width))], (REDUCE.index(kind), reduced, width), rows, x.symbol)
    old = iter(zip(y.dims, y.strides, y.symbols, strict=True))
    parts: list[tuple[int, int, str | None]] = [(1, 1, None) if i in axes else next(old) for i in range(rank)]
    return y.view([d for d, _, _ in parts], [s for _, s, _ in parts], [s for _, _, s in parts])


@rule("LayerNormalization", "RMSNormalization")
def _normalization(lo: Lowering, node: ir.Node) -> list[Tensor]:
    kind = "layer" if node.op_type == "LayerNormalization" else "rms"
    beta = lo.optional(2) if kind == "layer" else None
    return [norm(lo, lo.input(0), kind, lo.attribute("epsilon", 1e-5), lo.input(1), beta, axis=lo.attribute("axis", -1))[0]]


@rule("AddNorm", domain="infc")
def _add_norm(lo: Lowering, node: ir.Node) -> list[Tensor | None]:
    want_sum = len(node.outputs) > 1 and (bool(node.outputs[1].uses()) or node.outputs[1].is_graph_output())
    return list(norm(lo, lo.input(0), lo.attribute("kind", "layer"), lo.attribute("epsilon", 1e-5), lo.input(2), lo.optional(3),
                     lo.input(1), want_sum))


@rule("L2Normalize", domain="infc")
def _l2_normalize(lo: Lowering, node: ir.Node) -> Tensor:
    return norm(lo, lo.input(0), "l2", lo.attribute("epsilon", 1e-12))[0]


@rule("Softmax", "LogSoftmax")
def _softmax(lo: Lowering, node: ir.Node) -> Tensor:
    x = lo.want(lo.input(0), "f32", "f64")
    axis = lo.attribute("axis", -1) % len(x.dims)
    if x.symbols[axis]:
        raise lo.unsupported("over a dimension that varies at run time")
    order = [i for i in range(len(x.dims)) if i != axis] + [axis]
    x = lo.dense(transpose(x, order))
    source, rows, n = lo.matrix(x)
    y = lo.like(x)
    lo.emit("softmax", [source], [y.ref((rows, n))], (int(node.op_type == "LogSoftmax"),), rows, x.symbol)
    return transpose(y, [order.index(i) for i in range(len(order))])


@rule(*REDUCE_OPS)
def _reduce(lo: Lowering, node: ir.Node) -> Tensor:
    x = lo.input(0)
    axes = axes_of(lo, 1, len(x.dims))
    keep, noop = bool(lo.attribute("keepdims", 1)), lo.attribute("noop_with_empty_axes", 0)
    if not axes and not noop:
        axes = list(range(len(x.dims)))
    if not axes:  # each element by itself: L1 is still its absolute value
        x, axes, keep = x.view((*x.dims, 1), (*x.strides, 1), (*x.symbols, None)), [len(x.dims)], False
    y = reduce(lo, x, REDUCE_OPS[node.op_type], axes, keep)
    if node.op_type != "ReduceLogSum":
        return y
    return unary(lo, y, "log") if y.dtype in FLOATS else cast(lo, unary(lo, cast(lo, y, "f64"), "log"), y.dtype)


@rule("GlobalAveragePool", "GlobalMaxPool")
def _global_pool(lo: Lowering, node: ir.Node) -> Tensor:
    x = lo.input(0)
    return reduce(lo, x, "mean" if node.op_type == "GlobalAveragePool" else "max", range(2, len(x.dims)), True)
