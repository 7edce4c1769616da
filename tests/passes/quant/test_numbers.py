"""Rounding to stored formats: bounds of what quantising and dequantising changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from infc.passes.quant.numbers import (
    FP8,
    INT4,
    INT8,
    KINDS,
    UINT4,
    UINT4_FINE,
    Kind,
    Stored,
    activation_scale,
    pack4,
    scales,
    store,
    tensor,
)

Array = np.ndarray[Any, Any]
FLOATS = st.floats(-1e4, 1e4, width=32, allow_subnormal=False)
WEIGHTS = arrays(np.float32, st.tuples(st.sampled_from([32, 64]), st.integers(1, 5)), elements=FLOATS)


def error(weight: Array, stored: Stored) -> Array:
    return np.abs(stored.restore() - weight)


@settings(max_examples=50)
@given(WEIGHTS)
def test_int8_is_within_half_a_step(weight: Array) -> None:
    stored = store(weight, INT8)
    assert stored.data.dtype == np.int8
    assert stored.data.min() >= -127
    assert (error(weight, stored) <= stored.scale * 0.5001 + 1e-30).all()


@settings(max_examples=50)
@given(WEIGHTS, st.sampled_from([INT4, UINT4]))
def test_a_searched_scale_is_no_worse_than_the_plain_one(weight: Array, kind: Kind) -> None:
    stored = store(weight, kind, 32)
    assert np.array_equal(stored.scale.astype(np.float16).astype(np.float32), stored.scale)
    blocks = weight.reshape(-1, 32, weight.shape[1])
    low, high = np.minimum(blocks.min(1), 0), np.maximum(blocks.max(1), 0)
    step = (high - low) / 15 if kind is UINT4 else np.maximum(high / 7, low / -8)
    bound = 32 * (step * 0.51 + np.abs(np.maximum(high, -low)) * 2e-3 + 1e-3) ** 2  # f16 scales clamp a little
    assert (((stored.restore() - weight) ** 2).reshape(blocks.shape).sum(1) <= bound).all()


def test_zeros_stay_zeros() -> None:
    weight = np.random.default_rng(0).standard_normal((64, 8)).astype(np.float32) + 2
    weight[::2] = 0
    for kind in KINDS.values():
        assert kind.parts > 1 or not store(weight, kind, 32).restore()[::2].any()
    assert not store(np.zeros((32, 3), np.float32), INT8).restore().any()


@settings(max_examples=50)
@given(st.sampled_from([INT4, UINT4, UINT4_FINE]), st.integers(2, 15), st.integers(0, 1000),
       st.sampled_from([np.float32, np.float16]))
def test_numbers_that_were_rounded_before_keep_their_steps(kind: Kind, levels: int, seed: int, stored_as: type) -> None:
    """Also where the largest and the least number that there could be do not occur. What f16 does not hold of weights is all
    that is lost, and less than a sixteenth of a step where zeros lie between numbers."""
    random = np.random.default_rng(seed)
    number = random.integers(0, levels + 1, (64, 7))
    step = np.repeat(random.uniform(0.5, 1, (2, 7)).astype(np.float16).astype(np.float32) / 64, 32, axis=0)
    number[::32] = 0  # the largest by size does occur
    offset: Array = -step * (8 if kind is INT4 else min(levels, 5))
    if kind is UINT4_FINE:
        offset = -step * np.repeat(random.uniform(0, levels, (2, 7)).astype(np.float32), 32, axis=0)
    weight = (number * step + offset).astype(stored_as).astype(np.float32)
    allowed = (2e-3 if stored_as is np.float16 else 1e-6) + (step / 16 if kind is UINT4_FINE else 0)
    assert (error(weight, store(weight, kind, 32)) <= allowed).all()


def test_zeros_between_numbers_are_worth_their_place() -> None:
    weight = np.random.default_rng(5).standard_normal((256, 200)).astype(np.float32)
    change = [np.square(error(weight, store(weight, kind, 32))).sum() for kind in (UINT4_FINE, UINT4, INT4)]
    assert change[0] < 0.97 * change[1]
    assert change[0] < 0.9 * change[2]


def test_a_block_of_equal_numbers_keeps_them() -> None:
    for number in (-0.375, 0.375):
        weight = np.full((32, 3), number, np.float32)
        assert error(weight, store(weight, UINT4_FINE, 32)).max() < 2e-4


def test_importance_decides_for_which_rows_a_scale_is_right() -> None:
    random = np.random.default_rng(1)
    weight = random.standard_normal((64, 200)).astype(np.float32)
    importance = np.where(np.arange(64) % 8 == 0, 100.0, 0.01)
    weighed, plain = (store(weight, INT4, 64, i) for i in (importance, None))
    change = [(((s.restore() - weight) ** 2) * importance[:, None]).sum() for s in (weighed, plain)]
    assert change[0] < 0.95 * change[1]


def nearest_e4m3(x: float) -> float:
    """By search among all finite numbers of the format; of two as near, the one with an even mantissa."""
    codes = np.arange(256, dtype=np.uint8)
    values = codes.view(FP8.numpy).astype(np.float64)
    finite = np.isfinite(values) & (codes < 128)
    codes, values = codes[finite], values[finite]
    distance = np.abs(values - min(abs(x), 448.0))
    best = np.flatnonzero(distance == distance.min())
    code = next((c for c in best if codes[c] % 2 == 0), best[0])
    return float(np.copysign(values[code], x))


@settings(max_examples=200)
@given(st.floats(-600, 600, width=32))
def test_fp8_rounds_to_nearest_even_and_saturates(x: float) -> None:
    assert float(FP8.store(np.array([x], np.float32), np.float32(1))[0]) == nearest_e4m3(x)


def test_fp8_ties() -> None:
    codes = np.arange(127, dtype=np.uint8).view(FP8.numpy).astype(np.float32)
    ties = (codes[:-1] + codes[1:]) / 2
    assert [float(v) for v in FP8.store(ties, np.float32(1))] == [nearest_e4m3(float(t)) for t in ties]


@settings(max_examples=50)
@given(*2 * [st.floats(-100, 100, width=32).filter(lambda x: x == 0 or abs(x) > 1e-30)])  # a scale has all its digits
def test_static_activations_hold_their_range(a: float, b: float) -> None:
    low, high = min(a, b), max(a, b)
    scale, zero = activation_scale(low, high, False)
    assert 0 <= zero <= 255
    for x in (low, high, 0.0):
        q = np.clip(np.rint(np.float32(x) / np.float32(scale)) + zero, 0, 255)
        assert abs((q - zero) * scale - x) <= scale * 1.01
    assert activation_scale(low, high, True)[1] == 0
    assert activation_scale(0.0, 0.0, False) == (1.0, 0)


@pytest.mark.parametrize("dtype", [ir.DataType.INT4, ir.DataType.UINT4])
def test_four_bits_are_packed_as_onnx_has_it(dtype: ir.DataType) -> None:
    data = np.random.default_rng(2).integers(0, 7, (3, 5)).astype(dtype.numpy())
    packed = tensor(data, dtype, "t")
    assert packed.nbytes == 8
    assert np.array_equal(packed.numpy(), data)
    assert pack4(np.array([1, 2, 3], np.int8)).tolist() == [0x21, 0x03]


def test_columns_are_searched_in_parts_with_one_result(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = np.random.default_rng(3).standard_normal((64, 9)).astype(np.float32)
    whole = store(weight, UINT4, 32)
    monkeypatch.setattr("infc.passes.quant.numbers._CHUNK", 128)
    parts = store(weight, UINT4, 32)
    assert np.array_equal(whole.data.astype(np.uint8), parts.data.astype(np.uint8))
    assert np.array_equal(whole.scale, scales(weight, UINT4, 32)[0])
