"""Collectors: the same to the last bit in any order and any division, and what they say of channels."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from infc.compiler.calibrate.collect import Collector, Counts, Gram
from infc.passes.quant.statistics import HALF, ValueStatistics

NUMBERS = st.floats(width=32, allow_nan=False, allow_infinity=False)
ROWS = st.lists(st.lists(NUMBERS, min_size=3, max_size=3), min_size=1, max_size=30)


def collect(parts: list[np.ndarray[Any, Any]]) -> ValueStatistics:
    collector = Collector(-1)
    for part in parts:
        collector.add(part)
    return collector.result()


@settings(deadline=None)
@given(ROWS, st.randoms(use_true_random=False), st.integers(1, 7))
def test_counts_and_extremes_do_not_depend_on_order_or_division(rows: list[list[float]], random: Any, size: int) -> None:
    x = np.array(rows, np.float32)
    order = list(range(len(x)))
    random.shuffle(order)
    whole, parts = collect([x]), collect([x[order[i:i + size]] for i in range(0, len(x), size)])
    assert (whole.count, whole.minimum, whole.maximum) == (parts.count, parts.minimum, parts.maximum)
    assert whole.histogram is not None
    assert parts.histogram is not None
    assert whole.histogram.exponent == parts.histogram.exponent
    np.testing.assert_array_equal(whole.histogram.counts, parts.histogram.counts)
    assert whole.channels is not None
    assert parts.channels is not None
    np.testing.assert_array_equal(whole.channels.minimum, parts.channels.minimum)
    np.testing.assert_array_equal(whole.channels.maximum, parts.channels.maximum)


@settings(deadline=None)
@given(st.lists(NUMBERS, min_size=1, max_size=50))
def test_every_value_lies_in_its_bin(numbers: list[float]) -> None:
    for number in numbers:
        counts = Counts()
        counts.add(np.array([number], np.float32), abs(number))
        counts.widen(counts.exponent + 3)
        width = np.ldexp(1.0, counts.exponent) / HALF
        place = int(np.flatnonzero(counts.counts)[0]) - HALF
        assert place * width <= number < (place + 1) * width


def test_merging_is_adding() -> None:
    rng = np.random.default_rng(0)
    parts = [(rng.standard_normal(500) * 10.0 ** e).astype(np.float32) for e in (-30, 3, -2, 20)]
    whole, merged = Counts(), Counts()
    for part in parts:
        whole.add(part, float(np.abs(part).max()))
    for part in reversed(parts):
        one = Counts()
        one.add(part, float(np.abs(part).max()))
        merged.merge(one)
    assert whole.exponent == merged.exponent
    np.testing.assert_array_equal(whole.counts, merged.counts)


def test_channels() -> None:
    x = np.random.default_rng(1).standard_normal((400, 5)).astype(np.float32) * [1, 2, 3, 4, 200]
    channels = collect([x[:100], x[100:]]).channels
    assert channels is not None
    assert channels.rows == 400
    np.testing.assert_array_equal(channels.absolute_max, np.abs(x).max(0).astype(np.float32))
    np.testing.assert_allclose(channels.mean, x.mean(0), atol=1e-4)
    np.testing.assert_allclose(channels.absolute_mean, np.abs(x).mean(0), rtol=1e-5)
    np.testing.assert_allclose(channels.square_mean, np.square(x).mean(0), rtol=1e-5)


def test_invalid_values_are_counted_and_enter_nothing() -> None:
    x = np.ones((6, 2), np.float32)
    x[1, 0], x[3, 1], x[4, 0] = np.nan, np.inf, -np.inf
    found = collect([x])
    assert (found.count, found.invalid, found.minimum, found.maximum) == (6, 3, 1.0, 1.0)
    assert collect([np.full((2, 2), np.nan, np.float32)]).count == 0


def test_enormous_values_stay_finite() -> None:
    found = collect([np.full((4, 2), 3e38, np.float32), np.full((4, 2), -1e-45, np.float32)])
    assert found.channels is not None
    assert np.isfinite(found.channels.square_mean).all()
    assert found.histogram is not None
    assert found.histogram.counts.sum() == 16


def test_gram_is_the_product_over_all_rows_of_length_one() -> None:
    x = np.random.default_rng(2).standard_normal((90, 4)).astype(np.float32)
    x[7], x[8] = 0, x[8] * 1e6
    gram = Gram()
    gram.add(x[:50].reshape(1, 50, 4))
    gram.add(x[50:])
    assert gram.sum is not None
    x = np.delete(x, 7, axis=0)
    ones = x / np.linalg.norm(x, axis=1, keepdims=True)
    np.testing.assert_allclose(gram.sum, ones.T @ ones, rtol=1e-4, atol=1e-4)
