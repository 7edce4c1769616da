"""Statistics of values whose channels have been scaled since they were taken."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from infc.passes.quant.numbers import activation_scale
from infc.passes.quant.ranges import outside
from infc.passes.quant.statistics import Channels, Statistics, ValueStatistics

Array = np.ndarray[Any, np.dtype[np.float32]]


@dataclass(frozen=True)
class Spread:
    """Values from ``low`` to ``high`` are represented, what is within ``margin`` of an end is rounded to it. ``beyond``: the part
    of what was seen that lies farther out; ``lower`` and ``upper``: that which lies within ``margin`` of an end or beyond."""

    low: float
    high: float
    margin: float
    beyond: float
    lower: float
    upper: float

    def record(self) -> dict[str, float]:
        """Six digits each."""
        return {name: float(f"{value:.6g}") for name, value in asdict(self).items()}


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

    @property
    def rounded(self) -> dict[Any, Any]:
        """Weights that GPTQ has made of these statistics, by whatever they follow from."""
        return {} if self._statistics is None else self._statistics.rounded

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

    def spread(self, name: str | None, static: bool, symmetric: bool) -> Spread | None:
        """Of activations that are quantised: to their range if ``static``, else row by row, and then all that was seen is inside.
        Of scaled channels the parts beyond are those of the value before: they have no histogram."""
        found = self._value(name)
        if self._statistics is None or found is None:
            return None
        channels = self.channels(name)
        if static:
            span = self.range(name, symmetric)
            assert span is not None
            step, zero = activation_scale(*span, symmetric)
            low, high = (-127 * step, 127 * step) if symmetric else (-zero * step, (255 - zero) * step)
            inner = found.range(self._statistics.method, symmetric)
        else:
            low, high = ((min(float(channels.minimum.min()), 0.0), max(float(channels.maximum.max()), 0.0)) if channels is not None
                         else (min(found.minimum, 0.0), max(found.maximum, 0.0)))
            step, inner = (high - low) / 255, (min(found.minimum, 0.0), max(found.maximum, 0.0))
        part = step / ((high - low) or 1.0) / 2 * (inner[1] - inner[0])
        return Spread(low, high, step / 2, outside(found, inner[0] - part, inner[1] + part),
                      outside(found, inner[0] + part, np.inf), outside(found, -np.inf, inner[1] - part))

    def gram(self, name: str | None) -> Array | None:
        """``[K, K]``, in f32."""
        source = self._sources.get(name, name)
        if self._statistics is None or source is None or source not in self._statistics.grams:
            return None
        gram, s = self._statistics.grams[source], self._scaled.get(name)
        return gram if s is None else gram / s[:, None] / s[None, :]


def _part(of: float, whole: float) -> float:
    return of / whole if whole and of / whole > 0 else 1.0
