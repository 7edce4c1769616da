"""Bytes that steps of a finished program touch, and which of them two steps share: what the checker reasons with."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

NEVER, ROWS, ANY = "never", "rows", "any"


@dataclass(frozen=True)
class Touch:
    """Bytes one step reads or writes: ``rows`` runs of ``length`` bytes, ``pitch`` apart; in an address space by ``memory``."""

    step: int
    memory: tuple[int, int]
    start: int
    rows: int
    pitch: int
    length: int
    writes: bool
    local: bool
    in_place: bool

    @cached_property
    def end(self) -> int:
        return self.start + (self.rows - 1) * self.pitch + self.length


def meeting(a: Touch, b: Touch) -> str:
    """Whether the two share bytes: NEVER, ROWS (only row r of one with row r of the other) or ANY."""
    if a.memory != b.memory or a.end <= b.start or b.end <= a.start:
        return NEVER
    if a.rows == 1 or b.rows == 1 or a.pitch == b.pitch:
        return _alike(a, b, b.pitch if a.rows == 1 else a.pitch)
    starts_a = a.start + np.arange(a.rows, dtype=np.int64) * a.pitch
    starts_b = b.start + np.arange(b.rows, dtype=np.int64) * b.pitch
    first = np.searchsorted(starts_a + a.length, starts_b, side="right")  # rows of a from here on end after row of b begins
    last = np.searchsorted(starts_a, starts_b + b.length, side="left")  # rows of a before here begin before row of b ends
    hit = np.flatnonzero(last > first)
    if not len(hit):
        return NEVER
    return ROWS if bool(np.all((first[hit] == hit) & (last[hit] == hit + 1))) else ANY


def _alike(a: Touch, b: Touch, pitch: int) -> str:
    """``meeting`` for one pitch: row r of a and row r + k of b share bytes for k in a range of numbers."""
    apart, pitch = b.start - a.start, max(pitch, 1)
    least = max((-b.length - apart) // pitch + 1, 1 - a.rows)
    most = min(-((apart - a.length) // pitch) - 1, b.rows - 1)
    if least > most:
        return NEVER
    return ROWS if least == most == 0 else ANY


class Spans:
    """Touches by the bytes from their first to their last, one of each kind."""

    def __init__(self) -> None:
        self._kinds: set[tuple[object, ...]] = set()
        self._starts: dict[tuple[int, int], dict[int, list[tuple[int, int]]]] = {}  # by memory and size: (start, number)
        self._touches: list[Touch] = []

    def add(self, touch: Touch, kind: tuple[object, ...]) -> None:
        """``kind`` is equal for touches that fare alike with all others."""
        if kind not in self._kinds:
            self._kinds.add(kind)
            sizes = self._starts.setdefault(touch.memory, {})
            insort(sizes.setdefault((touch.end - touch.start).bit_length(), []), (touch.start, len(self._touches)))
            self._touches.append(touch)

    def near(self, touch: Touch) -> Iterator[Touch]:
        """Those that may share bytes with a touch, among others."""
        for size, starts in self._starts.get(touch.memory, {}).items():
            for start, number in starts[bisect_left(starts, (touch.start - (1 << size), 0)):]:
                if start >= touch.end:
                    break
                yield self._touches[number]
