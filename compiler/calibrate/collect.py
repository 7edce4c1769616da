"""Collectors: what is seen of one value, sample by sample, in memory that does not grow with their number.

Least and largest values and integer counts do not depend on the order of samples. Sums of channels and Gram matrices do, in their
last bits: whoever feeds collectors does so in the order of the samples' digests.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from infc.passes.quant.patches import Patches
from infc.passes.quant.statistics import HALF, LEAST_EXPONENT, Channels, Histogram, ValueStatistics

Floats = NDArray[np.float32]
_LARGEST = np.finfo(np.float32).max
_CHUNK = 1 << 17  # elements binned at a time: their indices stay in the cache


class Counts:
    """A histogram whose bins double in width when a value lies outside: pairs of bins become one, exactly."""

    def __init__(self) -> None:
        self.exponent = LEAST_EXPONENT
        self.counts = np.zeros(2 * HALF, np.int64)

    def add(self, x: Floats, largest: float) -> None:
        """Finite values, of any shape; ``largest`` is that of their magnitudes."""
        self.widen(int(np.frexp(largest)[1]) if largest else LEAST_EXPONENT)
        flat = x.reshape(-1)
        for start in range(0, flat.size, _CHUNK):
            self.counts += _binned(flat[start:start + _CHUNK], self.exponent)

    def widen(self, exponent: int) -> None:
        """To hold what is less than 2^exponent in magnitude."""
        while self.exponent < exponent:
            pairs = self.counts.reshape(-1, 2).sum(1)
            if not pairs.any():
                self.exponent = exponent
                return
            self.counts = np.zeros_like(self.counts)
            self.counts[HALF // 2:HALF // 2 + HALF] = pairs
            self.exponent += 1

    def merge(self, other: Counts) -> None:
        """Adds what another one saw."""
        theirs = Counts()
        theirs.exponent, theirs.counts = other.exponent, other.counts.copy()
        theirs.widen(self.exponent)
        self.widen(theirs.exponent)
        self.counts += theirs.counts


def _binned(x: Floats, exponent: int) -> NDArray[np.int64]:
    """Scaling by a power of two is exact: in float32 upwards, in float64 where small values would fall out of float32's range."""
    shift = int(np.log2(HALF)) - exponent
    scaled = np.ldexp(x if 0 <= shift < 127 else x.astype(np.float64), shift)
    return np.bincount(np.floor(scaled, out=scaled).astype(np.int64) + HALF, minlength=2 * HALF)


class _Channels:
    def __init__(self, axis: int, size: int) -> None:
        self.axis, self.rows = axis, 0
        self.minimum = np.full(size, np.inf, np.float32)
        self.maximum = np.full(size, -np.inf, np.float32)
        self.sums = np.zeros((3, size))

    def add(self, rows: Floats, minima: Floats, maxima: Floats) -> None:
        """[rows, channels], and the least and the largest of each channel."""
        np.minimum(self.minimum, minima, out=self.minimum)
        np.maximum(self.maximum, maxima, out=self.maximum)
        self.sums[0] += rows.sum(0, dtype=np.float64)
        self.sums[1] += np.abs(rows).sum(0, dtype=np.float64)
        with np.errstate(over="ignore"):
            self.sums[2] += np.minimum(np.square(rows), _LARGEST).sum(0, dtype=np.float64)
        self.rows += len(rows)

    def result(self) -> Channels:
        means = (self.sums / max(self.rows, 1)).astype(np.float32)
        return Channels(self.axis, self.rows, self.minimum, self.maximum, *means)


class Collector:
    """``axis`` is that of channels (-1 or 1); None: only the least and the largest value are asked for."""

    def __init__(self, axis: int | None) -> None:
        self.axis = axis
        self.count = self.invalid = 0
        self.minimum, self.maximum = np.inf, -np.inf
        self._counts = Counts() if axis is not None else None
        self._channels: _Channels | None = None

    def add(self, x: NDArray[Any]) -> None:
        """One sample's values, without padding: the channels' axis is the last, all others count as rows."""
        rows = np.asarray(x, np.float32).reshape(-1, x.shape[-1] if x.ndim else 1)
        minima, maxima = rows.min(0, initial=np.inf), rows.max(0, initial=-np.inf)
        if rows.size and not (np.isfinite(minima).all() and np.isfinite(maxima).all()):
            self.invalid += int((~np.isfinite(rows)).sum())
            rows = rows[np.isfinite(rows).all(1)]  # a row with anything invalid tells nothing of its channels
            minima, maxima = rows.min(0, initial=np.inf), rows.max(0, initial=-np.inf)
        if not rows.size:
            return
        self.count += rows.size
        least, largest = float(minima.min()), float(maxima.max())
        self.minimum, self.maximum = min(self.minimum, least), max(self.maximum, largest)
        if self._counts is not None:
            self._counts.add(rows, max(largest, -least))
            if self._channels is None:
                self._channels = _Channels(self.axis or 0, rows.shape[1])
            self._channels.add(rows, minima, maxima)

    def result(self) -> ValueStatistics:
        """Of a value that was never seen all is zero."""
        if not self.count:
            return ValueStatistics(0, self.invalid, 0.0, 0.0)
        histogram = Histogram(self._counts.exponent, self._counts.counts) if self._counts else None
        return ValueStatistics(self.count, self.invalid, self.minimum + 0.0, self.maximum + 0.0, histogram,
                               self._channels.result() if self._channels else None)


class Gram:
    """X^T X of rows [·, K], in float32; of ``patches`` of images those of all groups, one above the other.

    Rows of matrices are divided by their length first: a norm comes after the product sooner or later, so that it is the part of a
    row which rounding changes that counts, and the one row in hundreds that is a thousand times as long (the first of a text in
    language models) does not decide for all.
    """

    def __init__(self, patches: Patches | None = None) -> None:
        self.sum: Floats | None = None
        self._patches = patches

    def add(self, x: NDArray[Any]) -> None:
        rows = np.asarray(x, np.float32).reshape(1, -1, x.shape[-1]) if self._patches is None else self._patches.rows(x)
        rows = rows[:, np.isfinite(rows).all((0, 2))]
        if self._patches is None:
            rows = rows / np.maximum(np.linalg.norm(rows, axis=2, keepdims=True), np.finfo(np.float32).tiny)
        if self.sum is None:
            self.sum = np.zeros((rows.shape[0] * rows.shape[2], rows.shape[2]), np.float32)
        self.sum += (rows.swapaxes(1, 2) @ rows).reshape(self.sum.shape)
