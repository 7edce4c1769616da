"""From what was seen of a value to the range that a quantised type should represent: min-max, percentile, entropy, MSE.

All of it follows from exact counts, so a range does not depend on the order in which they were made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from infc.passes.quant.statistics import Histogram, ValueStatistics

METHODS = ("min-max", "percentile", "entropy", "mse")
PERCENTAGE = 99.99
LEVELS = 255  # steps of eight bits, in both forms
_MAGNITUDES = 128  # levels of |x| in eight bits with a sign
_COARSE = 2048  # bins in which divergences are computed, as TensorRT's entropy calibrator does
_FINE = 4096  # and squared errors
_PARTS = np.linspace(1.0, 0.05, 96)  # of the observed range, tried one after another
_ROUNDS = 2  # of moving one end of a range and then the other

Floats = NDArray[np.float64]


def parse(method: str) -> tuple[str, float]:
    """Name and percentage of "entropy" or "percentile:99.9". Raises ValueError for what is no method."""
    name, colon, number = method.partition(":")
    try:
        percentage = float(number) if colon else PERCENTAGE
    except ValueError:
        percentage = 0.0
    if name not in METHODS or (colon and name != "percentile") or not 50 < percentage <= 100:
        raise ValueError(f"'{method}' is no method")
    return name, percentage


def find(seen: ValueStatistics, method: str, symmetric: bool) -> tuple[float, float]:
    """Least and largest value to represent; zero is between them. ``symmetric``: one is the other's negative.

    percentile: the range outside of which lie (100 - p) % of the elements, half on each side or by magnitude. entropy: least
    Kullback-Leibler divergence of the quantised distribution (Migacz, 8-bit inference with TensorRT, GTC 2017). mse: least squared
    error in 255 steps. Without a histogram all of them are min-max. Raises ValueError for another method.
    """
    name, percentage = parse(method)
    low, high = min(seen.minimum, 0.0), max(seen.maximum, 0.0)
    if seen.histogram is not None and low < high:
        if name == "percentile":
            low, high = _percentile(seen.histogram, percentage, low, high, symmetric)
        elif name == "entropy":
            limit = _entropy(seen.histogram, max(-low, high))
            low, high = max(low, -limit), min(high, limit)
        elif name == "mse":
            low, high = _mse(seen.histogram, low, high, symmetric)
    if symmetric:
        limit = max(-low, high)
        low, high = -limit, limit
    return float(np.float32(low)) + 0.0, float(np.float32(high))  # without a negative zero


def outside(seen: ValueStatistics, low: float, high: float) -> float:
    """The part of the elements below ``low`` or above ``high``, by the middles of the histogram's bins; 0 without one."""
    if seen.histogram is None or not seen.count:
        return 0.0
    centres = seen.histogram.centres()
    return float(seen.histogram.counts[(centres < low) | (centres > high)].sum() / seen.count)


def _magnitudes(histogram: Histogram) -> NDArray[np.int64]:
    """Counts of |x| by bins of the same width, outward from zero."""
    half = histogram.counts.size // 2
    return np.asarray(histogram.counts[half:] + histogram.counts[:half][::-1])


def _reaching(counts: NDArray[np.int64], allowed: float, width: float) -> float:
    """The least edge, counted from zero outward, beyond which lie at most ``allowed`` elements."""
    beyond = counts[::-1].cumsum()[::-1]
    inside = np.flatnonzero(beyond <= allowed)
    return float(inside[0] if inside.size else counts.size) * width


def _percentile(histogram: Histogram, percentage: float, low: float, high: float, symmetric: bool) -> tuple[float, float]:
    allowed = int(histogram.counts.sum()) * (100.0 - percentage) / 100.0
    half = histogram.counts.size // 2
    if symmetric:
        limit = _reaching(_magnitudes(histogram), allowed, histogram.width)
        return max(low, -limit), min(high, limit)
    down = _reaching(histogram.counts[:half][::-1], allowed / 2, histogram.width)
    up = _reaching(histogram.counts[half:], allowed / 2, histogram.width)
    return max(low, -down), min(high, up)


def _entropy(histogram: Histogram, largest: float) -> float:
    """The limit of |x| in eight bits with a sign."""
    used = int(np.ceil(largest / histogram.width))
    by = max(1, -(-used // _COARSE))
    counts = _magnitudes(histogram)
    counts = np.pad(counts, (0, -counts.size % by)).reshape(-1, by).sum(1)[:-(-used // by)].astype(np.float64)
    if counts.size <= _MAGNITUDES:
        return largest
    counts[0] = counts[1]  # zeros, of which any range is exact, would decide it
    limits = range(_MAGNITUDES, counts.size + 1, max(1, (counts.size - _MAGNITUDES) // 256))
    divergences = [_divergence(counts, limit) for limit in limits]
    return min(largest, limits[int(np.argmin(divergences))] * by * histogram.width)


def _divergence(counts: Floats, limit: int) -> float:
    """KL(P || Q): P is the counts up to ``limit`` with all beyond in the last bin, Q the same in 128 levels."""
    p = counts[:limit].copy()
    filled = p > 0
    level = np.arange(limit) * _MAGNITUDES // limit
    sums, members = (np.bincount(level, weights, _MAGNITUDES) for weights in (p, filled.astype(np.float64)))
    q = np.where(filled, (sums / np.maximum(members, 1))[level], 0.0)
    p[-1] += counts[limit:].sum()
    if not p.any() or not q.any():
        return float("inf")
    p, q = p / p.sum(), q / q.sum()
    both = (p > 0) & (q > 0)
    lost = p[(p > 0) & ~both].sum()
    return float((p[both] * np.log(p[both] / q[both])).sum() + lost * 20)  # a bin that Q lacks counts as one of e^-20


def _mse(histogram: Histogram, low: float, high: float, symmetric: bool) -> tuple[float, float]:
    centres, weights = _points(histogram, low, high)
    if symmetric:
        limit = max(-low, high)
        best = min(_PARTS, key=lambda part: _error(centres, weights, -limit * part, limit * part))
        return max(low, -limit * best), min(high, limit * best)
    ends = [low, high]
    for turn in range(2 * _ROUNDS):
        side, whole = turn % 2, (low, high)[turn % 2]
        candidates = [[whole * part if s == side else ends[s] for s in (0, 1)] for part in _PARTS] if whole else [ends]
        ends = min(candidates, key=lambda pair: _error(centres, weights, *pair))
    return ends[0], ends[1]


def _points(histogram: Histogram, low: float, high: float) -> tuple[Floats, Floats]:
    """Values and how often each was seen, some thousands of them at most."""
    half = histogram.counts.size // 2
    first, last = int(np.floor(low / histogram.width)) + half, int(np.ceil(high / histogram.width)) + half
    counts = histogram.counts[max(0, first):last + 1]
    by = -(-counts.size // _FINE)
    counts = np.pad(counts, (0, -counts.size % by)).reshape(-1, by).sum(1)
    centres = (max(0, first) - half + (np.arange(counts.size) + 0.5) * by) * histogram.width
    kept = counts > 0
    return np.clip(centres[kept], low, high), counts[kept].astype(np.float64)


def _error(x: Floats, weights: Floats, low: float, high: float) -> float:
    """Of rounding to 255 steps between ``low`` and ``high``, one of which is zero exactly."""
    scale = (high - low) / LEVELS
    zero = np.rint(-low / scale)
    rounded = (np.clip(np.rint(x / scale) + zero, 0, LEVELS) - zero) * scale
    return float(weights @ (rounded - x) ** 2)
