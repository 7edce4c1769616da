"""Layout of int8 weights that the kernels of op ``gemm_i8`` read."""

from __future__ import annotations

import numpy as np

from infc.plugins.cpu.pack import PANEL

DEPTH = 4  # rows of a weight that lie together for a column: what one VNNI instruction multiplies


def i8_k4n32(w: np.ndarray) -> np.ndarray:
    """int8 [K, N] as [panels, ceil(K/4) * 128]: of each 4 rows the 32 columns one after the other, zeros beyond K and N."""
    k, n = w.shape
    lines, panels = -(-k // DEPTH), -(-n // PANEL)
    padded = np.zeros((lines * DEPTH, panels * PANEL), np.int8)
    padded[:k, :n] = w
    order = padded.reshape(lines, DEPTH, panels, PANEL).transpose(2, 0, 3, 1)
    return np.ascontiguousarray(order).reshape(panels, lines * DEPTH * PANEL)
