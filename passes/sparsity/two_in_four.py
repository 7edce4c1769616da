"""Two of any four weights that are neighbours along K become zero: which ones, and what the others become.

Magnitude; Wanda: Sun, Liu, Bair, Kolter, "A simple and effective pruning approach for large language models", ICLR 2024; SparseGPT:
Frantar, Alistarh, "SparseGPT: massive language models can be accurately pruned in one-shot", ICML 2023.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from infc.passes.quant.compensate import compensate, inverse_factor

Array = np.ndarray[Any, Any]
GROUP, KEPT = 4, 2


def keep(scores: Array) -> Array:
    """True at the two largest of any four rows of ``[K, N]``, in each column; of equal ones the first."""
    k, n = scores.shape
    groups = scores.reshape(k // GROUP, GROUP, n)
    order = np.argsort(-groups, axis=1, kind="stable")[:, :KEPT]
    mask = np.zeros(groups.shape, bool)
    np.put_along_axis(mask, order, True, axis=1)
    return mask.reshape(k, n)


def prune(weight: Array, norms: Array | None = None) -> Array:
    """``weight`` ``[K, N]`` with the least of ``|w|``, or of ``|w| · norms[k]``, set to zero: magnitude, or Wanda with the norms
    of the inputs' channels."""
    scores = np.abs(weight)
    if norms is not None:
        scores = scores * norms.astype(np.float32)[:, None]
    return np.where(keep(scores), weight, np.float32(0))


def sparsegpt(weight: Array, gram: Array) -> Array:
    """``weight`` ``[K, N]`` in which the weights that stay make up for those that go, given XᵀX ``[K, K]`` of its inputs."""
    factor = inverse_factor(gram)
    work = np.array(weight, np.float32)
    spread = np.diagonal(factor)
    mask = np.empty((GROUP, weight.shape[1]), bool)

    def rounded(row: int, values: Array) -> Array:
        if row % GROUP == 0:
            rows = slice(row, row + GROUP)
            mask[:] = keep(np.abs(work[rows]) / spread[rows, None])
        return np.where(mask[row % GROUP], values, np.float32(0))

    compensate(work, factor, rounded)
    return work


def is_sparse(weight: Array) -> bool:
    """Whether ``[K, N]`` has at least two zeros in any four."""
    k, n = weight.shape
    return k % GROUP == 0 and bool((np.count_nonzero(weight.reshape(k // GROUP, GROUP, n), axis=1) <= KEPT).all())
