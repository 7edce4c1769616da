"""Offsets for blocks of memory that are in use at known times, so that no two in use at once share a byte."""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from infc.compiler.artifact.layout import ARENA_ALIGN

Span = tuple[int, int]  # the first and the last moment


@dataclass(frozen=True)
class Block:
    """``nbytes``, and ``spans``: when the block is in use, one list for each way the program may be run."""

    nbytes: int
    spans: tuple[tuple[Span, ...], ...]

    @staticmethod
    def of(nbytes: int, times: Iterable[Iterable[Span]]) -> Block:
        return Block(nbytes, tuple(tuple(_merged(spans)) for spans in times))

    def meets(self, other: Block) -> bool:
        return any(_meet(a, b) if len(a) <= len(b) else _meet(b, a) for a, b in zip(self.spans, other.spans, strict=True))

    @property
    def size(self) -> int:
        """Bytes that it takes, alignment included."""
        return aligned(self.nbytes)

    @cached_property
    def times(self) -> list[Span]:
        """When the block is in use, in whichever way."""
        return _merged(span for spans in self.spans for span in spans)


def aligned(nbytes: int) -> int:
    return -(-nbytes // ARENA_ALIGN) * ARENA_ALIGN


def _merged(spans: Iterable[Span]) -> list[Span]:
    found: list[Span] = []
    for first, last in sorted(spans):
        if found and first <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], last))
        else:
            found.append((first, last))
    return found


def _meet(few: Sequence[Span], many: Sequence[Span]) -> bool:
    for first, last in few:
        after = bisect_left(many, (last + 1,))  # those before it begin no later than this ends
        if after and many[after - 1][1] >= first:
            return True
    return False


def by_size(blocks: Sequence[Block]) -> list[int]:
    """Largest first, each into the tightest gap that its neighbours in time leave. The time grows with the square of the number."""
    offsets: dict[int, int] = {}
    for i in sorted(range(len(blocks)), key=lambda i: -blocks[i].nbytes):
        size = blocks[i].size
        taken = sorted((at, at + blocks[other].size) for other, at in offsets.items() if blocks[i].meets(blocks[other]))
        best: tuple[int, int] | None = None
        end = 0
        for start, stop in taken:
            if start - end >= size and (best is None or start - end < best[0]):
                best = (start - end, end)
            end = max(end, stop)
        offsets[i] = best[1] if best else end
    return [offsets[i] for i in range(len(blocks))]


class _Free:
    """Gaps between allocated ranges, found by size and by their ends."""

    def __init__(self) -> None:
        self.end = 0
        self._sizes: list[tuple[int, int]] = []  # (size, start), sorted
        self._starts: dict[int, int] = {}  # start: stop
        self._stops: dict[int, int] = {}  # stop: start

    def take(self, size: int) -> int:
        at = bisect_left(self._sizes, (size, 0))
        if at == len(self._sizes):
            start = self._stops.get(self.end, self.end)  # a gap at the end grows
            if start < self.end:
                self._forget(start, self.end)
            self.end = start + size
            return start
        found, start = self._sizes[at]
        self._forget(start, start + found)
        if found > size:
            self._add(start + size, start + found)
        return start

    def give(self, start: int, stop: int) -> None:
        if stop in self._starts:
            after = self._starts[stop]
            self._forget(stop, after)
            stop = after
        if start in self._stops:
            before = self._stops[start]
            self._forget(before, start)
            start = before
        self._add(start, stop)

    def _add(self, start: int, stop: int) -> None:
        insort(self._sizes, (stop - start, start))
        self._starts[start], self._stops[stop] = stop, start

    def _forget(self, start: int, stop: int) -> None:
        del self._sizes[bisect_left(self._sizes, (stop - start, start))]
        del self._starts[start], self._stops[stop]


def by_time(blocks: Sequence[Block]) -> list[dict[int, int]]:
    """In the order of time, each into the tightest gap there is at its moment; for each block the offsets by the first moments of
    its ``times``. For many blocks: the time grows little more than with their number, the memory is somewhat more."""
    offsets: list[dict[int, int]] = [{} for _ in blocks]
    free = _Free()
    ends: list[tuple[int, int, int]] = []  # last moment, start and stop
    for (first, last), i in sorted((span, i) for i, block in enumerate(blocks) for span in block.times):
        while ends and ends[0][0] < first:
            free.give(*heapq.heappop(ends)[1:])
        start = offsets[i][first] = free.take(blocks[i].size)
        heapq.heappush(ends, (last, start, start + blocks[i].size))
    return offsets
