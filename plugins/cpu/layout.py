"""The order in which a tensor's dimensions lie in memory.

Convolutions keep images as pixels with the channels innermost, whatever the graph's order of dimensions: their results are strided
views. Operators that treat every element alike work in the order of memory and hand the view on, so that a network of them
never moves an image.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from infc.plugins.cpu.values import Tensor

if TYPE_CHECKING:
    from infc.plugins.cpu.lower import Lowering


def memory_order(tensor: Tensor) -> list[int]:
    """The axes from the outermost in memory to the innermost; those of size 1, and one that varies at run time, stay in place."""
    order = list(range(len(tensor.dims)))
    if tensor.symbol:
        return order
    moved = [i for i in order if tensor.dims[i] != 1]
    for place, axis in zip(moved, sorted(moved, key=lambda i: -tensor.strides[i]), strict=True):
        order[place] = axis
    return order


def permuted(tensor: Tensor, order: Sequence[int]) -> Tensor:
    return tensor.view([tensor.dims[i] for i in order], [tensor.strides[i] for i in order], [tensor.symbols[i] for i in order])


def inverse(order: Sequence[int]) -> list[int]:
    return sorted(range(len(order)), key=lambda i: order[i])


def common_order(tensors: Sequence[Tensor], rank: int) -> list[int]:
    """The order of the largest operand, so that the fewest elements are read across; the graph's own if that has fewer dimensions
    or repeats elements."""
    largest = max(tensors, key=lambda t: (t.constant is None, t.size))
    apart = all(d == 1 or s > 0 for d, s in zip(largest.dims, largest.strides, strict=True))
    return memory_order(largest) if len(largest.dims) == rank and apart else list(range(rank))


def new_in_order(lo: Lowering, dtype: str, dims: Sequence[int], symbols: Sequence[str | None], order: Sequence[int]) -> Tensor:
    """Fresh memory whose dimensions lie in ``order``."""
    made = lo.new(dtype, [dims[i] for i in order], [symbols[i] for i in order])
    return permuted(made, inverse(order))


def in_order(lo: Lowering, op: str, x: Tensor, dtype: str, words: Sequence[int]) -> Tensor:
    """A new tensor of an operator of one argument that takes elements as they lie in memory."""
    order = memory_order(x)
    x = lo.dense(permuted(x, order))
    y = lo.like(x, dtype)
    source, rows, inner = lo.matrix(x, 1 if x.symbol else None)
    lo.emit(op, [source], [y.ref((rows, inner))], words, rows, x.symbol)
    return permuted(y, inverse(order))


def channels_last(lo: Lowering, x: Tensor) -> Tensor:
    """``[N, C, spatial...]`` as ``[N, spatial..., C]`` whose pixels lie evenly apart, copied where they do not."""
    last = permuted(x, [0, *range(2, len(x.dims)), 1])
    return last if last.rows(len(last.dims) - 1) is not None and last.is_aligned else lo.copied(last)


def channels_first(y: Tensor) -> Tensor:
    """The inverse of channels_last, a view."""
    return permuted(y, [0, len(y.dims) - 1, *range(1, len(y.dims) - 1)])
