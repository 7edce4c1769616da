"""WEIGHTS: every constant of every program once, in the layout that the kernels read."""

from __future__ import annotations

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


class Constants:
    """What the programs of all profiles hold: each packs its own, and of equal ones the first is kept."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], np.ndarray] = {}

    def keep(self, buffer: Buffer) -> None:
        """Lets a constant lie where an equal one does already."""
        data = buffer.data
        if data is not None and "content" not in vars(buffer):
            buffer.data = self._known.setdefault((*buffer.content, data.shape), data)


class Weights:
    """The section under construction. Equal contents in equal packings are stored once, in order of first use."""

    def __init__(self) -> None:
        self.offsets: dict[Buffer, int] = {}
        self.size = 0
        self._known: dict[tuple[object, ...], int] = {}
        self._chunks: list[tuple[int, Buffer]] = []

    def add(self, steps: Iterable[Step]) -> None:
        """Places the constants that the steps read."""
        for step in steps:
            for ref in step.inputs:
                if ref.buffer.space == "WEIGHTS" and ref.buffer not in self.offsets:
                    self.offsets[ref.buffer] = self._place(ref.buffer)

    def _place(self, buffer: Buffer) -> int:
        if buffer.content not in self._known:
            self._known[buffer.content] = self.size
            self._chunks.append((self.size, buffer))
            self.size = -(-(self.size + _stored(buffer)) // SECTION_ALIGN) * SECTION_ALIGN
        return self._known[buffer.content]

    def tobytes(self) -> memoryview:
        """The section's bytes."""
        section = np.zeros(self.size, np.uint8)
        for offset, buffer in self._chunks:
            assert buffer.data is not None
            array = f32_k1n32(buffer.data) if buffer.packing == "F32_K1N32" else buffer.data
            section[offset : offset + array.nbytes] = array.reshape(-1).view(np.uint8)
        return memoryview(section.data)


def _stored(buffer: Buffer) -> int:
    """Bytes of a constant in the section."""
    assert buffer.data is not None
    if buffer.packing != "F32_K1N32":
        return buffer.nbytes
    k, n = buffer.data.shape
    return int(4 * k * (-(-n // PANEL) * PANEL))
