"""Operators that take and put elements by index."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from infc.compiler.artifact.ops import NEST, SCATTER
from infc.plugins.cpu.lower import Lowering, rule
from infc.plugins.cpu.rules.elementwise import binary, select
from infc.plugins.cpu.rules.movement import cut, expand, padded, reshape, take, transpose
from infc.plugins.cpu.types import cast
from infc.plugins.cpu.values import NUMPY, Ref, Tensor, product


def gather_elements(lo: Lowering, x: Tensor, indices: Tensor, axis: int) -> Tensor:
    """y[i, j, k] = x[i, indices[i, j, k], k] for axis 1; of x no more is read than the indices have in other dimensions."""
    x, indices = lo.readable(x), lo.readable(lo.want(indices, "i32", "i64"))
    if x.symbols[axis] or (x.symbol and x.symbol != indices.symbol) or any(
            i > d for n, (i, d) in enumerate(zip(indices.dims, x.dims, strict=True)) if n != axis):
        raise lo.unsupported(f"indices {list(indices.dims)} into {list(x.dims)}")
    y = lo.new(x.dtype, indices.dims, indices.symbols)
    dims, strides = lo.nest(y, [_along(x, axis, indices), indices, y])
    size, stride = x.dims[axis], x.strides[axis]
    refs = [lo.nest_ref(x, [*dims, size], [*strides[0], stride], movable=False)[0],
            lo.nest_ref(indices, dims, strides[1], movable=False)[0]]
    out = Ref(y.buffer, y.dtype, (dims[0], product(dims[1:])), 0, product(dims[1:]), y.symbol)
    lo.emit("gather_elements", refs, [out], (*dims, *strides[0], *strides[1], size, stride), dims[0], y.symbol)
    return y


def scatter_elements(lo: Lowering, y: Tensor, indices: Tensor, updates: Tensor, axis: int, kind: str = "none") -> None:
    """y[i, indices[i, j, k], k] = combine(itself, updates[i, j, k]) for axis 1, in memory that other steps have filled."""
    indices, updates = lo.readable(lo.want(indices, "i32", "i64")), lo.readable(lo.want(updates, y.dtype))
    if indices.dims != updates.dims or any(i > d for n, (i, d) in enumerate(zip(indices.dims, y.dims, strict=True)) if n != axis):
        raise lo.unsupported(f"updates {list(updates.dims)} at indices {list(indices.dims)} of {list(y.dims)}")
    lo.rectangle(y, indices, updates)
    if y.symbol or indices.symbol:
        raise lo.unsupported("a dimension that varies at run time")
    target = _along(y, axis, indices)
    dims, (sx, si, sy) = lo.nest(target, [updates, indices, target])
    size, stride = y.dims[axis], y.strides[axis]
    out = lo.nest_ref(y, [*dims, size], [*sy, stride], movable=False)[0]
    if len(out.dims) == 1 and dims[0] > 1:  # rows of updates meet in y: one thread does all of them
        if dims[1] != 1:
            raise lo.unsupported(f"a loop nest of more than {NEST - 1} dimensions")
        for words in (dims, sx, si, sy):
            words[0], words[1] = words[1], words[0]
    refs = [lo.nest_ref(t, dims, s, movable=False)[0] for t, s in ((updates, sx), (indices, si))]
    lo.emit("scatter_elements", refs, [out], (SCATTER.index(kind), *dims, *sx, *si, *sy, size, stride), dims[0])


def _along(x: Tensor, axis: int, indices: Tensor) -> Tensor:
    """What the indices step through of x, which stays in place along the axis."""
    strides = [0 if i == axis else s for i, s in enumerate(x.strides)]
    return x.view(indices.dims, strides, indices.symbols)


def along(lo: Lowering, values: np.ndarray, rank: int, axis: int) -> Tensor:
    """A constant vector that lies along one of ``rank`` dimensions."""
    return lo.constant(values.reshape([-1 if i == axis else 1 for i in range(rank)]))


def iota(lo: Lowering, like: Tensor, size: int, rank: int, axis: int) -> Tensor:
    """0, 1, 2 … along one of ``rank`` dimensions, of the other's element type."""
    return along(lo, np.arange(size).astype(NUMPY[like.dtype]), rank, axis)


@rule("GatherElements")
def _gather_elements(lo: Lowering, node: ir.Node) -> Tensor:
    x = lo.input(0)
    return gather_elements(lo, x, lo.input(1), lo.attribute("axis", 0) % len(x.dims))


@rule("ScatterElements", "Scatter")
def _scatter_elements(lo: Lowering, node: ir.Node) -> Tensor:
    x, axis = lo.input(0), lo.attribute("axis", 0)
    y = filled(lo, x)
    scatter_elements(lo, y, lo.input(1), lo.input(2), axis % len(x.dims), _kind(lo, x))
    return y


def filled(lo: Lowering, x: Tensor) -> Tensor:
    """Fresh memory that holds x."""
    lo.rectangle(x)
    if x.symbol:
        raise lo.unsupported("a dimension that varies at run time")
    y = lo.like(x)
    lo.copy_into(x, y)
    return y


def _kind(lo: Lowering, x: Tensor) -> str:
    kind: str = lo.attribute("reduction", "none")
    if kind != "none":
        lo.want(x, "f32", "f64", "i32", "i64", "i8", "u8", "i16", "u16")
    return kind


@rule("GatherND")
def _gather_nd(lo: Lowering, node: ir.Node) -> Tensor:
    x, indices, batch = lo.input(0), lo.want(lo.input(1), "i32", "i64"), lo.attribute("batch_dims", 0)
    depth = indices.dims[-1]
    sizes, inner = _sizes(lo, x.dims[batch:], depth)
    if x.symbol or (indices.symbol and len(indices.dims) != 2):
        raise lo.unsupported("a dimension that varies at run time")
    x, indices = lo.dense(x), lo.dense(indices)
    rest = x.dims[batch + depth :]
    y = lo.new(x.dtype, (*indices.dims[:-1], *rest), (*indices.symbols[:-1], *[None] * len(rest)))
    rows, tuples = product(indices.dims[:-1]), product(indices.dims[batch:-1])
    lo.emit("gather_nd", [x.ref((x.size,), 1), indices.ref((rows, depth))], [y.ref((rows, inner))], (tuples, depth, inner, *sizes),
            rows, indices.symbol)
    return y


@rule("ScatterND")
def _scatter_nd(lo: Lowering, node: ir.Node) -> Tensor:
    x, indices, updates = lo.input(0), lo.want(lo.input(1), "i32", "i64"), lo.want(lo.input(2), lo.input(0).dtype)
    depth = indices.dims[-1]
    sizes, inner = _sizes(lo, x.dims, depth)
    lo.rectangle(indices, updates)
    if indices.symbol or updates.symbol:
        raise lo.unsupported("a dimension that varies at run time")
    y = filled(lo, x)
    if not indices.size:
        return y
    tuples = indices.size // depth
    lo.emit("scatter_nd", [lo.dense(updates).ref((tuples, inner)), lo.dense(indices).ref((tuples, depth))], [y.ref((y.size,), 1)],
            (SCATTER.index(_kind(lo, x)), tuples, depth, inner, *sizes), 1)
    return y


def _sizes(lo: Lowering, dims: Sequence[int], depth: int) -> tuple[list[int], int]:
    """The words that say what tuples count, and the elements at one place."""
    if not 0 < depth <= min(NEST, len(dims)):
        raise lo.unsupported(f"tuples of {depth} indices")
    return [*dims[:depth], *[1] * (NEST - depth)], product(dims[depth:])


@rule("TensorScatter")
def _tensor_scatter(lo: Lowering, node: ir.Node) -> Tensor:
    """A cache [batch, …, positions, …] with an update from each sequence's own position on."""
    cache, update, start = lo.input(0), lo.input(1), lo.optional(2)
    rank = len(cache.dims)
    axis = lo.attribute("axis", -2) % rank
    start = lo.constant(np.zeros(cache.dims[0], np.int64)) if start is None else start
    first = start.view((*start.dims, *[1] * (rank - 1)), (*start.strides, *[0] * (rank - 1)))
    at = binary(lo, first, iota(lo, start, update.dims[axis], rank, axis), "add")
    if lo.attribute("mode", "linear") == "circular":
        at = binary(lo, at, lo.constant(np.array(cache.dims[axis], NUMPY[at.dtype])), "mod")
    y = filled(lo, cache)
    scatter_elements(lo, y, expand(at, update.dims, update.symbols), update, axis)
    return y


@rule("ReverseSequence")
def _reverse_sequence(lo: Lowering, node: ir.Node) -> Tensor:
    x, lengths = lo.input(0), lo.input(1)
    batch, time = lo.attribute("batch_axis", 1), lo.attribute("time_axis", 0)
    rank = len(x.dims)
    position = iota(lo, lengths, x.dims[time], rank, time)
    own = lengths.view([x.dims[batch] if i == batch else 1 for i in range(rank)],
                       [lengths.strides[0] if i == batch else 0 for i in range(rank)])
    mirrored = binary(lo, binary(lo, own, lo.constant(np.array(1, NUMPY[own.dtype])), "sub"), position, "sub")
    at = select(lo, binary(lo, position, own, "less"), mirrored, position)
    return gather_elements(lo, x, expand(at, x.dims, x.symbols), time)


@rule("OneHot")
def _one_hot(lo: Lowering, node: ir.Node) -> Tensor:
    indices, depth, values = lo.input(0), lo.ints(1), lo.input(2)
    assert depth is not None
    axis = lo.attribute("axis", -1) % (len(indices.dims) + 1)
    if indices.dtype not in ("f32", "i32", "i64"):
        indices = cast(lo, indices, "i64")
    return _hot(lo, indices, axis, depth[0], cut(values, 0, 1, 1), cut(values, 0, 0, 1))


def _hot(lo: Lowering, indices: Tensor, axis: int, depth: int, on: Tensor, off: Tensor) -> Tensor:
    """``on`` at each index along a new axis, ``off`` elsewhere; indices from -depth to depth - 1, others are nowhere."""
    rank = len(indices.dims) + 1
    wide = transpose(indices.view((*indices.dims, 1), (*indices.strides, 1), (*indices.symbols, None)),
                     [*range(axis), rank - 1, *range(axis, rank - 1)])
    places = iota(lo, indices, depth, rank, axis)
    assert places.constant is not None
    negative = lo.constant(places.constant - np.asarray(depth, places.constant.dtype))
    found = binary(lo, binary(lo, wide, places, "equal"), binary(lo, wide, negative, "equal"), "or")
    return select(lo, found, on, off)


@rule("Trilu")
def _trilu(lo: Lowering, node: ir.Node) -> Tensor:
    x, k = lo.input(0), lo.optional(1)
    rows, columns = x.dims[-2:]
    distance = lo.constant(np.arange(columns)[None, :] - np.arange(rows)[:, None])
    k = lo.constant(np.zeros((), np.int64)) if k is None else lo.want(k, "i64")
    function = "greater_equal" if lo.attribute("upper", 1) else "less_equal"
    if k.constant is not None and distance.constant is not None:
        compare = np.greater_equal if function == "greater_equal" else np.less_equal
        kept = lo.constant(compare(distance.constant, k.constant.reshape(())))
    else:
        kept = binary(lo, distance, k, function)
    return select(lo, kept, x, lo.constant(np.zeros((), NUMPY[x.dtype])))


@rule("EyeLike")
def _eye_like(lo: Lowering, node: ir.Node) -> Tensor:
    x, dtype = lo.input(0), lo.attribute("dtype")
    lo.rectangle(x)
    if x.symbol:
        raise lo.unsupported("the size of a dimension that varies at run time")
    element = NUMPY[x.dtype] if dtype is None else np.dtype(ir.DataType(dtype).numpy())
    return lo.constant(np.eye(x.dims[0], x.dims[1], lo.attribute("k", 0)).astype(element))


@rule("Compress")
def _compress(lo: Lowering, node: ir.Node) -> Tensor:
    """With a condition that is known; else the output's size depends on data."""
    x, condition, axis = lo.input(0), lo.const(1), lo.attribute("axis")
    assert condition is not None
    if axis is None:
        x, axis = reshape(lo, x, (x.size,), (None,)), 0
    return take(lo, x, np.flatnonzero(condition), axis % len(x.dims))


@rule("MaxUnpool")
def _max_unpool(lo: Lowering, node: ir.Node) -> Tensor:
    x, indices, wanted = lo.input(0), lo.input(1), lo.ints(2)
    rank = len(x.dims) - 2
    kernel, strides, pads = lo.attribute("kernel_shape"), lo.attribute("strides", [1] * rank), lo.attribute("pads", [0] * 2 * rank)
    dims = [*x.dims[:2], *((d - 1) * s - pads[i] - pads[rank + i] + k
                           for i, (d, s, k) in enumerate(zip(x.dims[2:], strides, kernel, strict=True)))]
    y = expand(lo.constant(np.zeros((), NUMPY[x.dtype])), [product(dims)], (None,))
    y = filled(lo, y)
    scatter_elements(lo, y, reshape(lo, indices, (x.size,), (None,)), reshape(lo, x, (x.size,), (None,)), 0)
    y = reshape(lo, y, dims, [None] * len(dims))
    more = [0] * len(dims) if wanted is None else [w - d for w, d in zip(wanted, dims, strict=True)]
    return padded(lo, y, [0] * len(dims), more) if any(more) else y


@rule("Col2Im")
def _col2im(lo: Lowering, node: ir.Node) -> Tensor:
    """Blocks [batch, channels * taps, places] added where they come from."""
    x, image, block = lo.input(0), lo.ints(1), lo.ints(2)
    assert image is not None
    assert block is not None
    rank = len(image)
    dilations, pads, strides = (list(lo.attribute(n, d)) for n, d in
                                (("dilations", [1] * rank), ("pads", [0] * 2 * rank), ("strides", [1] * rank)))
    whole = [s + pads[i] + pads[rank + i] for i, s in enumerate(image)]
    counts = [(w - d * (b - 1) - 1) // s + 1 for w, d, b, s in zip(whole, dilations, block, strides, strict=True)]
    at = np.zeros([*block, *counts], np.int32)
    for i in range(rank):
        tap = np.arange(block[i]).reshape([-1 if j == i else 1 for j in range(2 * rank)]) * dilations[i]
        place = np.arange(counts[i]).reshape([-1 if j == rank + i else 1 for j in range(2 * rank)]) * strides[i]
        at += ((tap + place) * product(whole[i + 1 :])).astype(np.int32)
    planes = x.dims[0] * x.dims[1] // product(block)
    y = filled(lo, expand(lo.constant(np.zeros((), NUMPY[x.dtype])), (planes, product(whole)), (None, None)))
    values = reshape(lo, x, (planes, at.size), (None, None))
    scatter_elements(lo, y, expand(lo.constant(at.reshape(1, -1)), values.dims, (None, None)), values, 1, "add")
    y = reshape(lo, y, (x.dims[0], planes // x.dims[0], *whole), [None] * (rank + 2))
    for i, size in enumerate(image):
        y = cut(y, 2 + i, pads[i], size)
    return y
