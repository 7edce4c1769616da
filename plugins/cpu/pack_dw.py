"""Order of channels and taps that the kernels of op ``depthwise_i8`` read."""

from __future__ import annotations

import numpy as np

CHUNK = 64  # channels that lie together
QUAD = 4  # taps that lie together: what one VNNI instruction multiplies


def by_place(values: np.ndarray) -> np.ndarray:
    """[..., C] as [..., chunks * 64], zeros beyond C; in each chunk channels are in the order that
    runtime/src/kernels/depthwise_i8/depthwise_i8.h has."""
    *outer, c = values.shape
    chunks = -(-c // CHUNK)
    padded = np.zeros((*outer, chunks * CHUNK), values.dtype)
    padded[..., :c] = values
    lanes = padded.reshape(*outer, chunks, 4, 4, 4)  # 16 channels, of these 4, of these one
    return np.ascontiguousarray(lanes.swapaxes(-3, -2)).reshape(*outer, chunks * CHUNK)


def taps_i8(w: np.ndarray) -> np.ndarray:
    """int8 [taps, C] as [chunks, ceil(taps / 4) * 256], zeros beyond the taps."""
    taps, c = w.shape
    quads, chunks = -(-taps // QUAD), -(-c // CHUNK)
    padded = np.zeros((quads * QUAD, c), np.int8)
    padded[:taps] = w
    order = by_place(padded).reshape(quads, QUAD, chunks, CHUNK).transpose(2, 0, 3, 1)
    return np.ascontiguousarray(order).reshape(chunks, quads * QUAD * CHUNK)
