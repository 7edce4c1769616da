"""Fourier transforms."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from infc.plugins.cpu.lower import Lowering, rule
from infc.plugins.cpu.rules.elementwise import binary
from infc.plugins.cpu.rules.movement import transpose
from infc.plugins.cpu.values import Tensor


def dft(lo: Lowering, x: Tensor, length: int, inverse: bool, onesided: bool) -> Tensor:
    """Along the last dimension but one of ``[..., n, parts]``: real numbers, or complex ones in two parts. The result is complex,
    but real for the inverse of a one-sided transform."""
    x = lo.dense(lo.want(x, "f32"))
    source, rows, _ = lo.matrix(x, len(x.dims) - 2)
    real = inverse and onesided
    out = length // 2 + 1 if onesided and not inverse else length
    angles = 2 * np.pi * np.arange(length) / length
    table = lo.constant(np.stack([np.cos(angles), np.sin(angles)], axis=1))
    y = lo.new("f32", (*x.dims[:-2], out, 1 if real else 2), x.symbols)
    lo.emit("dft", [source, table.ref(table.dims)], [y.ref((rows, out * y.dims[-1]))],
            (*x.dims[-2:], length, out, int(inverse), int(real)), rows, x.symbol)
    return y


@rule("DFT")
def _dft(lo: Lowering, node: ir.Node) -> Tensor:
    x, given, axes = lo.input(0), lo.ints(1), lo.ints(2)
    inverse, onesided = bool(lo.attribute("inverse", 0)), bool(lo.attribute("onesided", 0))
    axis = (axes[0] if axes else lo.attribute("axis", -2)) % len(x.dims)
    order = [i for i in range(len(x.dims) - 1) if i != axis] + [axis, len(x.dims) - 1]
    x = transpose(x, order)
    length = given[0] if given else 2 * (x.dims[-2] - 1) if inverse and onesided else x.dims[-2]
    return transpose(dft(lo, x, length, inverse, onesided), [order.index(i) for i in range(len(order))])


@rule("STFT")
def _stft(lo: Lowering, node: ir.Node) -> Tensor:
    """Frames are views of the signal that overlap."""
    x, step, window, given = lo.input(0), lo.ints(1), lo.optional(2), lo.ints(3)
    assert step is not None
    if len(x.dims) == 2:
        x = x.view((*x.dims, 1), (*x.strides, 1), (*x.symbols, None))
    batch, signal, parts = x.dims
    length = given[0] if given else window.dims[0] if window is not None else signal
    count = 1 + (signal - length) // step[0]
    outer, along, inner = x.strides
    frames = x.view((batch, count, length, parts), (outer, along * step[0], along, inner), (x.symbol, None, None, None))
    if window is not None:
        frames = binary(lo, frames, window.view((*window.dims, 1), (*window.strides, 1)), "mul")
    return dft(lo, frames, length, False, bool(lo.attribute("onesided", 1)))
