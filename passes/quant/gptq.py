"""Rounds weights one row after another, so that later rows make up for the errors of earlier ones.

GPTQ: Frantar, Ashkboos, Hoefler, Alistarh, "GPTQ: accurate post-training quantization for generative pre-trained transformers",
ICLR 2023.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from infc.passes.quant.compensate import ROWS, compensate, inverse_factor
from infc.passes.quant.numbers import Kind, Stored, scales
from infc.passes.quant.patches import moments
from infc.passes.sparsity.two_in_four import is_sparse

Array = np.ndarray[Any, Any]


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
    kept = work != 0 if is_sparse(weight) else None
    importance = np.diagonal(gram)
    follow = block < k and not act_order  # scales are found as a block is come to
    if follow:
        scale, zero = np.empty((k // block, n), np.float32), kind.empty_zeros((k // block, n))
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
        point = None if zero is None else zero[group]
        number = kind.store(values, scale[group], point)
        data[place] = number
        return kind.restore(number, scale[group], point)

    compensate(work, factor, rounded, kept, min(ROWS, block) if follow else ROWS)
    return Stored(kind, data, scale, zero, block)


def gptq_conv(weight: Array, gram: Array, kind: Kind) -> Stored:
    """``weight`` ``[K, N]`` of a convolution in numbers of ``kind``, a scale a column, given the sums ``[G (K + 1), K + 1]`` of its
    patches (patches.py). What counts is how patches vary: their mean is the bias's to correct."""
    _, _, covariance = moments(gram)
    groups, k = covariance.shape[:2]
    if groups == 1:
        return gptq(weight, covariance[0], kind, act_order=True)
    scale, _ = scales(weight, kind)
    step = scale.reshape(groups, -1)
    work = np.array(weight.T.reshape(groups, -1, k).transpose(0, 2, 1), np.float32)
    factors = np.stack([inverse_factor(c) for c in covariance])
    for row in range(k):
        old = work[:, row].copy()
        work[:, row] = kind.round(old, step) * step
        error = (old - work[:, row]) / factors[:, row, row, None]
        work[:, row + 1:] -= factors[:, row, row + 1:, None] * error[:, None]
    data = kind.store(work, step[:, None]).transpose(1, 0, 2).reshape(k, -1)
    return Stored(kind, data, scale, None, k)
