"""Operators that resize images or sample them at points."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir

from infc.compiler.artifact.ops import BORDER, SAMPLE
from infc.plugins.cpu.layout import channels_first, channels_last
from infc.plugins.cpu.lower import Lowering, rule, word
from infc.plugins.cpu.rules.elementwise import binary, scalar, select, unary
from infc.plugins.cpu.rules.linear import gemm, matmul
from infc.plugins.cpu.rules.movement import cut, in_memory_order, reshape, take, transpose
from infc.plugins.cpu.values import NUMPY, Ref, Tensor, product

# ---- Resize


def resample(lo: Lowering, x: Tensor, axis: int, first: np.ndarray, weights: np.ndarray) -> Tensor:
    """y[o] = sum over t of weights[o, t] * x[first[o] + t] along an axis."""
    lo.want(x, "f32")
    if x.symbol:
        raise lo.unsupported("an image whose size varies at run time")
    out, taps = weights.shape
    tables = [lo.constant(first.astype(np.int32)).ref((out,)), lo.constant(weights.astype(np.float32)).ref((out, taps))]

    def run(x: Tensor, axis: int, rows: int) -> Tensor:
        n, inner = x.dims[axis], product(x.dims[axis + 1 :])
        y = lo.new("f32", [out if i == axis else d for i, d in enumerate(x.dims)])
        lo.emit("resample", [x.ref((rows, n, inner)), *tables], [y.ref((rows * out, inner))], (n, out, taps, inner), rows * out)
        return y

    return in_memory_order(lo, x, axis, run)


def windows(places: np.ndarray, weights: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Places ``[out, taps]`` that may lie outside, whose weight then goes to the border, as windows: first place and weights."""
    places = np.clip(places, 0, size - 1)
    first = places.min(axis=1)
    taps = int((places.max(axis=1) - first).max()) + 1
    first = np.minimum(first, size - taps)
    dense = np.zeros((len(places), taps))
    np.add.at(dense, (np.arange(len(places))[:, None], places - first[:, None]), weights)
    return first, dense


def _linear(distance: np.ndarray) -> np.ndarray:
    return np.asarray(np.maximum(1 - np.abs(distance), 0))


def _cubic(a: float) -> Callable[[np.ndarray], np.ndarray]:
    """Keys, "Cubic convolution interpolation for digital image processing", 1981."""

    def weight(distance: np.ndarray) -> np.ndarray:
        d = np.abs(distance)
        near, far = ((a + 2) * d - (a + 3)) * d * d + 1, ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
        return np.asarray(np.where(d <= 1, near, np.where(d < 2, far, 0)))

    return weight


NEAREST: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "round_prefer_floor": lambda x: np.ceil(x - np.float32(0.5)), "round_prefer_ceil": lambda x: np.floor(x + np.float32(0.5)),
    "floor": np.floor, "ceil": np.ceil,
}


def _coordinates(mode: str, out: int, n: int, scale: float, roi: tuple[float, float], dtype: type) -> np.ndarray | None:
    """Where each output element lies in the input; None for an unknown mode. Nearest neighbours follow from arithmetic in f32, as
    other runtimes do it: ties are frequent."""
    at: np.ndarray = np.arange(out, dtype=dtype)
    factor, length = dtype(scale), scale * n
    if mode == "align_corners":
        return np.asarray(at * dtype((n - 1) / (length - 1) if length != 1 else 0))
    if mode == "asymmetric":
        return np.asarray(at / factor)
    if mode == "tf_crop_and_resize":
        start, end = roi
        if length == 1:
            return np.full(out, (end - start) * (n - 1) / 2 + start * (n - 1), dtype)
        return np.asarray(at * dtype((end - start) * (n - 1) / (length - 1)) + dtype(start * (n - 1)))
    if mode == "pytorch_half_pixel" and length == 1:
        return np.zeros(out, dtype)
    if mode in ("half_pixel", "pytorch_half_pixel", "half_pixel_symmetric"):
        half = dtype(0.5)
        centre = dtype(n / 2 * (1 - out / length)) if mode == "half_pixel_symmetric" else dtype(0)
        return np.asarray(centre + (at + half) / factor - half)
    return None


def _sizes(lo: Lowering, dims: Sequence[int], axes: Sequence[int], scales: np.ndarray | None,
           sizes: list[int] | None) -> tuple[list[int], list[float]]:
    """Sizes and scales of the resized axes."""
    if sizes is None:
        if scales is None:
            raise lo.unsupported("neither scales nor sizes")
        return [int(s * dims[a]) for a, s in zip(axes, scales, strict=True)], [float(s) for s in scales]
    factors = [size / dims[a] for a, size in zip(axes, sizes, strict=True)]
    policy = lo.attribute("keep_aspect_ratio_policy", "stretch")
    if policy == "stretch":
        return sizes, factors
    factor = min(factors) if policy == "not_larger" else max(factors)
    return [math.floor(factor * dims[a] + 0.5) for a in axes], [factor] * len(axes)


@rule("Resize", "Upsample")
def _resize(lo: Lowering, node: ir.Node) -> Tensor:
    x = lo.input(0)
    mode, by = lo.attribute("mode", "nearest"), lo.attribute("coordinate_transformation_mode", "half_pixel")
    if node.op_type == "Upsample":
        by, roi, scales, sizes = "asymmetric", None, lo.const(1), None
    else:
        roi, scales, sizes = (None if t is None or not t.size else t for t in (lo.const(1), lo.const(2), lo.const(3)))
    axes = [a % len(x.dims) for a in lo.attribute("axes", range(len(x.dims)))]
    outs, factors = _sizes(lo, x.dims, axes, scales, None if sizes is None else [int(s) for s in sizes])
    nearest = NEAREST.get("floor" if node.op_type == "Upsample" else lo.attribute("nearest_mode", "round_prefer_floor"))
    weight, reach = {"cubic": (_cubic(lo.attribute("cubic_coeff_a", -0.75)), 2)}.get(mode, (_linear, 1))
    antialias, exclude = lo.attribute("antialias", 0), lo.attribute("exclude_outside", 0)
    value, beyond = lo.attribute("extrapolation_value", 0.0), None
    if mode not in ("nearest", "linear", "cubic") or nearest is None:
        raise lo.unsupported(f"mode {mode}")
    plan = []
    for i, (axis, out, factor) in enumerate(zip(axes, outs, factors, strict=True)):
        n = x.dims[axis]
        own = (0.0, 1.0) if roi is None else (float(roi[i]), float(roi[len(axes) + i]))
        if out == n and math.isclose(factor, 1) and own == (0, 1):
            continue
        at = _coordinates(by, out, n, factor, own, np.float32 if mode == "nearest" else np.float64)
        if at is None or not out:
            raise lo.unsupported(f"coordinate_transformation_mode {by}, {out} elements")
        plan.append((out / n, axis, at))
        if by == "tf_crop_and_resize":
            outside = ((at < 0) | (at > n - 1)).reshape([-1 if j == axis else 1 for j in range(len(x.dims))])
            beyond = outside if beyond is None else beyond | outside
    # What shrinks comes first; the last axis, whose elements are taken one by one, when there are fewest of them.
    for _, axis, at in sorted(plan, key=lambda p: (p[0], p[1] if p[0] < 1 else -p[1])):
        n = x.dims[axis]
        if mode == "nearest":
            x = take(lo, x, np.clip(nearest(at), 0, n - 1).astype(np.int64), axis)
            continue
        narrow = min(factors[axes.index(axis)], 1.0) if antialias else 1.0
        taps = math.ceil(reach / narrow)
        places = np.floor(at).astype(np.int64)[:, None] + np.arange(1 - taps, taps + 1)
        weights = weight((places - at[:, None]) * narrow)
        if exclude:
            weights = np.where((places < 0) | (places >= n), 0, weights)
        total = weights.sum(axis=1, keepdims=True)
        x = resample(lo, x, axis, *windows(places, weights / np.where(total == 0, 1, total), n))
    if beyond is None or not beyond.any():
        return x
    return select(lo, lo.constant(beyond), lo.constant(np.array(value, NUMPY[x.dtype])), x)


@rule("LRN")
def _lrn(lo: Lowering, node: ir.Node) -> Tensor:
    """x / (bias + alpha / size * sum of x^2 over the channels near by)^beta"""
    x, size = lo.input(0), lo.attribute("size")
    channels = x.dims[1]
    places = np.arange(channels)[:, None] + np.arange(size) - (size - 1) // 2
    inside = (places >= 0) & (places < channels)
    near = windows(places, inside * (lo.attribute("alpha", 1e-4) / size), channels)
    total = binary(lo, resample(lo, unary(lo, x, "square"), 1, *near), scalar(lo, lo.attribute("bias", 1.0)), "add")
    return binary(lo, x, binary(lo, total, scalar(lo, lo.attribute("beta", 0.75)), "pow"), "div")


# ---- Samples at points


def _pixels(lo: Lowering, x: Tensor) -> Ref:
    """An image [N, C, spatial...] as pixels with the channels innermost."""
    lo.want(x, "f32")
    if any(x.symbols):
        raise lo.unsupported("an image whose size varies at run time")
    last = channels_last(lo, x)
    found = last.rows(len(last.dims) - 1)
    assert found is not None
    return last.ref(found[:2], found[2])


def sample(lo: Lowering, x: Tensor, points: Tensor, mode: str, outside: str, align: bool) -> Tensor:
    """x ``[N, C, spatial...]`` at points ``[N, ..., dims]`` in pixels, the innermost dimension first; gives ``[N, ..., C]``."""
    dims = len(x.dims) - 2
    if points.dims[-1] != dims or points.dims[0] != x.dims[0] or points.symbol or dims > 3:
        raise lo.unsupported(f"points {list(points.dims)} of an image {list(x.dims)}")
    points = lo.dense(lo.want(points, "f32"))
    y = lo.new("f32", (*points.dims[:-1], x.dims[1]))
    rows = points.size // dims
    sizes = [*[1] * (3 - dims), *x.dims[2:]]
    lo.emit("grid_sample", [_pixels(lo, x), points.ref((rows, dims))], [y.ref((rows, x.dims[1]))],
            (SAMPLE.index(mode), BORDER.index(outside), int(align), rows // x.dims[0], dims, *sizes), rows)
    return y


@rule("GridSample")
def _grid_sample(lo: Lowering, node: ir.Node) -> Tensor:
    x, grid, align = lo.input(0), lo.input(1), bool(lo.attribute("align_corners", 0))
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(lo.attribute("mode", "linear"), lo.attribute("mode", "linear"))
    size = np.array(x.dims[:1:-1], np.float32)
    scale = lo.constant((size - align) / 2)
    points = binary(lo, binary(lo, grid, scale, "mul"), lo.constant((size - 1) / 2), "add")
    return channels_first(sample(lo, x, points, mode, lo.attribute("padding_mode", "zeros"), align))


@rule("AffineGrid")
def _affine_grid(lo: Lowering, node: ir.Node) -> Tensor:
    theta, size = lo.input(0), lo.ints(1)
    assert size is not None
    spatial = size[2:]
    align = lo.attribute("align_corners", 0)
    steps = [np.linspace(-1, 1, n) if align and n > 1 else (2 * np.arange(n) + 1) / n - 1 for n in spatial]
    mesh = np.meshgrid(*steps, indexing="ij")
    base = np.stack([*(m.reshape(-1) for m in reversed(mesh)), np.ones(product(spatial))], axis=1).astype(np.float32)
    y = matmul(lo, lo.constant(base), transpose(theta, (0, 2, 1)))
    return reshape(lo, y, (size[0], *spatial, len(spatial)), [None] * (len(spatial) + 2))


@rule("RoiAlign")
def _roi_align(lo: Lowering, node: ir.Node) -> Tensor:
    x, rois, images = lo.input(0), lo.want(lo.input(1), "f32"), lo.want(lo.input(2), "i32", "i64")
    out_h, out_w = lo.attribute("output_height", 1), lo.attribute("output_width", 1)
    lo.rectangle(rois)
    if rois.symbol or images.symbol:
        raise lo.unsupported("regions whose number varies at run time")
    y = lo.new("f32", (rois.dims[0], out_h, out_w, x.dims[1]))
    rows = product(y.dims[:3])
    half = lo.attribute("coordinate_transformation_mode", "half_pixel") == "half_pixel"
    words = (int(lo.attribute("mode", "avg") == "max"), int(half),
             lo.attribute("sampling_ratio", 0), word(lo.attribute("spatial_scale", 1.0)), *x.dims[2:], out_h, out_w)
    lo.emit("roi_align", [_pixels(lo, x), lo.dense(rois).ref(rois.dims), lo.dense(images).ref(images.dims)],
            [y.ref((rows, x.dims[1]))], words, rows)
    return channels_first(y)


@rule("DeformConv")
def _deform_conv(lo: Lowering, node: ir.Node) -> Tensor:
    """Samples at displaced taps, laid out as the rows of a product with the weights."""
    x, w, offset, bias, mask = lo.input(0), lo.input(1), lo.input(2), lo.optional(3), lo.optional(4)
    rank = len(x.dims) - 2
    kernel, parts = list(w.dims[2:]), lo.attribute("offset_group", 1)
    lo.attribute("kernel_shape")  # says what the weights say
    dilations, pads, strides = (list(lo.attribute(n, d)) for n, d in
                                (("dilations", [1] * rank), ("pads", [0] * 2 * rank), ("strides", [1] * rank)))
    out, taps, images, channels = offset.dims[2:], product(kernel), x.dims[0], x.dims[1]
    axes = [np.add.outer(np.arange(o) * s - p, np.arange(k) * d) for o, s, p, k, d in
            zip(out, strides, pads, kernel, dilations, strict=False)]  # [out, kernel] of each dimension
    base = np.zeros((*out, *kernel, rank), np.float32)
    for i, places in enumerate(axes):
        shape = [1] * (2 * rank)
        shape[i], shape[rank + i] = places.shape
        base[..., rank - 1 - i] = places.reshape(shape)
    base = base.reshape(1, *out, taps, rank)
    moved = reshape(lo, offset, (images, parts, taps, rank, *out), [None] * (4 + rank))
    samples = lo.new("f32", (images, *out, taps, channels))
    each = channels // parts
    for part in range(parts):
        own = transpose(cut(moved, 1, part, 1), [0, *range(4, 4 + rank), 2, 3, 1])
        own = cut(own.view(own.dims[:-1], own.strides[:-1]), rank + 2, rank - 1, rank, -1)
        taken = sample(lo, cut(x, 1, part * each, each), binary(lo, own, lo.constant(base), "add"), "linear", "zeros", True)
        if mask is not None:
            weight = cut(reshape(lo, mask, (images, parts, taps, *out), [None] * (3 + rank)), 1, part, 1)
            taken = binary(lo, taken, transpose(weight, [0, *range(3, 3 + rank), 2, 1]), "mul")
        lo.copy_into(taken, cut(samples, rank + 2, part * each, each))
    return _product(lo, samples, w, bias, lo.attribute("group", 1))


def _product(lo: Lowering, samples: Tensor, w: Tensor, bias: Tensor | None, groups: int) -> Tensor:
    """``[N, spatial..., taps, C]`` times ``[M, C / groups, kernel...]`` as ``[N, M, spatial...]``."""
    *pixels, taps, channels = samples.dims
    each, made = channels // groups, w.dims[0] // groups
    y = lo.new("f32", (*pixels, w.dims[0]))
    for group in range(groups):
        rows = reshape(lo, cut(samples, len(pixels) + 1, group * each, each), (*pixels, taps * each), [None] * (len(pixels) + 1))
        own = reshape(lo, cut(w, 0, group * made, made), (made, each, taps), [None] * 3)
        weight = reshape(lo, transpose(own, (2, 1, 0)), (taps * each, made), (None, None))
        known = weight.constant
        part = gemm(lo, rows, known) if known is not None else matmul(lo, rows, weight)
        lo.copy_into(part, cut(y, len(pixels), group * made, made))
    return channels_first(y if bias is None else binary(lo, y, bias, "add"))
