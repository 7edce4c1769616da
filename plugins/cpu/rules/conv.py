"""Convolutions over pixels whose channels are innermost: see layout.py."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from infc.compiler.artifact.ops import UNARY
from infc.plugins.cpu.layout import channels_first, channels_last
from infc.plugins.cpu.lower import Lowering, rule
from infc.plugins.cpu.pack import PANEL
from infc.plugins.cpu.rules import winograd
from infc.plugins.cpu.rules.linear import gemm, has_residual
from infc.plugins.cpu.rules.movement import cut
from infc.plugins.cpu.rules.rows import vector
from infc.plugins.cpu.rules.window import Window, three, transposed_window, window
from infc.plugins.cpu.values import Ref, Tensor, product


def conv(lo: Lowering, x: Tensor, weight: Tensor, w: Window, groups: int, bias: Tensor | None = None, activation: str = "identity",
         residual: Tensor | None = None, residual_first: bool = False, up: tuple[int, ...] = ()) -> Tensor:
    """act(convolution + bias) + residual, as gemm, for x [N, C, spatial...] and weight [M, C / groups, kernel...]; see ops.py for
    ``up``."""
    lo.want(x, "f32")
    lo.want(weight, "f32")
    count, channels = weight.dims[0], x.dims[1]
    if channels != weight.dims[1] * groups or count % groups:
        raise lo.unsupported(f"{channels} channels in {groups} groups and weights {list(weight.dims)}")
    if x.symbol:
        raise lo.unsupported("images whose number is known at run time")
    x = channels_last(lo, x)
    residual = None if residual is None else channels_last(lo, residual)
    spread = any(u != 1 for u in up)
    if w.is_pointwise and groups == 1 and not spread and weight.constant is not None:
        matrix = weight.constant.reshape(count, channels).T
        return channels_first(gemm(lo, x, matrix, bias, activation, residual, residual_first))
    source, _, _ = lo.matrix(x, strided=True)
    y = lo.new("f32", (x.dims[0], *w.out, count))
    rows = pixels = y.size // count
    inputs = [source]
    flags = [UNARY.index(activation), int(bias is not None)]
    if groups == channels == count and not spread and residual is None:
        each = product(w.kernel)
        taps = lo.copied(lo.dense(weight).view((each, count), (1, each)))
        inputs.append(taps.ref((taps.size,)))
        op, words, cols = "depthwise", [*flags, *w.words()], 1
    elif (weight.constant is not None and groups == 1 and not spread and lo.winograd
          and winograd.pays(w, x.dims[0], channels, count)):
        points = lo.constant(winograd.transformed(weight.constant), packing="F32_K1N32")
        inputs.append(points.ref(points.dims))
        rows, cols = x.dims[0] * winograd.tiles(w), -(-count // PANEL)
        op, words = "winograd", [*flags, has_residual(residual, residual_first), *w.size, *w.out, *w.pad]
    else:
        packed, groups, cols = _panels(lo, weight, groups)
        inputs.append(packed)
        op, words = "conv", [*flags, has_residual(residual, residual_first), groups, *w.words(), *three(up, 1)]
    if bias is not None:
        inputs.append(vector(lo, bias, count).ref((count,)))
    if residual is not None:
        inputs.append(lo.matrix(residual, strided=True)[0])
    lo.emit(op, inputs, [y.ref((pixels, count))], words, rows, cols=cols)
    return channels_first(y)


def _panels(lo: Lowering, weight: Tensor, groups: int) -> tuple[Ref, int, int]:
    """The weights [M, C, kernel...] as the kernel's b, how many groups that has, and how many panels."""
    if weight.constant is None:
        return _panels_at_run_time(lo, weight, groups)
    taps, channels = product(weight.dims[2:]), weight.dims[1]
    w = weight.constant.reshape(groups, -1, channels, taps)
    merged = merged_groups(groups, w.shape[1])
    left, columns = groups // merged, merged * w.shape[1]
    width = columns if left == 1 else -(-columns // PANEL) * PANEL
    b = np.zeros((taps, merged, channels, left, width), np.float32)
    for group in range(groups):  # blocks on the diagonal of a larger group
        at = group % merged
        first = at * w.shape[1]
        b[:, at, :, group // merged, first : first + w.shape[1]] = w[group].transpose(2, 1, 0)
    packed = lo.constant(b.reshape(taps * merged * channels, left * width), packing="F32_K1N32")
    return Ref(packed.buffer, "f32", packed.dims, 0, packed.dims[1]), left, left * -(-columns // PANEL)


def merged_groups(groups: int, columns: int) -> int:
    """How many groups are computed as one, the others' weights being zero, so that panels are full: the number of least work."""
    work = {m: -(-m * columns // PANEL) * PANEL for m in range(1, groups + 1) if groups % m == 0}
    return min(work, key=lambda m: (work[m], -m))


def _panels_at_run_time(lo: Lowering, weight: Tensor, groups: int) -> tuple[Ref, int, int]:
    """Copies weights that are known at run time only into panels."""
    weight = lo.dense(weight)
    taps, channels, columns = product(weight.dims[2:]), weight.dims[1], weight.dims[0] // groups
    panels, whole = -(-columns // PANEL), columns // PANEL
    each = channels * taps
    b = lo.new("f32", (groups, panels, taps, channels, PANEL))
    if columns % PANEL:
        lo.emit("fill", [], [Ref(b.buffer, "f32", (b.size,), 0, 1)], (0, 0), 1)
    for first, count, width in ((0, whole, PANEL), (whole, 1, columns % PANEL)):
        if count and width:
            source = weight.view((groups, count, taps, channels, width), (columns * each, PANEL * each, 1, taps, each),
                                 offset=weight.offset + first * PANEL * each)
            lo.copy_into(source, cut(cut(b, 1, first, count), 4, 0, width))
    dims = (taps * channels, groups * panels * PANEL)
    return Ref(b.buffer, "f32", dims, 0, dims[1], packing="F32_K1N32"), groups, groups * panels


def kernel_of(lo: Lowering, weight: Tensor, x: Tensor) -> tuple[int, ...]:
    declared = lo.attribute("kernel_shape")
    if len(weight.dims) != len(x.dims) or (declared and tuple(declared) != weight.dims[2:]):
        raise lo.unsupported(f"weights {list(weight.dims)} for {list(x.dims)} and kernel_shape {declared}")
    return weight.dims[2:]


@rule("Conv")
def _conv(lo: Lowering, node: ir.Node) -> Tensor:
    x, weight = lo.input(0), lo.input(1)
    w = window(lo, x.dims[2:], kernel_of(lo, weight, x))
    return conv(lo, x, weight, w, lo.attribute("group", 1), lo.optional(2))


@rule("Conv", domain="infc")
def _fused_conv(lo: Lowering, node: ir.Node) -> Tensor:
    x, weight = lo.input(0), lo.input(1)
    w = window(lo, x.dims[2:], kernel_of(lo, weight, x))
    return conv(lo, x, weight, w, lo.attribute("group", 1), lo.optional(2), lo.attribute("activation", "") or "identity",
                lo.optional(3), bool(lo.attribute("residual_first", 0)))


@rule("ConvTranspose")
def _conv_transpose(lo: Lowering, node: ir.Node) -> Tensor:
    """A convolution of the spread input by the taps in reverse, with input and output channels swapped."""
    x, weight, groups = lo.input(0), lo.input(1), lo.attribute("group", 1)
    kernel = kernel_of(lo, weight, x)
    w, up = transposed_window(lo, x.dims[2:], kernel)
    if weight.dims[0] % groups:
        raise lo.unsupported(f"{groups} groups and weights {list(weight.dims)}")
    weight = lo.dense(weight)
    inside, columns, taps = weight.dims[0] // groups, weight.dims[1], product(kernel)
    swapped = weight.view((groups, columns, inside, taps), (inside * columns * taps, taps, columns * taps, -1),
                          offset=weight.offset + taps - 1)
    swapped = lo.copied(swapped)
    dims = (groups * columns, inside, *kernel)
    strides = [inside * taps, taps, *(product(kernel[i + 1 :]) for i in range(len(kernel)))]
    return conv(lo, x, swapped.view(dims, strides), w, groups, lo.optional(2), up=up)


