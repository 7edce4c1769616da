"""Quantised operators: quantisation itself, and products and convolutions of 8-bit integers, which are exact in int32."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from infc.plugins.cpu.layout import channels_first, channels_last, inverse, memory_order, permuted
from infc.plugins.cpu.lower import Lowering, rule
from infc.plugins.cpu.rules.elementwise import binary, scalar, select
from infc.plugins.cpu.rules.linear import matmul
from infc.plugins.cpu.rules.movement import cut, reshape, transpose
from infc.plugins.cpu.rules.rows import reduce
from infc.plugins.cpu.rules.types import wanted_type
from infc.plugins.cpu.rules.window import Window, window
from infc.plugins.cpu.types import cast
from infc.plugins.cpu.values import Tensor, product


def _layout(lo: Lowering, x: Tensor, scale: Tensor, axis: int, block: int) -> tuple[int, int, list[int]]:
    """Rows of x, its elements a row, and the words that say which scale is whose; see ops.py."""
    if scale.size == 1:
        rows = x.dims[0] if x.dims else 1
        return rows, x.size // rows, [1, x.size // rows, 1, 0, 0, 0]
    axis %= len(x.dims)
    rows, n, inner = product(x.dims[:axis]), x.dims[axis], product(x.dims[axis + 1 :])
    if x.symbol and axis == 0:
        raise lo.unsupported("scales along a dimension that varies at run time")
    if block:
        groups = -(-n // block)
        if scale.dims != (*x.dims[:axis], groups, *x.dims[axis + 1 :]):
            raise lo.unsupported(f"scales {list(scale.dims)} for {list(x.dims)} in blocks of {block}")
        return rows, n * inner, [n, inner, block, groups * inner, inner, 1]
    if scale.dims != (n,):
        raise lo.unsupported(f"scales {list(scale.dims)} for axis {axis} of {list(x.dims)}")
    if inner == 1:  # neighbours have neighbouring scales
        return rows, n, [1, n, 1, 0, 0, 1]
    return rows, n * inner, [n, inner, 1, 0, 1, 0]


def _emit(lo: Lowering, op: str, x: Tensor, scale: Tensor, zero: Tensor | None, dtype: str, layout: tuple[int, int, list[int]],
          more: Sequence[int] = ()) -> Tensor:
    rows, inner, words = layout
    lo.rectangle(x)
    if scale.size == 1 and not x.is_dense:  # elements are taken as they lie in memory
        order = memory_order(x)
        moved = permuted(x, order)
        y = _emit(lo, op, lo.dense(moved), scale, zero, dtype, _layout(lo, moved, scale, 0, 0), more)
        return permuted(y, inverse(order))
    x = lo.dense(x)
    y = lo.like(x, dtype)
    params = [lo.dense(p) for p in (scale, zero) if p is not None]
    if x.symbol and rows != x.dims[0]:
        raise lo.unsupported("rows whose number is known at run time must be the only leading dimension")
    lo.emit(op, [x.ref((rows, inner)), *(p.ref((p.size,)) for p in params)], [y.ref((rows, inner))],
            [int(zero is not None), *words, *more], rows, x.symbol)
    return y


def quantize(lo: Lowering, x: Tensor, scale: Tensor, zero: Tensor | None, dtype: str, axis: int = 1, block: int = 0,
             saturate: bool = True) -> Tensor:
    """round(x / scale) + zero, held to the range of ``dtype``; x and scale are taken as f32."""
    x, scale = cast(lo, x, "f32"), cast(lo, scale, "f32")
    return _emit(lo, "quantize", x, scale, zero, dtype, _layout(lo, x, scale, axis, block), [int(saturate)])


def dequantize(lo: Lowering, x: Tensor, scale: Tensor, zero: Tensor | None, axis: int = 1, block: int = 0,
               parts: int = 1) -> Tensor:
    """(x - zero / parts) * scale in f32; known now if all of it is."""
    scale = cast(lo, scale, "f32")
    layout = _layout(lo, x, scale, axis, block)
    if x.constant is None or scale.constant is None or (zero is not None and zero.constant is None):
        if parts > 1:
            raise lo.unsupported("parts of zeros where not all is constant")
        return _emit(lo, "dequantize", x, scale, zero, "f32", layout)
    wide = x.constant.astype(np.float32)
    if zero is not None:
        wide = wide - _spread(zero.constant, x, axis, block).astype(np.float32) / np.float32(parts)
    wide = wide * _spread(scale.constant, x, axis, block)
    return lo.constant(np.asarray(wide, np.float32).reshape(x.dims))


def _spread(values: np.ndarray | None, x: Tensor, axis: int, block: int) -> np.ndarray:
    """Scales or zeros so that they broadcast against x."""
    assert values is not None
    if values.size == 1:
        return values.reshape(())
    axis %= len(x.dims)
    if block:
        return np.repeat(values, block, axis)[tuple(slice(d) for d in x.dims)]
    return values.reshape(-1, *[1] * (len(x.dims) - 1 - axis))


@rule("QuantizeLinear")
def _quantize_linear(lo: Lowering, node: ir.Node) -> Tensor:
    x, scale, zero = lo.input(0), lo.input(1), lo.optional(2)
    lo.attribute("precision")  # the division is done in f32, whatever is asked for
    named = wanted_type(lo, "output_dtype") if lo.attribute("output_dtype", 0) else "u8"
    dtype = zero.dtype if zero is not None else named
    if dtype.startswith("f8"):
        zero = None  # it tells the type and is not added
    return quantize(lo, x, scale, zero, dtype, lo.attribute("axis", 1), lo.attribute("block_size", 0),
                    bool(lo.attribute("saturate", 1)))


@rule("DequantizeLinear")
def _dequantize_linear(lo: Lowering, node: ir.Node) -> Tensor:
    x, scale = lo.input(0), lo.input(1)
    zero = None if x.dtype.startswith("f") else lo.optional(2)  # floats have none, though an input may be there
    y = dequantize(lo, x, scale, zero, lo.attribute("axis", 1), lo.attribute("block_size", 0))
    return cast(lo, y, wanted_type(lo, "output_dtype") if lo.attribute("output_dtype", 0) else scale.dtype)


@rule("DynamicQuantizeLinear")
def _dynamic_quantize_linear(lo: Lowering, node: ir.Node) -> list[Tensor]:
    x = lo.input(0)
    zero = scalar(lo, 0.0)
    bounds = [binary(lo, reduce(lo, x, kind, range(len(x.dims)), False) if x.dims else x, zero, kind) for kind in ("min", "max")]
    extent = binary(lo, bounds[1], bounds[0], "sub")
    extent = select(lo, binary(lo, extent, zero, "equal"), scalar(lo, 1.0), extent)
    scale = binary(lo, extent, scalar(lo, 255.0), "div")
    point = quantize(lo, binary(lo, zero, bounds[0], "sub"), scale, None, "u8")
    return [quantize(lo, x, scale, point, "u8"), scale, point]


# ---- Products and convolutions: zeros are subtracted first, so that sums are plain

def _centred(lo: Lowering, x: Tensor, zero: Tensor | None, axis: int) -> Tensor:
    """x - zero in int32; a vector of zeros runs along ``axis``."""
    x = cast(lo, x, "i32")
    if zero is None or (zero.constant is not None and not zero.constant.any()):
        return x
    zero = cast(lo, zero, "i32")
    if zero.size == 1:
        zero = zero.view((), ())
    elif len(zero.dims) == 1:
        shape = [1] * len(x.dims)
        shape[axis] = zero.size
        zero = reshape(lo, zero, shape, [None] * len(shape))
    return binary(lo, x, zero, "sub")


def _requantize(lo: Lowering, sums: Tensor, scales: Sequence[Tensor], axis: int, y_scale: Tensor, y_zero: Tensor | None,
                dtype: str) -> Tensor:
    """sums * scales / y_scale + y_zero, rounded; a vector of scales runs along ``axis``."""
    factor = scalar(lo, 1.0)
    for scale in scales:
        factor = _times(lo, factor, cast(lo, scale, "f32"))
    if factor.size == 1:
        factor = factor.view((), ())
    elif len(factor.dims) == 1:
        shape = [1] * len(sums.dims)
        shape[axis] = factor.size
        factor = reshape(lo, factor, shape, [None] * len(shape))
    return quantize(lo, binary(lo, cast(lo, sums, "f32"), factor, "mul"), y_scale, y_zero, dtype)


def _times(lo: Lowering, a: Tensor, b: Tensor) -> Tensor:
    if a.constant is not None and b.constant is not None:
        return lo.constant(np.asarray(a.constant * b.constant, np.float32))
    return binary(lo, a, b, "mul")


def _product(lo: Lowering, a: Tensor, b: Tensor) -> Tensor:
    """a @ b of int32 as MatMul has it."""
    wide_a = a if len(a.dims) > 1 else a.view((1, *a.dims), (a.dims[0], *a.strides))
    wide_b = b if len(b.dims) > 1 else b.view((*b.dims, 1), (*b.strides, 1))
    y = matmul(lo, wide_a, wide_b)
    drop = [i for i, t in ((len(y.dims) - 2, a), (len(y.dims) - 1, b)) if len(t.dims) == 1]
    return transpose(y, [i for i in range(len(y.dims)) if i not in drop])


@rule("MatMulInteger")
def _matmul_integer(lo: Lowering, node: ir.Node) -> Tensor:
    return _product(lo, _centred(lo, lo.input(0), lo.optional(2), -2), _centred(lo, lo.input(1), lo.optional(3), -1))


@rule("QLinearMatMul")
def _qlinear_matmul(lo: Lowering, node: ir.Node) -> Tensor:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = lo.inputs()
    sums = _product(lo, _centred(lo, a, a_zero, -2), _centred(lo, b, b_zero, -1))
    return _requantize(lo, sums, [a_scale, b_scale], -1, y_scale, y_zero, y_zero.dtype)


def _convolution(lo: Lowering, x: Tensor, weight: Tensor) -> Tensor:
    """The node's convolution of int32 x [N, C, spatial...] and weight [M, C / groups, kernel...]: products of gathered pixels."""
    groups, kernel = lo.attribute("group", 1), weight.dims[2:]
    lo.attribute("kernel_shape")
    w = window(lo, x.dims[2:], kernel)
    if x.dims[1] != weight.dims[1] * groups or weight.dims[0] % groups:
        raise lo.unsupported(f"{x.dims[1]} channels in {groups} groups and weights {list(weight.dims)}")
    if x.symbol:
        raise lo.unsupported("images whose number is known at run time")
    x = _padded(lo, channels_last(lo, x), w)
    inside, columns, taps = weight.dims[1], weight.dims[0] // groups, product(kernel)
    matrix = lo.dense(weight).view((groups, taps, inside, columns),
                                   (columns * inside * taps, 1, taps, inside * taps))
    matrix = reshape(lo, lo.copied(matrix), (groups, taps * inside, columns), (None,) * 3)
    pixels = x.dims[0] * product(w.out)
    gathered = lo.new("i32", (groups, x.dims[0], *w.out, taps, inside))
    for tap, place in enumerate(np.ndindex(*kernel)):
        source = x
        for axis, (at, out, stride, dilation) in enumerate(zip(place, w.out, w.stride, w.dilation, strict=True), 1):
            source = cut(source, axis, at * dilation, out, stride)
        for group in range(groups):
            last = len(source.dims) - 1
            target = cut(cut(gathered, 0, group, 1), last + 1, tap, 1)
            lo.copy_into(cut(source, last, group * inside, inside), target.view(
                (*target.dims[1:-2], inside), (*target.strides[1:-2], target.strides[-1])))
    y = matmul(lo, reshape(lo, gathered, (groups, pixels, taps * inside), (None,) * 3), matrix)
    y = lo.copied(transpose(y, (1, 0, 2))) if groups > 1 else y
    return channels_first(reshape(lo, y, (x.dims[0], *w.out, groups * columns), (None,) * (len(w.out) + 2)))


def _padded(lo: Lowering, x: Tensor, w: Window) -> Tensor:
    """Pixels [N, spatial..., C] with zeros around them, as many as the window reaches."""
    need = [(o - 1) * s + (k - 1) * d + 1 for o, s, k, d in zip(w.out, w.stride, w.kernel, w.dilation, strict=True)]
    if not any(w.pad) and all(n <= size for n, size in zip(need, w.size, strict=True)):
        return x
    size = [max(n, p + s) for n, p, s in zip(need, w.pad, w.size, strict=True)]
    y = lo.new(x.dtype, (x.dims[0], *size, x.dims[-1]))
    lo.emit("fill", [], [y.ref((y.size,), 1)], (0, 0), 1)
    inside = y
    for axis, (pad, n) in enumerate(zip(w.pad, w.size, strict=True), 1):
        inside = cut(inside, axis, pad, n)
    lo.copy_into(x, inside)
    return y


@rule("ConvInteger")
def _conv_integer(lo: Lowering, node: ir.Node) -> Tensor:
    return _convolution(lo, _centred(lo, lo.input(0), lo.optional(2), 1), _centred(lo, lo.input(1), lo.optional(3), 0))


@rule("QLinearConv")
def _qlinear_conv(lo: Lowering, node: ir.Node) -> Tensor:
    x, x_scale, x_zero, weight, w_scale, w_zero, y_scale, y_zero = (lo.input(i) for i in range(8))
    sums = _convolution(lo, _centred(lo, x, x_zero, 1), _centred(lo, weight, w_zero, 0))
    bias = lo.optional(8)
    if bias is not None:
        sums = binary(lo, sums, reshape(lo, bias, (bias.size, *[1] * (len(sums.dims) - 2)), [None] * (len(sums.dims) - 1)), "add")
    return _requantize(lo, sums, [x_scale, w_scale], 1, y_scale, y_zero, y_zero.dtype)
