"""Rounds weights one row after another, so that later rows make up for the errors of earlier ones.

GPTQ: Frantar, Ashkboos, Hoefler, Alistarh, "GPTQ: accurate post-training quantization for generative pre-trained transformers",
ICLR 2023. Here a weight is ``[K, N]``; the paper's columns are its rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from infc.passes.quant.numbers import Kind, Stored, scales

Array = np.ndarray[Any, Any]
_DAMP = 0.01  # of the mean diagonal, added to it
_ROWS = 128  # that are finished before the rest is brought up to date


def inverse_factor(gram: Array, damp: float = _DAMP) -> Array:
    """Upper triangular R ``[K, K]`` with RᵀR the inverse of the damped Gram matrix, f32.

    H = UUᵀ, from the Cholesky decomposition of H in reversed order; R is the inverse of U. More damping is tried until H is
    positive definite.
    """
    h = np.asarray(gram, np.float64)
    diagonal = np.diagonal(h)
    mean = float(diagonal.mean()) or 1.0
    while True:
        damped = h + np.diag(np.where(diagonal > 0, damp * mean, mean))  # a row that saw no input takes no part
        try:
            upper = np.linalg.cholesky(damped[::-1, ::-1])[::-1, ::-1]
            return np.triu(np.linalg.inv(upper)).astype(np.float32)
        except np.linalg.LinAlgError:
            if damp > 1:
                raise
            damp *= 10


def gptq(weight: Array, gram: Array, kind: Kind, block: int = 0, act_order: bool = False) -> Stored:
    """``weight`` ``[K, N]`` in numbers of ``kind``, given XᵀX ``[K, K]`` of its inputs.

    Zeros of weights that are 2:4 stay zeros. With ``act_order`` rows are taken by falling diagonal, and the scales of all
    blocks are found beforehand, so that blocks stay rows that are neighbours.
    """
    k, n = weight.shape
    block = block or k
    order = np.argsort(-np.diagonal(gram), kind="stable") if act_order else np.arange(k)
    factor = inverse_factor(gram[np.ix_(order, order)] if act_order else gram)
    work = np.array(weight[order], np.float32)
    kept = work != 0 if is_two_in_four(weight) else None
    importance = np.diagonal(gram)
    follow = block < k and not act_order  # scales are found as a block is come to
    if follow:
        scale, zero = np.empty((k // block, n), np.float32), np.empty((k // block, n), kind.numpy) if kind.zeros else None
    else:
        scale, zero = scales(weight, kind, block, importance)
    data = np.empty((k, n), kind.numpy)

    def rounded(row: int, values: Array) -> Array:
        place = order[row]
        group = place // block
        if follow and place % block == 0:
            part = slice(place, place + block)
            found, point = scales(work[part], kind, 0, importance[part])
            scale[group] = found[0]
            if zero is not None and point is not None:
                zero[group] = point[0]
        point = None if zero is None else zero[group].astype(np.float32)
        number = kind.store(values, scale[group], point)
        data[place] = number
        return (number.astype(np.float32) - (0 if point is None else point)) * scale[group]

    compensate(work, factor, rounded, kept, min(_ROWS, block) if follow else _ROWS)
    return Stored(kind, data, scale, zero, block)


def compensate(work: Array, factor: Array, rounded: Callable[[int, Array], Array], kept: Array | None = None,
               rows: int = _ROWS) -> None:
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


def is_two_in_four(weight: Array) -> bool:
    """Whether of any four neighbours along K at least two are zero, in all columns."""
    k = weight.shape[0]
    return k % 4 == 0 and bool((np.count_nonzero(weight.reshape(k // 4, 4, -1), axis=1) <= 2).all())


def product_error(change: Array, gram: Array) -> float:
    """‖X·change‖², given XᵀX."""
    return float(np.vdot(change, gram @ change))
