"""Changes the rows of a weight one after another, so that later rows make up for what earlier ones lost.

What GPTQ and SparseGPT share: Frantar, Alistarh, "Optimal brain compression", NeurIPS 2022. A weight is ``[K, N]``; the papers'
columns are its rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
ROWS = 128  # that are finished before the rest is brought up to date
_DAMP = 0.01  # of the mean diagonal, added to it


def inverse_factor(gram: Array, damp: float = _DAMP) -> Array:
    """Upper triangular R ``[K, K]`` with RᵀR the inverse of the damped Gram matrix, f32.

    H = UUᵀ, from the Cholesky decomposition of H in reversed order; R is the inverse of U. More damping is tried until H is
    positive definite.
    """
    h = np.array(gram[::-1, ::-1], np.float64)
    diagonal = np.diagonal(h).copy()
    mean = float(diagonal.mean()) or 1.0
    while True:
        np.fill_diagonal(h, np.where(diagonal > 0, diagonal + damp * mean, mean))  # a row that saw no input takes no part
        try:
            upper = np.linalg.cholesky(h)[::-1, ::-1]
        except np.linalg.LinAlgError:
            if damp > 1:
                raise
            damp *= 10
            continue
        del h
        return np.triu(np.linalg.inv(upper).astype(np.float32))


def compensate(work: Array, factor: Array, rounded: Callable[[int, Array], Array], kept: Array | None = None,
               rows: int = ROWS) -> None:
    """Replaces each row of ``work`` by ``rounded(row, values)`` and moves later rows so that products change least. Entries that
    are False in ``kept`` become zero. The rest is brought up to date every ``rows``."""
    k = work.shape[0]
    for first in range(0, k, rows):
        end = min(first + rows, k)
        errors = np.empty((end - first, work.shape[1]), np.float32)
        for row in range(first, end):
            new = rounded(row, work[row] if kept is None else work[row] * kept[row])
            error = (work[row] - new) / factor[row, row]
            work[row + 1:end] -= factor[row, row + 1:end, None] * error
            work[row] = new
            errors[row - first] = error
        work[end:] -= factor[first:end, end:].T @ errors
