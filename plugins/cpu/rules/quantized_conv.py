"""Convolutions of quantised pixels and weights, whose results may stay quantised."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from infc.compiler.artifact.ops import UNARY
from infc.plugins.cpu.layout import channels_first, channels_last
from infc.plugins.cpu.lower import Lowering, rule, word
from infc.plugins.cpu.pack import PANEL
from infc.plugins.cpu.pack_dw import by_place, taps_i8
from infc.plugins.cpu.pack_i8 import i8_k4n32
from infc.plugins.cpu.rules.conv import conv, kernel_of, merged_groups
from infc.plugins.cpu.rules.elementwise import binary
from infc.plugins.cpu.rules.quant import dequantize, quantize
from infc.plugins.cpu.rules.window import Window, window
from infc.plugins.cpu.types import cast
from infc.plugins.cpu.values import Ref, Tensor, product

MAX_K = 65536  # of conv_i8: longer sums could leave int32
_CLAMPS = {"identity": (-math.inf, math.inf), "relu": (0.0, math.inf), "relu6": (0.0, 6.0)}  # activations that are bounds


@dataclass(frozen=True)
class _Scale:
    """(q - zero) * step, of a tensor of bytes, with numbers that are known."""

    step: float
    zero: int


@dataclass(frozen=True)
class _Product:
    """An infc.QuantizedConv by name (docs/domain.md)."""

    q: Tensor
    q_scale: Tensor
    q_zero: Tensor | None
    w: Tensor
    w_scale: Tensor
    w_zero: Tensor | None
    bias: Tensor | None
    residual: Tensor | None
    y_scale: Tensor | None
    y_zero: Tensor | None
    r_scale: Tensor | None
    r_zero: Tensor | None
    window: Window
    groups: int
    activation: str
    residual_first: bool

    @property
    def is_depthwise(self) -> bool:
        return self.groups == self.q.dims[1] == self.w.dims[0] and self.residual is None


@rule("QuantizedConv", domain="infc")
def _quantized_conv(lo: Lowering, node: ir.Node) -> Tensor:
    q, w = lo.input(0), lo.input(3)
    w_zero, bias, residual, y_scale, y_zero, r_scale, r_zero = (lo.optional(i) for i in range(5, 12))
    p = _Product(q, lo.input(1), lo.optional(2), w, lo.input(4), w_zero, bias, residual, y_scale, y_zero, r_scale, r_zero,
                 window(lo, q.dims[2:], kernel_of(lo, w, q)), lo.attribute("group", 1),
                 lo.attribute("activation", "") or "identity", bool(lo.attribute("residual_first", 0)))
    if q.dims[1] != w.dims[1] * p.groups or w.dims[0] % p.groups:
        raise lo.unsupported(f"{q.dims[1]} channels in {p.groups} groups and weights {list(w.dims)}")
    if q.symbol:
        raise lo.unsupported("images whose number is known at run time")
    y = _in_bytes(lo, p)
    return _in_f32(lo, p) if y is None else y


def _in_f32(lo: Lowering, p: _Product) -> Tensor:
    """Any: of what the operands stand for."""
    residual = p.residual
    if residual is not None and p.r_scale is not None:
        residual = dequantize(lo, residual, p.r_scale, p.r_zero)
    x, w = dequantize(lo, p.q, p.q_scale, p.q_zero), dequantize(lo, p.w, p.w_scale, p.w_zero, 0)
    y = conv(lo, x, w, p.window, p.groups, p.bias, p.activation, residual, p.residual_first)
    return y if p.y_scale is None else quantize(lo, y, p.y_scale, p.y_zero, p.y_zero.dtype if p.y_zero is not None else "u8")


def _in_bytes(lo: Lowering, p: _Product) -> Tensor | None:
    """In integers, if all the numbers are known that this takes."""
    x, weight, scales = _scale(p.q_scale, p.q_zero, p.q.dtype), p.w.constant, p.w_scale.constant
    if x is None or weight is None or scales is None or p.w.dtype != "i8" or p.w_scale.size not in (1, p.w.dims[0]):
        return None
    if (p.w_zero is not None and (p.w_zero.constant is None or p.w_zero.constant.any())) or (
            p.bias is not None and p.bias.constant is None) or product(p.w.dims[1:]) * p.groups > MAX_K:
        return None
    q = p.q
    if q.dtype == "i8":
        q = cast(lo, binary(lo, cast(lo, q, "i32"), lo.constant(np.array(128, np.int32)), "add"), "u8")
        x = _Scale(x.step, x.zero + 128)
    y = None if p.y_scale is None else _scale(p.y_scale, p.y_zero, "u8")
    r = None if p.r_scale is None else _scale(p.r_scale, p.r_zero, "u8")
    late = p.residual is not None and not p.residual_first and p.activation != "identity"  # the kernel adds it before
    if late or (p.y_scale is not None and y is None) or (p.r_scale is not None and r is None):
        return None
    return _emit(lo, p, q, x, weight, np.broadcast_to(scales.reshape(-1), p.w.dims[0]), y, r)


def _scale(scale: Tensor, zero: Tensor | None, dtype: str) -> _Scale | None:
    """None for what is no tensor of bytes with one scale that is known."""
    if dtype not in ("u8", "i8") or scale.constant is None or scale.size != 1:
        return None
    if zero is None:
        return _Scale(float(scale.constant.reshape(())), 0)
    if zero.constant is None or zero.size != 1 or zero.dtype != dtype:
        return None
    return _Scale(float(scale.constant.reshape(())), int(zero.constant.reshape(())))


def _emit(lo: Lowering, p: _Product, q: Tensor, x: _Scale, weight: np.ndarray, scales: np.ndarray, y: _Scale | None,
          r: _Scale | None) -> Tensor:
    count = p.w.dims[0]
    bias = np.zeros(count) if p.bias is None or p.bias.constant is None else p.bias.constant.astype(np.float64)
    offsets = -x.zero * weight.reshape(count, -1).sum(1, dtype=np.int64)
    finish, unit, shift = _finish(p.activation, y)
    bias = (bias - (r.zero * r.step if r else 0.0)) / unit + shift
    rows = [(scales.astype(np.float64) * x.step / unit).astype(np.float32), offsets.astype(np.int32), bias.astype(np.float32)]
    source, _, _ = lo.matrix(channels_last(lo, q), strided=True)
    made = lo.new("f32" if y is None else "u8", (q.dims[0], *p.window.out, count))
    pixels = made.size // count
    out = made.ref((pixels, count))
    if p.is_depthwise:
        constants = [taps_i8(weight.reshape(count, -1).T), *map(by_place, rows)]
        lo.emit("depthwise_i8", [source, *_refs(lo, constants)], [out], [x.zero, *finish, *p.window.words()], pixels)
        return channels_first(made)
    b, groups = _panels(weight, p.groups)
    inputs = [source, *_refs(lo, [b, *rows])]
    if p.residual is not None:
        inputs.append(lo.matrix(channels_last(lo, p.residual), strided=True)[0])
    kind = 0 if p.residual is None else 1 if r is None else 2
    words = [kind, word((r.step if r else 1.0) / unit), groups, x.zero, *finish, *p.window.words()]
    lo.emit("conv_i8", inputs, [out], words, pixels, cols=b.shape[0])
    return channels_first(made)


def _refs(lo: Lowering, arrays: list[np.ndarray]) -> list[Ref]:
    return [t.ref(t.dims) for t in map(lo.constant, arrays)]


def _finish(activation: str, y: _Scale | None) -> tuple[list[int], float, int]:
    """Words from ``activation`` to ``high``, and in what unit, from which zero on, the kernel sums: in steps of the output where
    bounds are all there is to the activation."""
    bounds = _CLAMPS.get(activation)
    function = UNARY.index("identity" if bounds else activation)
    low, high = bounds or (-math.inf, math.inf)
    if y is None:
        return [function, 0, word(1.0), word(0.0), word(low), word(high)], 1.0, 0
    step, shift = 1 / y.step, y.zero
    if bounds:
        low, high = (min(max(bound * step + shift, 0.0), 255.0) for bound in bounds)
        return [function, 1, word(1.0), word(0.0), word(low), word(high)], y.step, shift
    return [function, 1, word(step), word(shift), word(0.0), word(255.0)], 1.0, 0


def _panels(weight: np.ndarray, groups: int) -> tuple[np.ndarray, int]:
    """The weights [M, C, kernel...] as the kernel's b, and how many groups that has: as conv's."""
    channels = weight.shape[1]
    w = weight.reshape(groups, -1, channels, product(weight.shape[2:]))
    merged = merged_groups(groups, w.shape[1])
    left, columns = groups // merged, merged * w.shape[1]
    width = columns if left == 1 else -(-columns // PANEL) * PANEL
    b = np.zeros((w.shape[3], merged, channels, left, width), np.int8)
    for group in range(groups):
        first = group % merged * w.shape[1]
        b[:, group % merged, :, group // merged, first : first + w.shape[1]] = w[group].transpose(2, 1, 0)
    return i8_k4n32(b.reshape(-1, left * width)), left
