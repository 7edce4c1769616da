"""Statistics of values whose channels have been scaled since they were taken."""

from __future__ import annotations

from typing import Any

import numpy as np

from infc.passes.quant.statistics import Channels, Statistics, ValueStatistics

Array = np.ndarray[Any, np.dtype[np.float32]]


class Seen:
    """``statistics``, as they would be after ``scale``. All is None of what was not collected."""

    def __init__(self, statistics: Statistics | None) -> None:
        self._statistics = statistics
        self._scaled: dict[str | None, Array] = {}
        self._sources: dict[str | None, str | None] = {}

    def scale(self, name: str | None, divisors: Array, source: str | None = None) -> None:
        """The value, or a new one made of ``source``, has had its channels divided by ``divisors`` ``[C]``."""
        self._scaled[name] = divisors
        self._sources[name] = source or name

    def _value(self, name: str | None) -> ValueStatistics | None:
        return None if self._statistics is None else self._statistics.values.get(self._sources.get(name, name) or "")

    def channels(self, name: str | None) -> Channels | None:
        found = self._value(name)
        if found is None or found.channels is None:
            return None
        c, s = found.channels, self._scaled.get(name)
        if s is None:
            return c
        one = np.reciprocal(s, dtype=np.float32)
        return Channels(c.axis, c.rows, c.minimum * one, c.maximum * one, c.mean * one, c.absolute_mean * one,
                        c.square_mean * one * one)

    def range(self, name: str | None, symmetric: bool) -> tuple[float, float] | None:
        """What static activations should represent. Scaled channels have no histogram: the method's range keeps the part of the
        whole that it had."""
        found = self._value(name)
        if self._statistics is None or found is None:
            return None
        low, high = found.range(self._statistics.method, symmetric)
        channels = self.channels(name) if name in self._scaled else None
        if channels is None:
            return low, high
        new_low, new_high = min(float(channels.minimum.min()), 0.0), max(float(channels.maximum.max()), 0.0)
        if symmetric:
            new_high = max(new_high, -new_low) * _part(high, found.absolute_max)
            return -new_high, new_high
        return new_low * _part(low, found.minimum), new_high * _part(high, found.maximum)

    def gram(self, name: str | None) -> Array | None:
        """``[K, K]``, in f32."""
        source = self._sources.get(name, name)
        if self._statistics is None or source is None or source not in self._statistics.grams:
            return None
        gram, s = self._statistics.grams[source], self._scaled.get(name)
        return gram if s is None else gram / s[:, None] / s[None, :]


def _part(of: float, whole: float) -> float:
    return of / whole if whole and of / whole > 0 else 1.0
