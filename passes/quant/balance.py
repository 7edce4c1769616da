"""How channels share the difficulty of rounding between activations and weights: SmoothQuant and AWQ, searched on statistics.

SmoothQuant: Xiao, Lin, Seznec, Wu, Demouth, Han, ICML 2023. AWQ: Lin, Tang, Tang, Yang, Dang, Han, "AWQ: activation-aware weight
quantization", MLSys 2024. Both divide channel k of the activations by s[k] and multiply row k of the weights by it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from infc.passes.quant.forms import Form
from infc.passes.quant.numbers import Kind, store
from infc.passes.quant.scaling import normalised
from infc.passes.quant.statistics import Channels

Array = np.ndarray[Any, Any]
Tie = Callable[[Array], Array]

_ALPHAS = np.linspace(0.1, 0.9, 17)  # of SmoothQuant
_POWERS = np.linspace(0.05, 1.0, 20)  # of AWQ
WORTH = 0.95  # of the error without scales: less of a gain is not taken
STEP = 192  # columns of a product that cost as much as a multiplication in front of it
_COLUMNS = 128  # of a weight on which powers are tried


def worth_a_step(columns: int) -> float:
    """What the error must fall to, in parts, where scales are a multiplication of their own in front of so many columns."""
    return 1 - STEP / max(columns, STEP)


@np.errstate(over="ignore", invalid="ignore")  # what overflows is not the best
def smooth(channels: Channels, weights: Sequence[Array], tie: Tie, form: Form, worth: float = WORTH) -> tuple[Array, float] | None:
    """Divisors ``[K]`` and alpha of least expected error of 8-bit products of one value by ``weights`` ``[K, N]``; None where the
    error would be more than ``worth`` of that without scales.

    s = size^alpha / max|w|^(1 - alpha). The error expected is that of uniform noise of one step in activations and weights. Static
    activations have the steps that the largest numbers demand, and their size is max|x|. The steps of dynamic ones follow the
    row, which is about as wide as its norm says: their size is the root of the mean square.
    """
    dynamic = form.activation == "rows"
    high, low, powers = np.maximum(channels.maximum, 0), np.minimum(channels.minimum, 0), channels.square_mean
    size = np.sqrt(powers) if dynamic else channels.absolute_max
    top = np.maximum.reduce([np.abs(w).max(axis=1) for w in weights])
    squares = [np.einsum("kn,kn->k", w, w) for w in weights]

    def step2(s: Array) -> float:
        if dynamic:
            return float((powers / s**2).sum()) / 127**2
        h, l = float((high / s).max()), float((low / s).min())
        return (max(h, -l) / 127 if form.symmetric else (h - l) / 255) ** 2

    def error(s: Array) -> float:
        steps, energy = step2(s), float((powers / s**2).sum())
        return sum(steps * float((square * s**2).sum()) + energy * float(((np.abs(w * s[:, None]).max(axis=0) / 127) ** 2).sum())
                   for w, square in zip(weights, squares, strict=True))

    plain = best = error(np.ones_like(top))
    found = None
    seen = (size > 0) & (top > 0)
    for alpha in _ALPHAS:
        s = np.ones_like(top)
        s[seen] = size[seen] ** alpha / top[seen] ** (1 - alpha)
        s = tie(normalised(s))
        if (reached := error(s)) < best:
            best, found = reached, (s, float(alpha))
    return found if best < worth * plain else None


@np.errstate(over="ignore", invalid="ignore")
def protect(channels: Channels, gram: Array | None, weights: Sequence[Array], tie: Tie, kind: Kind,
            block: int) -> tuple[Array, float] | None:
    """Divisors ``[K]`` and power of least error of products by weights in ``kind``; None where scales gain little.

    s = E|x|^power. Errors are those of the products on calibration data where their Gram matrix is given, else they take
    channels for uncorrelated.
    """
    size = np.maximum(channels.absolute_mean, 1e-6 * float(channels.absolute_mean.max()) + 1e-12)
    samples = [np.ascontiguousarray(w[:, ::max(1, w.shape[1] // _COLUMNS)], np.float32) for w in weights]

    def error(s: Array) -> float:
        total = 0.0
        for w in samples:
            scaled = w * s[:, None]
            change = store(scaled, kind, block, channels.square_mean / s**2).restore()
            change -= scaled
            change /= s[:, None]
            total += float(np.vdot(change, gram @ change if gram is not None else channels.square_mean[:, None] * change))
        return total

    plain = best = error(np.ones_like(size))
    found = None
    for power in _POWERS:
        s = tie(normalised(size**power))
        if (reached := error(s)) < best:
            best, found = reached, (s, float(power))
    return found if best < WORTH * plain else None
