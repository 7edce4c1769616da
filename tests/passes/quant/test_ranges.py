"""Ranges: what each method represents, and that zero is always in it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infc.compiler.calibrate.collect import Collector
from infc.compiler.values import CALIBRATION_METHODS
from infc.passes.quant import ranges
from infc.passes.quant.statistics import ValueStatistics

Floats = np.ndarray[tuple[int, ...], np.dtype[np.float32]]


def seen(x: Floats) -> ValueStatistics:
    collector = Collector(-1)
    collector.add(x.reshape(-1, 1))
    return collector.result()


def squared_error(x: Floats, low: float, high: float) -> float:
    scale = (high - low) / 255
    zero = np.rint(-low / scale)
    return float(((np.clip(np.rint(x / scale) + zero, 0, 255) - zero) * scale - x).astype(np.float64).var())


def test_the_command_line_knows_all_methods() -> None:
    assert ranges.METHODS == CALIBRATION_METHODS


def test_percentile_leaves_out_what_it_says() -> None:
    x = np.random.default_rng(0).standard_normal(200_000).astype(np.float32)
    for percentage in (90.0, 99.0, 99.9):
        low, high = seen(x).range(f"percentile:{percentage}")
        assert ((x < low) | (x > high)).mean() == pytest.approx(1 - percentage / 100, rel=0.05)
        low, high = seen(x).range(f"percentile:{percentage}", symmetric=True)
        assert low == -high
        assert (np.abs(x) > high).mean() == pytest.approx(1 - percentage / 100, rel=0.05)


def test_mse_is_no_worse_than_any_part_of_the_range() -> None:
    x = np.random.default_rng(1).standard_t(3, 100_000).astype(np.float32)
    value = seen(x)
    best = squared_error(x, *value.range("mse"))
    low, high = value.range()
    assert best < 0.9 * squared_error(x, low, high)  # a long tail costs steps
    for part in (0.05, 0.1, 0.2, 0.4, 0.7):
        assert best <= 1.02 * squared_error(x, low * part, high * part)


def test_entropy_cuts_a_long_tail_and_keeps_what_is_even() -> None:
    rng = np.random.default_rng(2)
    heavy = seen(rng.standard_t(2, 300_000).astype(np.float32))
    assert heavy.range("entropy", symmetric=True)[1] < 0.5 * heavy.absolute_max
    even = seen(rng.uniform(-1, 1, 300_000).astype(np.float32))
    assert even.range("entropy", symmetric=True)[1] > 0.9


@pytest.mark.parametrize("method", ranges.METHODS)
def test_one_sided_values_keep_their_side(method: str) -> None:
    x = np.maximum(np.random.default_rng(3).standard_normal(50_000), 0).astype(np.float32)
    low, high = seen(x).range(method)
    assert low == 0.0
    assert 0 < high <= x.max()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(-(2.0 ** 100), 2.0 ** 100, width=32), min_size=1, max_size=40), st.sampled_from(ranges.METHODS),
       st.booleans())
def test_zero_is_in_every_range(numbers: list[float], method: str, symmetric: bool) -> None:
    x = np.array(numbers, np.float32)
    low, high = seen(x).range(method, symmetric)
    assert np.isfinite([low, high]).all()
    assert min(float(x.min()), -float(np.abs(x).max()) if symmetric else 0.0) <= low <= 0.0 <= high
    assert high <= max(float(np.abs(x).max()) if symmetric else float(x.max()), 0.0)
    assert not symmetric or low == -high


@pytest.mark.parametrize("text", ["", "max", "percentile:", "percentile:101", "percentile:x", "mse:9", "percentile:nan"])
def test_what_is_no_method(text: str) -> None:
    with pytest.raises(ValueError, match="is no method"):
        ranges.parse(text)
