"""WEIGHTS: every constant of every program once, in the layout that the kernels read."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np

from infc.compiler.artifact.layout import SECTION_ALIGN
from infc.plugins.cpu.values import Buffer, Step

PANEL = 32


def f32_k1n32(b: np.ndarray) -> np.ndarray:
    """[K, N] as panels of 32 columns, each K rows of 32 consecutive floats; the last panel is padded with zeros."""
    k, n = b.shape
    panels = -(-n // PANEL)
    packed = np.zeros((panels, k, PANEL), np.float32)
    whole = n // PANEL
    packed[:whole] = b[:, : whole * PANEL].reshape(k, whole, PANEL).transpose(1, 0, 2)
    if whole < panels:
        packed[whole, :, : n - whole * PANEL] = b[:, whole * PANEL :]
    return packed


class Weights:
    """The section under construction. Equal contents in equal packings are stored once, in order of first use."""

    def __init__(self) -> None:
        self.offsets: dict[Buffer, int] = {}
        self.size = 0
        self._known: dict[tuple[bytes, tuple[int, ...], str, str], int] = {}
        self._chunks: list[tuple[int, np.ndarray]] = []

    def add(self, steps: Iterable[Step]) -> None:
        """Places the constants that the steps read."""
        for step in steps:
            for ref in step.inputs:
                if ref.buffer.space == "WEIGHTS" and ref.buffer not in self.offsets:
                    self.offsets[ref.buffer] = self._place(ref.buffer)

    def _place(self, buffer: Buffer) -> int:
        data = buffer.data
        assert data is not None
        shape = data.shape if buffer.packing != "ROW_MAJOR" else ()
        key = (hashlib.sha256(data.reshape(-1).view(np.uint8).data).digest(), shape, str(data.dtype), buffer.packing)
        if key not in self._known:
            stored = f32_k1n32(data) if buffer.packing == "F32_K1N32" else data
            self._known[key] = self.size
            self._chunks.append((self.size, stored))
            self.size = -(-(self.size + stored.nbytes) // SECTION_ALIGN) * SECTION_ALIGN
        return self._known[key]

    def tobytes(self) -> memoryview:
        """The section's bytes."""
        section = np.zeros(self.size, np.uint8)
        for offset, array in self._chunks:
            section[offset : offset + array.nbytes] = np.frombuffer(array.tobytes(), np.uint8)
        return memoryview(section.data)
