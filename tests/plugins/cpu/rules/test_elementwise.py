"""Elementwise operators where a plain formula goes wrong."""

from __future__ import annotations

import numpy as np
import pytest

from tests.plugins.cpu.rules.ops import check


@pytest.mark.parametrize("alpha", [1e-45, 0.3, 1.0, 7.0])
def test_celu(alpha: float) -> None:
    x = np.float32([-np.inf, -90, -1.5, -1e-3, -0.0, 0, 1e-3, 1, 40, 3e38, np.inf])
    inside = np.float64(x) / np.float32(alpha)
    want = np.maximum(0, x) + np.minimum(0, np.float32(alpha) * np.expm1(np.minimum(inside, 0)))
    check("Celu", {"x": x}, want=[want.astype(np.float32)], alpha=alpha)
