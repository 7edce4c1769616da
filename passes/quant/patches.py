"""What the kernels of a convolution meet: patches of images, from which GPTQ learns what errors of weights cost together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
MOST = 256  # of a sample: neighbours are much alike, so that more tell little


@dataclass(frozen=True)
class Patches:
    """Of x ``[B, C, ...]``, as ONNX's Conv takes them; ``pads`` are those at the beginnings, then those at the ends."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, ...]
    groups: int
    channels: int

    @property
    def width(self) -> int:
        """Elements of a row: those that an output channel meets, and a one."""
        return self.channels // self.groups * int(np.prod(self.kernel)) + 1

    def rows(self, x: Array) -> Array:
        """f32 ``[groups, patches, width]``, the ones last: their products with the rest are the sums. Of many patches ``MOST`` are
        taken, always the same ones."""
        axes = tuple(range(2, x.ndim))
        half = len(axes)
        padded = np.pad(np.asarray(x, np.float32), ((0, 0), (0, 0), *zip(self.pads[:half], self.pads[half:], strict=True)))
        extents = tuple((k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations, strict=True))
        if any(size < extent for size, extent in zip(padded.shape[2:], extents, strict=True)):
            return np.zeros((self.groups, 0, self.width), np.float32)
        seen = np.lib.stride_tricks.sliding_window_view(padded, extents, axis=axes)
        seen = seen[(slice(None), slice(None), *(slice(None, None, s) for s in (*self.strides, *self.dilations)))]
        seen = np.moveaxis(seen, 1, half + 1)  # [B, out..., C, kernel...]
        places = seen.shape[:half + 1]
        count = int(np.prod(places))
        chosen = np.arange(count) if count <= MOST else np.sort(np.random.default_rng(count).choice(count, MOST, replace=False))
        rows = seen[np.unravel_index(chosen, places)].reshape(len(chosen), self.groups, -1).swapaxes(0, 1)
        return np.concatenate([rows, np.ones((*rows.shape[:2], 1), np.float32)], axis=2)


def moments(gram: Array) -> tuple[Array, Array, Array]:
    """Mean ``[G, K]``, mean square ``[G, K]`` and covariance ``[G, K, K]``, f64, from the sums ``[G (K + 1), K + 1]`` of products
    of rows' elements."""
    sums = gram.reshape(-1, gram.shape[1], gram.shape[1]).astype(np.float64)
    sums /= np.maximum(sums[:, -1:, -1:], 1)
    mean, products = sums[:, :-1, -1], sums[:, :-1, :-1]
    return mean, np.einsum("gkk->gk", products), products - mean[:, :, None] * mean[:, None, :]
