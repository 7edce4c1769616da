"""What calibration saw of a graph's values: ranges, histograms, channels and Gram matrices. Filled by compiler/calibrate/.

Names are those of the graph after the target's fusion passes. Padding never enters, and all of it is the same to the last bit
however the data was ordered or divided.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from infc.passes.quant import ranges

HALF = 1 << 14  # bins of a histogram on each side of zero
LEAST_EXPONENT = -100  # smaller values fall into the first bin


@dataclass(frozen=True)
class Histogram:
    """``counts`` [2 HALF] int64: bin i holds the values in [i - HALF, i - HALF + 1) * width, where width = 2^exponent / HALF.

    Widths are powers of two, so two histograms of different ones add up exactly.
    """

    exponent: int
    counts: NDArray[np.int64]

    @property
    def width(self) -> float:
        return float(np.ldexp(1.0, self.exponent) / HALF)

    def centres(self) -> NDArray[np.float64]:
        return np.asarray((np.arange(-HALF, HALF) + 0.5) * self.width)


@dataclass(frozen=True)
class Channels:
    """By channel along ``axis`` (-1: the last one, of a product's input; 1: of a Conv's), over ``rows`` vectors: float32 [C]."""

    axis: int
    rows: int
    minimum: NDArray[np.float32]
    maximum: NDArray[np.float32]
    mean: NDArray[np.float32]
    absolute_mean: NDArray[np.float32]  # E|x|: AWQ
    square_mean: NDArray[np.float32]  # E x^2: Wanda takes its root

    @property
    def absolute_max(self) -> NDArray[np.float32]:
        """max|x|: SmoothQuant."""
        return np.maximum(np.abs(self.minimum), np.abs(self.maximum))


@dataclass(frozen=True)
class ValueStatistics:
    """``count`` finite elements were seen, and ``invalid`` that are NaN or infinite and enter nothing else. Values that no product
    with constant weights reads have a least and a largest one alone."""

    count: int
    invalid: int
    minimum: float
    maximum: float
    histogram: Histogram | None = None
    channels: Channels | None = None

    @property
    def absolute_max(self) -> float:
        return max(abs(self.minimum), abs(self.maximum))

    def range(self, method: str = "min-max", symmetric: bool = False) -> tuple[float, float]:
        """See ``ranges.find``."""
        return ranges.find(self, method, symmetric)


@dataclass(frozen=True)
class Statistics:
    """``values`` by name; ``method`` is one of ``ranges.METHODS``, percentile perhaps with its percentage: "percentile:99.99".

    ``grams``: X^T X [K,K] float32 over all rows of a value, only of those that were asked for. It may read them from a file, one at
    a time: do not keep what is not needed. ``data`` describes the data for people and META (name, sha256, samples, seed, …).
    """

    values: Mapping[str, ValueStatistics]
    method: str = "min-max"
    grams: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)
    rounded: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)  # weights by GPTQ: budgets ask for them again

    def range(self, name: str, symmetric: bool = False) -> tuple[float, float]:
        """Least and largest value to be represented, zero among them; by ``method``. Raises KeyError for a value not seen."""
        return self.values[name].range(self.method, symmetric)

    def ranges(self, symmetric: bool = False) -> dict[str, tuple[float, float]]:
        """Of all values."""
        return {name: self.range(name, symmetric) for name in self.values}
