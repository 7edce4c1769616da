"""Rounding of convolutions' kernels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from infc.passes.quant.numbers import Stored

Array = np.ndarray[Any, Any]


def keep_sums(stored: Stored, matrix: Array, taps: int) -> Stored:
    """The int8 weights ``[K, N]`` of ``matrix``, a scale a column and K being channels times ``taps``, with the sum of each kernel
    within half a step of what it was: neighbouring pixels are much alike, so that errors of a kernel which do not add up to nothing
    shift the result. Weights that are nearest to it are rounded the other way (SQuant, Guo et al., ICLR 2022, "kernel-wise"). Where
    there is no more room below the largest number, a kernel keeps some of its error."""
    k, n = matrix.shape
    shape = (k // taps, taps, n)
    error = (stored.data.astype(np.float32) - matrix / stored.scale).reshape(shape)
    many = np.rint(error.sum(axis=1, keepdims=True))
    rank = np.argsort(np.argsort(-error * np.sign(many), axis=1, kind="stable"), axis=1)
    step = np.where(rank < np.abs(many), np.sign(many), 0).reshape(k, n)
    largest = np.iinfo(stored.data.dtype).max
    data = np.clip(stored.data.astype(np.int32) - step.astype(np.int32), -largest, largest)
    return replace(stored, data=data.astype(stored.data.dtype))
