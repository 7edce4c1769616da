"""Which numbers take less room without becoming others."""

from __future__ import annotations

import ml_dtypes
import numpy as np


def in_16_bits(table: np.ndarray) -> np.ndarray | None:
    """A float32 matrix in bfloat16 or float16, if one of them has all its numbers."""
    for dtype in (ml_dtypes.bfloat16, np.float16):
        narrow = np.empty(table.shape, dtype)
        with np.errstate(over="ignore"):
            for row in range(0, len(table), 1024):  # what is compared is held for so many rows
                part = table[row : row + 1024]
                narrow[row : row + 1024] = part
                if not np.array_equal(narrow[row : row + 1024].astype(np.float32), part):
                    break
            else:
                return narrow
    return None
