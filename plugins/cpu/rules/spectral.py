"""Fourier transforms, as products with constant matrices."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from infc.plugins.cpu.lower import Lowering, rule
from infc.plugins.cpu.rules.elementwise import binary
from infc.plugins.cpu.rules.linear import gemm
from infc.plugins.cpu.rules.movement import cut, reshape, transpose
from infc.plugins.cpu.values import Tensor

LARGEST = 1 << 26  # elements of a matrix


def dft_matrix(n: int, length: int, parts: int, inverse: bool, onesided: bool) -> np.ndarray:
    """Takes n elements of ``parts`` (1: real, 2: complex) to the transform of ``length``, whose elements are complex, or real for
    the inverse of a one-sided one. float32 ``[n * parts, out * out_parts]``."""
    out = length // 2 + 1 if onesided and not inverse else length
    used = min(n, length)
    turns = np.outer(np.arange(used), np.arange(out)) % length / length
    wave = np.exp((2j if inverse else -2j) * np.pi * turns)
    if inverse:
        wave /= length
    if inverse and onesided:  # the missing half is the conjugate of this one
        weight = np.full((used, 1), 2.0)
        weight[0] = 1
        if length % 2 == 0 and used > length // 2:
            weight[length // 2] = 1
        weight[length // 2 + 1 :] = 0
        matrix = np.zeros((n, parts, out, 1))
        for part, values in zip(range(parts), (wave.real * weight, -wave.imag * weight), strict=False):
            matrix[:used, part, :, 0] = values
    else:
        matrix = np.zeros((n, parts, out, 2))
        for part, values in zip(range(parts), (wave, 1j * wave), strict=False):
            matrix[:used, part, :, 0], matrix[:used, part, :, 1] = values.real, values.imag
    return matrix.reshape(n * parts, -1).astype(np.float32)


def _transform(lo: Lowering, x: Tensor, length: int, inverse: bool, onesided: bool, window: np.ndarray | None = None) -> Tensor:
    """Of the last dimension but one of ``[..., n, parts]``."""
    *rows, n, parts = x.dims
    if 4 * n * length > LARGEST:
        raise lo.unsupported(f"a transform of {length} elements")
    matrix = dft_matrix(n, length, parts, inverse, onesided)
    if window is not None:
        matrix = matrix * np.repeat(window, parts)[:, None]
    out_parts = 1 if inverse and onesided else 2
    y = gemm(lo, reshape(lo, x, (*rows, n * parts), x.symbols[:-1]), matrix)
    return reshape(lo, y, (*rows, matrix.shape[1] // out_parts, out_parts), [*y.symbols[:-1], None, None])


@rule("DFT")
def _dft(lo: Lowering, node: ir.Node) -> Tensor:
    x, given, axes = lo.want(lo.input(0), "f32"), lo.ints(1), lo.ints(2)
    inverse, onesided = bool(lo.attribute("inverse", 0)), bool(lo.attribute("onesided", 0))
    axis = (axes[0] if axes else lo.attribute("axis", -2)) % len(x.dims)
    order = [i for i in range(len(x.dims) - 1) if i != axis] + [axis, len(x.dims) - 1]
    x = transpose(x, order)
    n = x.dims[-2]
    length = given[0] if given else 2 * (n - 1) if inverse and onesided else n
    return transpose(_transform(lo, x, length, inverse, onesided), [order.index(i) for i in range(len(order))])


@rule("STFT")
def _stft(lo: Lowering, node: ir.Node) -> Tensor:
    """Frames are windows of the signal that overlap; a constant window goes into the matrix."""
    x, step, window, given = lo.want(lo.input(0), "f32"), lo.ints(1), lo.optional(2), lo.ints(3)
    assert step is not None
    signal = x.dims[1]
    length = given[0] if given else window.dims[0] if window is not None else signal
    count = 1 + (signal - length) // step[0]
    s = x.strides
    frames = cut(x, 1, 0, length).view((x.dims[0], count, length, x.dims[2] if len(x.dims) > 2 else 1),
                                       (s[0], s[1] * step[0], s[1], s[2] if len(s) > 2 else 1), (x.symbol, None, None, None))
    known = window.constant if window is not None else None
    if window is not None and known is None:
        frames = binary(lo, frames, window.view((*window.dims, 1), (*window.strides, 1)), "mul")
    return _transform(lo, frames, length, False, bool(lo.attribute("onesided", 1)), known)
