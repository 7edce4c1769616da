"""Layouts of weights that the kernels of op ``gemm_16`` read (runtime/src/kernels/gemm_16/gemm_16.h)."""

from __future__ import annotations

from itertools import combinations

import numpy as np

from infc.plugins.cpu.pack import PANEL

DEPTH = {"bf16": 2, "f16": 1, "f8e4m3fn": 2}  # rows of a weight that lie together for a column
GROUP, KEPT = 4, 2  # of so many rows a column of a sparse weight has so many that count
SPARSE_ROWS = 32  # of a line of sparse weights


def dense(bits: np.ndarray, depth: int) -> np.ndarray:
    """Numbers [K, N], given as unsigned integers, as panels of bytes [panels, B]: of each ``depth`` rows the 32 columns one after
    the other, zeros beyond K and N."""
    k, n = bits.shape
    lines, panels = -(-k // depth), -(-n // PANEL)
    padded = np.zeros((lines * depth, panels * PANEL), bits.dtype)
    padded[:k, :n] = bits
    order = padded.reshape(lines, depth, panels, PANEL).transpose(2, 0, 3, 1)
    return np.ascontiguousarray(order).view(np.uint8).reshape(panels, -1)


def undone(packed: np.ndarray, k: int, n: int) -> np.ndarray:
    """The bits [K, N] of a bf16 weight that ``dense`` has packed."""
    panels, depth = packed.shape[0], DEPTH["bf16"]
    order = packed.view(np.uint16).reshape(panels, -1, PANEL, depth).transpose(1, 3, 0, 2)
    return order.reshape(-1, panels * PANEL)[:k, :n]


def is_sparse(bits: np.ndarray) -> bool:
    """Whether a bf16 weight [K, N] has the pattern 2:4 along K, and whole lines."""
    k, n = bits.shape
    return k % SPARSE_ROWS == 0 and bool((np.count_nonzero((bits & 0x7FFF).reshape(-1, GROUP, n), axis=1) <= KEPT).all())


def sparse(bits: np.ndarray) -> np.ndarray:
    """A bf16 weight [K, N] that ``is_sparse`` as panels of bytes [panels, B]: of each 32 rows the columns' codes, then of each 4
    rows the columns' two kept numbers."""
    k, n = bits.shape
    lines, panels, groups = k // SPARSE_ROWS, -(-n // PANEL), SPARSE_ROWS // GROUP
    padded = np.zeros((k, panels * PANEL), np.uint16)
    padded[:, :n] = bits
    rows = padded.reshape(k // GROUP, GROUP, panels * PANEL)
    kept = np.sort(np.argsort((rows & 0x7FFF) == 0, axis=1, kind="stable")[:, :KEPT], axis=1)
    numbers = np.take_along_axis(rows, kept, axis=1)
    names = np.zeros((GROUP, GROUP), np.uint32)
    for code, pair in enumerate(combinations(range(GROUP), KEPT)):
        names[pair] = code
    codes = names[kept[:, 0], kept[:, 1]].reshape(lines, groups, panels, PANEL)
    shifts = np.arange(groups, dtype=np.uint32)[:, None, None]
    words = np.bitwise_or.reduce((codes | (shifts % 2) << 3) << (4 * shifts), axis=1)  # [lines, panels, PANEL]
    packed = np.empty((panels, lines, 1 + groups, PANEL), np.uint32)
    packed[:, :, 0] = words.transpose(1, 0, 2)
    pairs = np.ascontiguousarray(numbers.transpose(0, 2, 1)).view(np.uint32)  # [K / 4, columns, 1]
    packed[:, :, 1:] = pairs.reshape(lines, groups, panels, PANEL).transpose(2, 0, 1, 3)
    return packed.reshape(panels, -1).view(np.uint8)
