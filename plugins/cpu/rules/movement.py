"""Operators that move elements: views where strides can say it, copies elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import onnx_ir as ir

from infc.plugins.cpu.layout import common_order, inverse, memory_order, new_in_order, permuted
from infc.plugins.cpu.lower import Lowering, rule
from infc.plugins.cpu.values import NUMPY, Ref, Tensor, dense_strides, itemsize, product

WRITES_STRIDED = ("gemm", "conv", "depthwise", "winograd", "pool")  # operators whose rows of output may lie apart


def view(lo: Lowering, tensor: Tensor) -> Tensor:
    """A view, or its copy where views are switched off."""
    return tensor if lo.views or tensor.is_dense else lo.copied(tensor)


def reshape(lo: Lowering, x: Tensor, dims: Sequence[int], symbols: Sequence[str | None]) -> Tensor:
    """x in other dimensions; a view where the strides allow it."""
    lo.rectangle(x)
    if x.symbol and (not dims or symbols[0] != x.symbol or product(dims[1:]) != product(x.dims[1:])):
        raise lo.unsupported(f"the first dimension varies at run time and must stay: {list(x.dims)} to {list(dims)}")
    if product(dims) != x.size or not x.size:
        raise lo.unsupported(f"{list(x.dims)} does not reshape to {list(dims)}")
    strides = _reshaped_strides(x.dims, x.strides, dims)
    if strides is None:
        x = lo.copied(x)
        strides = list(dense_strides(dims))
    return x.view(dims, strides, symbols)


def transpose(x: Tensor, order: Sequence[int]) -> Tensor:
    return x.view([x.dims[i] for i in order], [x.strides[i] for i in order], [x.symbols[i] for i in order])


def expand(x: Tensor, dims: Sequence[int], symbols: Sequence[str | None]) -> Tensor:
    """x broadcast to ``dims``, by strides of zero."""
    missing = len(dims) - len(x.dims)
    own = [0] * missing + [s if d != 1 else 0 for d, s in zip(x.dims, x.strides, strict=True)]
    return x.view(dims, own, symbols)


def cut(x: Tensor, axis: int, start: int, size: int, step: int = 1) -> Tensor:
    """Every ``step``-th of the elements from ``start`` on along an axis."""
    dims, strides = list(x.dims), list(x.strides)
    dims[axis] = size
    strides[axis] *= step
    return x.view(dims, strides, x.symbols, x.offset + start * x.strides[axis])


def _reshaped_strides(dims: Sequence[int], strides: Sequence[int], new: Sequence[int]) -> list[int] | None:
    """Strides of the same elements in other dimensions, or None: groups of old and new dimensions of equal product are matched."""
    old = [(d, s) for d, s in zip(dims, strides, strict=True) if d != 1]
    result = [0] * len(new)
    at = 0
    axis = 0
    while axis < len(new):
        if new[axis] == 1:
            result[axis] = 1
            axis += 1
            continue
        group, last, size = [axis], at, old[at][0]
        while product([new[i] for i in group]) != size:
            if product([new[i] for i in group]) < size:
                group.append(group[-1] + 1)
            else:
                last += 1
                size *= old[last][0]
        for i in range(at, last):
            if old[i][1] != old[i + 1][1] * old[i + 1][0]:
                return None
        stride = old[last][1]
        for i in reversed(group):
            result[i] = stride
            stride *= new[i]
        at, axis = last + 1, group[-1] + 1
    return result


def axes_of(lo: Lowering, index: int, rank: int) -> list[int] | None:
    """Axes from a constant input or, in old opsets, from the attribute; counted from the front, each once."""
    axes = lo.ints(index)
    if axes is None:
        found = lo.attribute("axes")
        axes = None if found is None else list(found)
    return None if axes is None else list(dict.fromkeys(a % rank for a in axes))


@rule("Reshape")
def _reshape(lo: Lowering, node: ir.Node) -> Tensor:
    x, target = lo.input(0), lo.ints(1)
    assert target is not None
    if not lo.attribute("allowzero", 0):
        target = [x.dims[i] if d == 0 else d for i, d in enumerate(target)]
    symbols: list[str | None] = [None] * len(target)
    if x.symbol and target:
        inner = product(x.dims[1:])
        target[1:] = [inner // max(1, -product(target[1:])) if d == -1 else d for d in target[1:]]
        if product(target[1:]) == inner:
            target[0], symbols[0] = x.dims[0], x.symbol
    if -1 in target:
        rest = -product(target)
        target[target.index(-1)] = x.size // rest if rest else 0
    return reshape(lo, x, target, symbols)


@rule("Flatten")
def _flatten(lo: Lowering, node: ir.Node) -> Tensor:
    x = lo.input(0)
    axis = lo.attribute("axis", 1)
    axis += len(x.dims) if axis < 0 else 0
    return reshape(lo, x, (product(x.dims[:axis]), product(x.dims[axis:])), (x.symbol if axis == 1 else None, None))


@rule("Squeeze")
def _squeeze(lo: Lowering, node: ir.Node) -> Tensor:
    x = lo.input(0)
    axes = axes_of(lo, 1, len(x.dims))
    drop = [i for i, d in enumerate(x.dims) if d == 1 and not x.symbols[i]] if axes is None else axes
    keep = [i for i in range(len(x.dims)) if i not in drop]
    if any(x.symbols[i] or x.dims[i] != 1 for i in drop):
        raise lo.unsupported("a dimension that is not 1")
    return transpose(x, keep)


@rule("Unsqueeze")
def _unsqueeze(lo: Lowering, node: ir.Node) -> Tensor:
    x, axes = lo.input(0), lo.ints(1)
    if axes is None:
        axes = list(lo.attribute("axes", []))
    rank = len(x.dims) + len(axes)
    axes = [a % rank for a in axes]
    old = iter(zip(x.dims, x.strides, x.symbols, strict=True))
    parts: list[tuple[int, int, str | None]] = [(1, 1, None) if i in axes else next(old) for i in range(rank)]
    return x.view([d for d, _, _ in parts], [s for _, s, _ in parts], [s for _, _, s in parts])


@rule("Transpose")
def _transpose(lo: Lowering, node: ir.Node) -> Tensor:
    x = lo.input(0)
    order = lo.attribute("perm") or list(reversed(range(len(x.dims))))
    return view(lo, transpose(x, order))


@rule("Expand")
def _expand(lo: Lowering, node: ir.Node) -> Tensor:
    x, target = lo.input(0), lo.ints(1)
    assert target is not None
    shape = Tensor(x.buffer, x.dtype, tuple(target), (0,) * len(target))
    dims, symbols = lo.broadcast([x, shape])
    return view(lo, expand(x, dims, symbols))


@rule("Tile")
def _tile(lo: Lowering, node: ir.Node) -> Tensor:
    x, repeats = lo.input(0), lo.ints(1)
    assert repeats is not None
    if x.symbol and repeats[0] != 1:
        raise lo.unsupported("rows whose number is known at run time cannot be repeated")
    if all(r == 1 for r in repeats):
        return x
    lo.rectangle(x)
    for axes in range(0, len(x.dims), 2):  # two at a time, as many as loop nests have room for
        own = [r if axes <= i < axes + 2 else 1 for i, r in enumerate(repeats)]
        pairs = [(n, s) for r, d, s in zip(own, x.dims, x.strides, strict=True) for n, s in ((r, 0), (d, s))]
        lead = 1 if x.symbol else 0  # the varying dimension stays the first one
        wide = x.view([d for d, _ in pairs[lead:]], [s for _, s in pairs[lead:]], [x.symbol] + [None] * (len(pairs) - 1 - lead))
        x = reshape(lo, wide, [r * d for r, d in zip(own, x.dims, strict=True)], x.symbols)
    return x


@rule("Slice")
def _slice(lo: Lowering, node: ir.Node) -> Tensor:
    x = lo.input(0)
    starts, ends, axes, steps = (lo.ints(i) for i in range(1, 5))
    if starts is None or ends is None:
        starts, ends, axes = (list(lo.attribute(n, [])) or None for n in ("starts", "ends", "axes"))  # before opset 10
    assert starts is not None
    assert ends is not None
    axes = list(range(len(starts))) if axes is None else axes
    for start, end, axis, step in zip(starts, ends, axes, steps or [1] * len(starts), strict=True):
        axis %= len(x.dims)
        picked = range(*slice(start, _end(end, step, x.dims[axis]), step).indices(x.dims[axis]))
        if list(picked) == list(range(x.dims[axis])) and (not x.symbols[axis] or (start == 0 and end >= x.dims[axis])):
            continue
        if x.symbols[axis] or not picked:
            raise lo.unsupported("a slice of a dimension that varies at run time" if picked else "an empty slice")
        x = cut(x, axis, picked[0], len(picked), step)
    return view(lo, x)


def _end(end: int, step: int, size: int) -> int | None:
    """ONNX counts an end from the back once; below that, a negative step runs to the first element."""
    return None if step < 0 and end < -size else end


@rule("Split")
def _split(lo: Lowering, node: ir.Node) -> list[Tensor]:
    x, sizes = lo.input(0), lo.ints(1)
    lo.attribute("num_outputs")  # says what the node's outputs say
    axis = lo.attribute("axis", 0) % len(x.dims)
    if x.symbols[axis]:
        raise lo.unsupported("a split of a dimension that varies at run time")
    if sizes is None:
        sizes = list(lo.attribute("split", []))
    if not sizes:
        chunk = -(-x.dims[axis] // len(node.outputs))
        sizes = [min(chunk, x.dims[axis] - i * chunk) for i in range(len(node.outputs))]
    return [view(lo, cut(x, axis, end - size, size)) for size, end in zip(sizes, accumulate(sizes), strict=True)]


@rule("Concat")
def _concat(lo: Lowering, node: ir.Node) -> Tensor:
    given = [(v, t) for v, t in zip(node.inputs, lo.inputs(), strict=True) if 0 not in t.dims]
    parts = [t for _, t in given]
    axis = lo.attribute("axis") % len(parts[0].dims)
    if any(t.symbols[axis] for t in parts):
        raise lo.unsupported("a dimension that varies at run time")
    dims = list(parts[0].dims)
    dims[axis] = sum(t.dims[axis] for t in parts)
    symbols = next((t.symbols for t in parts if t.symbol), parts[0].symbols)
    y = new_in_order(lo, parts[0].dtype, dims, symbols, list(range(len(dims))) if any(symbols) else common_order(parts, len(dims)))
    at = 0
    for value, part in given:
        target = cut(y, axis, at, part.dims[axis])
        if not (lo.views and value is not None and _write_there(lo, value, part, target)):
            lo.copy_into(part, target)
        at += part.dims[axis]
    return y


def _write_there(lo: Lowering, value: ir.Value, part: Tensor, target: Tensor) -> bool:
    """Has the product or window that computes the value ``part`` write into ``target`` instead of memory of its own."""
    order = memory_order(part)
    place = permuted(target, order)
    rows = place.rows(len(order) - 1)
    users = lo.uses.get(part.buffer, [])
    if (rows is None or not permuted(part, order).is_whole or not target.is_aligned or len(users) != 1
            or lo.steps[users[0]].op not in WRITES_STRIDED or lo.values.held[part.buffer] != 1 or lo.values.get(value) is not part
            or len(value.uses()) != 1 or value.is_graph_output() or part.buffer.space != "ARENA"):
        return False
    step = lo.steps[users[0]]
    old = step.outputs[0]
    if len(step.outputs) > 1 or old.dims != rows[:2]:
        return False
    step.outputs = [place.ref(old.dims, rows[2])]
    lo.uses.setdefault(target.buffer, []).append(users[0])
    del lo.uses[part.buffer]
    lo.values[value] = target
    return True


@rule("Pad")
def _pad(lo: Lowering, node: ir.Node) -> Tensor:
    x, pads, value, axes = lo.input(0), lo.ints(1), lo.optional(2), lo.ints(3)
    assert pads is not None
    mode, rank = lo.attribute("mode", "constant"), len(x.dims)
    axes = list(range(rank)) if axes is None else [a % rank for a in axes]
    before, after = [0] * rank, [0] * rank
    for i, axis in enumerate(axes):
        before[axis], after[axis] = pads[i], pads[i + len(axes)]
        if x.symbols[axis] and (before[axis] or after[axis]):
            raise lo.unsupported("pads of a dimension that varies at run time")
    for axis, (b, a) in enumerate(zip(before, after, strict=True)):  # negative pads cut
        if b < 0 or a < 0:
            x = cut(x, axis, max(-b, 0), x.dims[axis] + min(b, 0) + min(a, 0))
    before, after = [max(b, 0) for b in before], [max(a, 0) for a in after]
    if mode == "constant":
        return padded(lo, x, before, after, value)
    if mode not in ("edge", "reflect", "wrap"):
        raise lo.unsupported(f"mode {mode}")
    for axis, (b, a) in enumerate(zip(before, after, strict=True)):
        if b or a:
            x = take(lo, x, np.pad(np.arange(x.dims[axis]), (b, a), mode), axis)
    return x


def padded(lo: Lowering, x: Tensor, before: Sequence[int], after: Sequence[int], value: Tensor | None = None) -> Tensor:
    """x with zeros, or a value, around it."""
    dims = [b + d + a for b, d, a in zip(before, x.dims, after, strict=True)]
    y = new_in_order(lo, x.dtype, dims, x.symbols, memory_order(x))
    fill = np.zeros(1, NUMPY[x.dtype]) if value is None else value.constant
    if fill is None:
        assert value is not None
        lo.copy_into(expand(value, y.dims, y.symbols), y)
    else:
        data = np.zeros(1, np.uint64)
        data.view(np.uint8)[: itemsize(x.dtype)] = np.frombuffer(fill.reshape(-1)[:1].tobytes(), np.uint8)
        low, high = (int(w) for w in data.view("<u4"))
        lo.emit("fill", [], [Ref(y.buffer, y.dtype, (y.size,), 0, 1)], (low, high), 1)
    inner = y
    for axis, (b, d) in enumerate(zip(before, x.dims, strict=True)):
        inner = cut(inner, axis, b, d)
    lo.copy_into(x, inner)
    return y


def in_memory_order(lo: Lowering, x: Tensor, axis: int, run: Callable[[Tensor, int, int], Tensor]) -> Tensor:
    """What ``run`` makes of x, dense in its own order of memory, given the axis there and the number of rows before it."""
    if x.symbols[axis]:
        raise lo.unsupported("along a dimension that varies at run time")
    order = memory_order(x)
    x = lo.dense(permuted(x, order))
    rows = product(x.dims[: order.index(axis)])
    if x.symbol and rows != x.dims[0]:
        raise lo.unsupported("rows whose number is known at run time must be the only leading dimension")
    return permuted(run(x, order.index(axis), rows), inverse(order))


def take(lo: Lowering, x: Tensor, places: np.ndarray, axis: int) -> Tensor:
    """The elements at constant places along an axis; a view where they lie evenly."""
    size = len(places)
    if not size:
        raise lo.unsupported("a tensor without elements")
    steps = np.unique(np.diff(places))
    if len(steps) <= 1 and not x.symbols[axis]:
        return cut(x, axis, int(places[0]), size, int(steps[0]) if size > 1 else 1)

    def run(x: Tensor, axis: int, rows: int) -> Tensor:
        inner = product(x.dims[axis + 1 :])
        y = lo.new(x.dtype, [size if i == axis else d for i, d in enumerate(x.dims)], x.symbols)
        lo.emit("gather", [x.ref((rows, x.dims[axis], inner)), lo.constant(places.astype(np.int32)).ref((size,))],
                [y.ref((rows, size, inner))], (x.dims[axis], inner), rows, x.symbol)
        return y

    return in_memory_order(lo, x, axis, run)


@rule("Gather")
def _gather(lo: Lowering, node: ir.Node) -> Tensor:
    return gather(lo, lo.input(0), lo.input(1), lo.attribute("axis", 0))


@rule("ArrayFeatureExtractor", domain="ai.onnx.ml")
def _array_feature_extractor(lo: Lowering, node: ir.Node) -> Tensor:
    x, indices = lo.input(0), lo.input(1)
    if len(x.dims) == 1:
        x = x.view((1, *x.dims), (0, *x.strides))
    return gather(lo, x, reshape(lo, indices, (indices.size,), (None,)), -1)


def gather(lo: Lowering, data: Tensor, indices: Tensor, axis: int) -> Tensor:
    """The elements at indices along an axis, in whose place their dimensions come."""
    lo.want(indices, "i32", "i64")
    axis %= len(data.dims)
    if data.symbols[axis] and axis:
        raise lo.unsupported("indices into a dimension that varies at run time")
    if indices.constant is not None and indices.size == 1:
        at = int(indices.constant.reshape(-1)[0]) % data.dims[axis]
        one = cut(data, axis, at, 1)
        keep = [i for i in range(len(data.dims)) if i != axis]
        taken = view(lo, transpose(one, keep))
        ones = len(indices.dims)
        return taken.view((*taken.dims[:axis], *indices.dims, *taken.dims[axis:]),
                          (*taken.strides[:axis], *[1] * ones, *taken.strides[axis:]),
                          (*taken.symbols[:axis], *[None] * ones, *taken.symbols[axis:]))
    data, indices = lo.dense(data), lo.dense(indices)
    if axis == 0 and len(data.dims) == 2 and data.constant is not None and data.dtype == "f32" and indices.constant is None:
        narrow = lo.table(data)
        if narrow is not data:
            return _lookup(lo, narrow, indices)
    dims = (*data.dims[:axis], *indices.dims, *data.dims[axis + 1 :])
    if indices.symbol or data.symbols[axis]:
        if axis != 0 or len(data.dims) < 2 or data.dtype != "f32" or (indices.symbol and indices.size != indices.dims[0]):
            raise lo.unsupported("at run-time many indices, only rows of an f32 matrix can be taken")
        return _lookup(lo, lo.table(data) if len(data.dims) == 2 else data, indices)
    y = lo.new(data.dtype, dims, (*data.symbols[:axis], *[None] * (len(dims) - axis)) if data.symbol else ())
    rows, inner = product(data.dims[:axis]), product(data.dims[axis + 1 :])
    if data.symbol and rows != data.dims[0]:
        raise lo.unsupported("rows whose number is known at run time must be the only leading dimension")
    lo.emit("gather", [data.ref((rows, data.dims[axis], inner)), indices.ref((indices.size,))],
            [y.ref((rows, indices.size, inner))], (data.dims[axis], inner), rows, data.symbol)
    return y


def _lookup(lo: Lowering, table: Tensor, ids: Tensor) -> Tensor:
    """Rows of a table, as f32; the number of ids or of rows may be known at run time."""
    width, count = product(table.dims[1:]), product(ids.dims)
    y = lo.new("f32", (*ids.dims, *table.dims[1:]), (*ids.symbols, *[None] * (len(table.dims) - 1)))
    whole = Ref(table.buffer, table.dtype, (table.dims[0], width), table.offset, width)  # rows beyond those in use hold anything
    lo.emit("embed_sum", [ids.ref((count,)), whole], [y.ref((count, width))], (1,), count, ids.symbol)
    return y


@rule("Constant")
def _constant(lo: Lowering, node: ir.Node) -> Tensor:
    tensor = lo.attribute("value")
    if tensor is not None:
        return lo.constant(tensor.numpy())
    for names, dtype in ((("value_float", "value_floats"), np.float32), (("value_int", "value_ints"), np.int64)):
        for name in names:
            value = lo.attribute(name)
            if value is not None:
                return lo.constant(np.array(value, dtype))
    raise lo.unsupported("a constant that is no tensor")


@rule("ConstantOfShape")
def _constant_of_shape(lo: Lowering, node: ir.Node) -> Tensor:
    shape, value = lo.ints(0), lo.attribute("value")
    assert shape is not None
    one = np.zeros(1, np.float32) if value is None else value.numpy()
    return expand(lo.constant(one.reshape(())), shape, ())


@rule("Range")
def _range(lo: Lowering, node: ir.Node) -> Tensor:
    values = [lo.input(i).constant for i in range(3)]
    if any(v is None for v in values):
        raise lo.unsupported("its inputs must be constants")
    bounds: list[Any] = [v.item() for v in values if v is not None]
    return lo.constant(np.arange(*bounds, dtype=NUMPY[lo.input(0).dtype]))


@rule("Shape")
def _shape(lo: Lowering, node: ir.Node) -> Tensor:
    x = lo.input(0)
    rank = len(x.dims)
    first, last, _ = slice(lo.attribute("start", 0), lo.attribute("end", rank)).indices(rank)
    if any(x.symbols[first:last]):
        raise lo.unsupported("the size of a dimension that varies at run time")
    return lo.constant(np.array(x.dims[first:last], np.int64))


@rule("Size")
def _size(lo: Lowering, node: ir.Node) -> Tensor:
    x = lo.input(0)
    if any(x.symbols):
        raise lo.unsupported("the size of a dimension that varies at run time")
    return lo.constant(np.array(x.size, np.int64))
