"""3 x 3 convolutions as F(4 x 4, 3 x 3): which, and their weights. See runtime/src/kernels/winograd/winograd.h."""

from __future__ import annotations

import numpy as np

from infc.plugins.cpu.rules.window import Window

OUT = 4  # pixels of a tile, by dimension
POINTS = (0.0, 0.625, -0.625, 1.5, -1.5)  # and infinity
FEWEST_TILES = 12  # below, reading four times the weights takes longer than the multiplications it saves
FEWEST_CHANNELS = 32
SAVED = 0.6  # of the multiplications of the direct product, at most


def tiles(w: Window) -> int:
    """Tiles of one image."""
    return int(np.prod([-(-n // OUT) for n in w.out]))


def pays(w: Window, images: int, channels: int, columns: int) -> bool:
    """Whether a convolution of one group is of the kind, and large enough."""
    fits = w.kernel == (3, 3) and set(w.stride) == set(w.dilation) == {1}
    if not fits or min(channels, columns) < FEWEST_CHANNELS or images * tiles(w) < FEWEST_TILES:
        return False
    return 36 * tiles(w) <= SAVED * 9 * int(np.prod(w.out))


def kernel_transform() -> np.ndarray:
    """G [6, 3], in double."""
    g = np.zeros((6, 3))
    for row, p in enumerate(POINTS):
        g[row] = [p**k / np.prod([p - q for q in POINTS if q != p]) for k in range(3)]
    g[5, 2] = 1.0
    return g


def transformed(weight: np.ndarray) -> np.ndarray:
    """G g G^T of weights [N, C, 3, 3], as [36 * C, N]."""
    g = kernel_transform()
    points = np.einsum("ik,nckl,jl->ijcn", g, weight.astype(np.float64), g, optimize=True)
    return np.ascontiguousarray(points.reshape(-1, weight.shape[0]).astype(np.float32))
