"""Whether every read of a program finds what its producers wrote, whichever way control flow takes: a part of the checker.

Memory is cut where touches begin and end. A walk through the steps notes for each piece who wrote it last, so that a read is
compared with the few writes that may have come in between and not with all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from infc.plugins.cpu.regions import Region, regions_by_step
from infc.plugins.cpu.touches import NEVER, Touch, meeting

Fail = Callable[[int, str], Exception]
_NOBODY = -1


class _Written:
    """Who wrote each piece of memory last and in which step, and the last step of somebody else before that."""

    def __init__(self, touches: Iterable[Touch]) -> None:
        cuts: dict[tuple[int, int], set[int]] = {}
        for t in touches:
            cuts.setdefault(t.memory, set()).update((t.start, t.end))
        self._piece = {memory: {at: i for i, at in enumerate(sorted(found))} for memory, found in cuts.items()}
        self._owner, self._last, self._before = (
            {memory: np.full(len(found), _NOBODY, np.int64) for memory, found in cuts.items()} for _ in range(3))

    def _pieces(self, touch: Touch) -> slice:
        piece = self._piece[touch.memory]
        return slice(piece[touch.start], piece[touch.end])

    def write(self, touch: Touch, owner: int) -> None:
        where, memory = self._pieces(touch), touch.memory
        owners, last, before = self._owner[memory][where], self._last[memory][where], self._before[memory][where]
        before[:] = np.where(owners == owner, before, last)
        owners[:], last[:] = owner, touch.step

    def by_others(self, touch: Touch, owner: int) -> int:
        """The last step in which anybody but the owner wrote there, -1 for none."""
        where, memory = self._pieces(touch), touch.memory
        mine = self._owner[memory][where] == owner
        return int(np.where(mine, self._before[memory][where], self._last[memory][where]).max())

    def by_owner(self, touch: Touch, owner: int) -> int:
        """The last step in which the owner wrote what nobody wrote over, -1 for none."""
        where, memory = self._pieces(touch), touch.memory
        return int(np.where(self._owner[memory][where] == owner, self._last[memory][where], _NOBODY).max())


@dataclass(frozen=True)
class _Read:
    """``makers``: the producers that are not in another part of a branch around the reader. The value waits for the reader through
    all of ``window``."""

    touch: Touch
    owner: int
    every: frozenset[int]
    makers: frozenset[int]
    window: range


class DataCheck:
    """``touched`` is what each step touches; ``fail`` makes the error of a step."""

    def __init__(self, found: Sequence[Region], touched: Sequence[Sequence[Touch]], fail: Fail) -> None:
        self._touched, self._fail = touched, fail
        self._near = regions_by_step(found, len(touched))
        self._numbers: dict[frozenset[int], int] = {}
        self._known: dict[tuple[object, ...], bool] = {}
        self._makers: dict[tuple[object, ...], frozenset[int]] = {}
        self._bounds: dict[frozenset[int], tuple[int, int]] = {}

    def run(self, dynamic: Sequence[Sequence[frozenset[int]]]) -> None:
        """Raises what ``fail`` makes. ``dynamic`` holds for each step the producers of each input that steps write."""
        due: list[list[_Read]] = [[] for _ in range(len(self._touched) + 1)]
        for i, producers in enumerate(dynamic):
            for touch, every in zip((t for t in self._touched[i] if not t.writes), producers, strict=True):
                read = self._read(i, touch, every)
                due[read.window.stop].append(read)
        owners = self._owners()
        written = _Written(t for touches in self._touched for t in touches)
        for i in range(len(self._touched) + 1):
            for read in due[i]:
                self._check(read, written)
            for t in self._touched[i] if i < len(self._touched) else ():
                if t.writes:
                    written.write(t, owners[i])

    def _owners(self) -> list[int]:
        """The number of the producers that each step belongs to. One that makes several values is nobody's, so that its writes
        count as others' until they are looked at."""
        owners = [_NOBODY] * len(self._touched)
        for every, number in self._numbers.items():
            for m in every:
                owners[m] = number if owners[m] == _NOBODY else len(self._numbers) + m
        return owners

    def _read(self, i: int, touch: Touch, every: frozenset[int]) -> _Read:
        owner = self._numbers.setdefault(every, len(self._numbers))
        parts = tuple((r.control, i < r.then_end) for r in self._near[i] if not r.repeats and r.holds(i))
        makers = self._makers.get((owner, parts))
        if makers is None:
            makers = every if not parts else frozenset(m for m in every if not self._exclusive(m, i))
            self._makers[owner, parts] = makers
        around = [r for r in self._near[i] if r.repeated(i)]
        first, last = self._span(makers)
        late = [m for m in makers if m >= i] if last >= i else []
        if not self._made(owner, parts, makers, i, None) or any(not any(r.repeated(m) for r in around) for m in late):
            raise self._fail(i, "reads what no step before it writes")
        start, stop = first + 1, i
        for loop in around:
            if not self._made(owner, parts, makers, i, loop):  # not certain to be made before the reader in each iteration
                start, stop = min(start, loop.control), max(stop, loop.end)
        return _Read(touch, owner, every, makers, range(start, stop))

    def _span(self, makers: frozenset[int]) -> tuple[int, int]:
        if makers not in self._bounds:
            self._bounds[makers] = (min(makers, default=-1), max(makers, default=-1))
        return self._bounds[makers]

    def _exclusive(self, a: int, b: int) -> bool:
        """Whether the steps are in different parts of one branch."""
        return any(not r.repeats and r.holds(a) and r.holds(b) and (a < r.then_end) != (b < r.then_end) for r in self._near[a])

    def _made(self, owner: int, parts: tuple[object, ...], makers: frozenset[int], reader: int, loop: Region | None) -> bool:
        """Whether a maker before the reader, in this loop, runs for certain."""
        if self._span(makers)[1] >= reader:
            return self._certain({m for m in makers if m < reader and (loop is None or loop.repeated(m))}, reader)
        key = (owner, parts, loop and loop.control)
        if key not in self._known:
            self._known[key] = self._certain({m for m in makers if loop is None or loop.repeated(m)}, reader)
        return self._known[key]

    def _certain(self, made: set[int], reader: int) -> bool:
        """Whether one of these steps, which come before the reader and are in no other part of a branch around it, runs for
        certain. Loops are taken to run: what they alone make is read only where their number of trips is known."""
        inner_first = sorted({r for m in made for r in self._near[m]}, key=lambda r: -r.control)
        for region in inner_first:
            if region.repeats or region.holds(reader):
                continue
            inside = {m for m in made if region.holds(m)}
            made = made - inside
            if any(m < region.then_end for m in inside) and any(m >= region.then_end for m in inside):
                made.add(region.control)
        return bool(made)

    def _check(self, read: _Read, written: _Written) -> None:
        """Nobody else wrote in the window where the producers did."""
        i, touch = read.touch.step, read.touch
        nearest = written.by_owner(touch, read.owner)
        found = nearest in read.makers and self._writes(nearest, touch)
        if not found and not any(self._writes(m, touch) for m in read.makers):
            raise self._fail(i, "reads other memory than its producers write")
        if written.by_others(touch, read.owner) < read.window.start:
            return
        for other in read.window:
            if other != i and other not in read.every and not self._exclusive(other, i) and self._writes(other, touch):
                raise self._fail(i, f"reads what step {other} wrote over")

    def _writes(self, step: int, read: Touch) -> bool:
        return any(w.writes and meeting(read, w) != NEVER for w in self._touched[step])
