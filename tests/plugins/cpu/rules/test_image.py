"""Operators that resize and sample images, with random attributes."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from tests.plugins.cpu.rules.ops import Array, check, floats

EMPTY = np.zeros(0, np.float32)
COORDINATES = ("half_pixel", "pytorch_half_pixel", "half_pixel_symmetric", "asymmetric", "align_corners")


def _sizes(rng: np.random.Generator, rank: int, most: int = 9) -> list[int]:
    return [int(rng.integers(1, most)) for _ in range(rank)]


@pytest.mark.parametrize(("mode", "by"), list(itertools.product(("nearest", "linear", "cubic"), COORDINATES)))
@pytest.mark.parametrize("seed", range(4))
def test_resize(mode: str, by: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    image, sizes = _sizes(rng, 2), _sizes(rng, 2)
    attributes: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": by}
    if mode == "nearest":
        attributes["nearest_mode"] = str(rng.choice(["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]))
    if mode == "cubic":
        attributes |= {"cubic_coeff_a": -0.5, "exclude_outside": int(rng.integers(2))}
    x = {"x": floats(rng, 2, 3, *image), "-r": EMPTY, "-s": EMPTY, "n": np.array([2, 3, *sizes])}
    check("Resize", x, ["n"], **attributes)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("seed", range(8))
def test_resize_by_scales(mode: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    scales = np.array([1, 1, *rng.choice([0.5, 0.75, 1.5, 2, 3], 2)], np.float32)
    x = {"x": floats(rng, 1, 40, 8, 4), "-r": EMPTY, "s": scales}
    check("Resize", x, ["s"], mode=mode, coordinate_transformation_mode=COORDINATES[seed % 4])


@pytest.mark.parametrize("policy", ["not_larger", "not_smaller", "stretch"])
@pytest.mark.parametrize("seed", range(4))
def test_resize_of_axes(policy: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = {"x": floats(rng, 2, 3, 6, 5), "-r": EMPTY, "-s": EMPTY, "n": np.array(_sizes(rng, 2)) + 3}
    check("Resize", x, ["n"], mode="nearest", axes=[2, 3], keep_aspect_ratio_policy=policy)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("seed", range(6))
def test_crop_and_resize(mode: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    roi = np.array([0, 0, *rng.uniform(-0.3, 0.4, 2), 1, 1, *rng.uniform(0.6, 1.3, 2)], np.float32)
    sizes = [n + (n == same) for n, same in zip(_sizes(rng, 2), (6, 5), strict=True)]  # ONNX Runtime copies where no size changes
    x = {"x": floats(rng, 1, 2, 6, 5), "r": roi, "-s": EMPTY, "n": np.array([1, 2, *sizes])}
    check("Resize", x, ["r", "n"], mode=mode, coordinate_transformation_mode="tf_crop_and_resize", extrapolation_value=7.5)


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("seed", range(6))
def test_antialias(mode: str, seed: int) -> None:
    """What lies outside does not count in ONNX Runtime."""
    rng = np.random.default_rng(seed)
    x = {"x": floats(rng, 1, 2, 12, 9), "-r": EMPTY, "-s": EMPTY, "n": np.array([1, 2, *_sizes(rng, 2)])}
    check("Resize", x, ["n"], mode=mode, antialias=1, exclude_outside=1)


@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("seed", range(4))
def test_grid_sample(mode: str, padding: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rank = 3 if seed == 3 and mode != "cubic" else 2
    batch = int(rng.integers(1, 3))
    x = floats(rng, batch, int(rng.integers(1, 20)), *(n + 1 for n in _sizes(rng, rank, 6)))
    grid = rng.uniform(-1.6, 1.6, (batch, *_sizes(rng, rank), rank)).astype(np.float32)
    check("GridSample", {"x": x, "g": grid}, atol=1e-4, mode=mode, padding_mode=padding, align_corners=int(rng.integers(2)))


@pytest.mark.parametrize("seed", range(10))
def test_affine_grid(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rank = 2 + seed % 2
    size = np.array([2, 3, *(n + 1 for n in _sizes(rng, rank))])  # the ends of one pixel are PyTorch's: its centre
    check("AffineGrid", {"t": floats(rng, 2, rank, rank + 1), "s": size}, ["s"], align_corners=int(rng.integers(2)))


@pytest.mark.parametrize("seed", range(20))
def test_roi_align(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, count = floats(rng, 2, 5, *(n + 3 for n in _sizes(rng, 2))), int(rng.integers(1, 5))
    corner, extent = rng.uniform(-2, 10, (count, 2)), rng.uniform(0.1, 12, (count, 2))
    rois = np.concatenate([corner, corner + extent], axis=1).astype(np.float32)
    check("RoiAlign", {"x": x, "r": rois, "b": rng.integers(0, 2, count)}, opset=16, mode=str(rng.choice(["avg", "max"])),
          output_height=int(rng.integers(1, 4)), output_width=int(rng.integers(1, 4)), sampling_ratio=int(rng.integers(0, 3)),
          spatial_scale=float(rng.choice([0.5, 1])),
          coordinate_transformation_mode=str(rng.choice(["half_pixel", "output_half_pixel"])))


@pytest.mark.parametrize("seed", range(10))
def test_lrn(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = floats(rng, 2, int(rng.integers(1, 12)), *_sizes(rng, 2))
    check("LRN", {"x": x}, size=int(rng.integers(0, 4)) * 2 + 1, alpha=0.3, beta=0.6, bias=1.5)


@pytest.mark.parametrize("op", ["DepthToSpace", "SpaceToDepth"])
@pytest.mark.parametrize("seed", range(6))
def test_blocks(op: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    b = int(rng.integers(1, 4))
    n, c, h, w = _sizes(rng, 4, 4)
    shape = (n, c * b * b, h, w) if op == "DepthToSpace" else (n, c, h * b, w * b)
    mode = {"mode": ("DCR", "CRD")[seed % 2]} if op == "DepthToSpace" else {}
    check(op, {"x": floats(rng, *shape)}, blocksize=b, **mode)


def _deform(x: Array, w: Array, offset: Array, bias: Array, mask: Array, groups: int, parts: int, stride: int, pad: int,
            dilation: int) -> Array:
    """By its definition, one sample at a time."""
    n, c, height, width = x.shape
    m, _, kh, kw = w.shape
    out_h, out_w = offset.shape[2:]
    y = np.zeros((n, m, out_h, out_w))

    def at(image: Array, v: float, u: float) -> float:
        total, top, left = 0.0, int(np.floor(v)), int(np.floor(u))
        for i, j in itertools.product((top, top + 1), (left, left + 1)):
            if 0 <= i < height and 0 <= j < width:
                total += (1 - abs(v - i)) * (1 - abs(u - j)) * float(image[i, j])
        return total

    for b, o, i, j in itertools.product(range(n), range(m), range(out_h), range(out_w)):
        group = o // (m // groups)
        for k, p, q in itertools.product(range(c // groups), range(kh), range(kw)):
            channel = group * (c // groups) + k
            tap = channel // (c // parts) * kh * kw + p * kw + q
            v = i * stride - pad + p * dilation + offset[b, 2 * tap, i, j]
            u = j * stride - pad + q * dilation + offset[b, 2 * tap + 1, i, j]
            y[b, o, i, j] += w[o, k, p, q] * mask[b, tap, i, j] * at(x[b, channel], v, u)
    return (y + bias[:, None, None]).astype(np.float32)


@pytest.mark.parametrize("seed", range(8))
def test_deform_conv(seed: int) -> None:
    rng = np.random.default_rng(seed)
    groups, parts, stride, pad, dilation = (int(rng.integers(1, 3)) for _ in range(5))
    x, w = floats(rng, 2, 4, 5, 6), floats(rng, 2 * groups, 4 // groups, 2, 2)
    out = [(d + 2 * pad - dilation - 1) // stride + 1 for d in (5, 6)]
    offset, mask, bias = floats(rng, 2, parts * 8, *out), floats(rng, 2, parts * 4, *out), floats(rng, 2 * groups)
    want = _deform(x, w, offset, bias, mask, groups, parts, stride, pad, dilation)
    check("DeformConv", {"x": x, "w": w, "o": offset, "b": bias, "m": mask}, ["w", "b"] if seed % 2 else [], want=[want], opset=22,
          kernel_shape=[2, 2], group=groups, offset_group=parts, strides=[stride] * 2, pads=[pad] * 4, dilations=[dilation] * 2)
