"""Layout of int8 weights that the kernels of op ``gemm_i8`` read."""

from __future__ import annotations

import numpy as np

from infc.plugins.cpu.pack import PANEL

UNIT, KEPT = 32, 2  # rows of a unit of sparse weights; of each DEPTH rows so many count
DEPTH = 4  # rows of a weight that lie together for a column: what one VNNI instruction multiplies


def i8_k4n32(w: np.ndarray) -> np.ndarray:
    """int8 [K, N] as [panels, ceil(K/4) * 128]: of each 4 rows the 32 columns one after the other, zeros beyond K and N."""
    k, n = w.shape
    lines, panels = -(-k // DEPTH), -(-n // PANEL)
    padded = np.zeros((lines * DEPTH, panels * PANEL), np.int8)
    padded[:k, :n] = w
    order = padded.reshape(lines, DEPTH, panels, PANEL).transpose(2, 0, 3, 1)
    return np.ascontiguousarray(order).reshape(panels, lines * DEPTH * PANEL)


def undone(packed: np.ndarray, k: int, n: int) -> np.ndarray:
    """The weight [K, N] that ``i8_k4n32`` has packed."""
    panels = packed.shape[0]
    order = packed.reshape(panels, -1, PANEL, DEPTH).transpose(1, 3, 0, 2)
    return order.reshape(-1, panels * PANEL)[:k, :n]


def is_sparse(w: np.ndarray) -> bool:
    """Whether int8 [K, N] has the pattern 2:4 along K, and whole units."""
    k, n = w.shape
    return k % UNIT == 0 and bool((np.count_nonzero(w.reshape(-1, DEPTH, n), axis=1) <= KEPT).all())


def sparse(w: np.ndarray) -> np.ndarray:
    """int8 [K, N] that ``is_sparse`` as [panels, K/32 * 640]: of each 32 rows the columns' codes, then four steps' kept weights
    (runtime/src/kernels/gemm_i8/gemm_i8.h)."""
    n = w.shape[1]
    panels = -(-n // PANEL)
    quads = np.zeros((w.shape[0] // DEPTH, DEPTH, panels * PANEL), np.int8)
    quads[:, :, :n] = w.reshape(-1, DEPTH, n)
    places = np.sort(np.argsort(quads == 0, axis=1, kind="stable")[:, :KEPT], axis=1).astype(np.int8)

    def steps(x: np.ndarray) -> np.ndarray:  # [panels, units, 4 steps, 32 columns, 4 bytes]
        return x.reshape(-1, 4, 4, panels, PANEL).transpose(3, 0, 1, 4, 2)

    codes = steps(places)
    lines = np.empty((panels, codes.shape[1], 5, PANEL, 4), np.int8)
    lines[:, :, 0] = codes[:, :, 0] | codes[:, :, 1] << 2 | codes[:, :, 2] << 4 | codes[:, :, 3] << 6
    lines[:, :, 1:] = steps(np.take_along_axis(quads, places, axis=1))
    return lines.reshape(panels, -1)
