"""The arena: where each buffer lies, so that no two that are in use at the same time share a byte.

"At the same time" means: no meeting of all threads lies between them, in either schedule. Inside such a region buffers of one row
pitch may still share, because a thread touches only its own rows of both, in program order; they form a slot.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from infc.plugins.cpu.placement import Block, Span, aligned, by_size, by_time
from infc.plugins.cpu.regions import regions_by_step
from infc.plugins.cpu.schedule import Access, Schedule, accesses, regions_of
from infc.plugins.cpu.values import Buffer, Step

SERIAL = ("SERIAL",)
_TRIED = 256  # slots of one size that a buffer is tried on
_MANY = 2_000_000  # slots times buffers from which the best placement takes too long to find


@dataclass(frozen=True)
class _Use:
    """How a buffer is used in one region: ``mode`` is SERIAL, or the rows key if all uses keep to their rows of one extent, or None
    for anything else; ``step`` is the only step that uses it, or None."""

    mode: tuple[str | int, ...] | None
    step: int | None


_HELD = _Use(None, None)  # in a loop that uses it before or after, in other iterations


@dataclass(eq=False)
class _Life:
    """A buffer from its first step to its last, its uses by schedule and region, and the row pitch they share, or None. What a loop
    and the steps around it use lives from before its first iteration to the end of its last."""

    buffer: Buffer
    touched: list[Access]
    first: int
    last: int
    pitch: int | None
    uses: list[dict[int, _Use]] = field(default_factory=list)


@dataclass(eq=False)
class _Slot:
    """Buffers at one place. ``telling``: a few of them, with which a later buffer need be compared; ``last``: their last step."""

    number: int
    size: int
    members: list[_Life] = field(default_factory=list)
    telling: list[_Life] = field(default_factory=list)
    last: int = 0


class _Pool:
    """Slots of one size: in the order they were made those whose buffers have ended, which alone can take another, and the rest."""

    def __init__(self) -> None:
        self._idle: list[tuple[int, _Slot]] = []
        self._busy: list[tuple[int, int, _Slot]] = []  # by the last step

    def take(self, first: int, fits: Callable[[_Slot], bool]) -> _Slot | None:
        """The first one that fits a buffer which begins at step ``first``."""
        while self._busy and self._busy[0][0] <= first:
            insort(self._idle, heapq.heappop(self._busy)[1:])
        found = next((i for i, (_, slot) in enumerate(self._idle[:_TRIED]) if fits(slot)), None)
        return None if found is None else self._idle.pop(found)[1]

    def give(self, slot: _Slot) -> None:
        heapq.heappush(self._busy, (slot.last, slot.number, slot))


@dataclass
class Plan:
    """Byte offsets of ARENA buffers, and the arena's size."""

    offsets: dict[Buffer, int]
    size: int


class _Planner:
    def __init__(self, steps: Sequence[Step], schedules: Sequence[Schedule], prologue: int) -> None:
        self.regions = [s.regions(prologue) for s in schedules]
        self.lives = _lives(steps)
        for life in self.lives:
            life.uses = [_uses(steps, life, s.split, r) for s, r in zip(schedules, self.regions, strict=True)]

    def apart(self, a: _Life, b: _Life) -> bool:
        """Whether every use of one buffer comes before every use of the other, whatever the threads do."""
        if a.first > b.first:
            a, b = b, a
        if a.last >= b.first:
            return False
        return all(uses.get(r, _HELD).mode == others.get(r, _HELD).mode == SERIAL for r, uses, others in self._shared(a, b))

    def row_local(self, a: _Life, b: _Life, in_place: bool) -> bool:
        """Whether the two may lie at the same place because each thread keeps to its rows."""
        if a.first > b.first:
            a, b = b, a
        if a.pitch is None or a.pitch != b.pitch or a.last > b.first or (a.last == b.first and not self._aliases(a, b, in_place)):
            return False
        for region, uses, others in self._shared(a, b):
            use, other = uses.get(region, _HELD), others.get(region, _HELD)
            one_step = use.step == other.step == a.last  # an elementwise step on its own may be divided in any way
            if not one_step and (use.mode is None or use.mode != other.mode):
                return False
        return True

    def _shared(self, a: _Life, b: _Life) -> Iterator[tuple[int, dict[int, _Use], dict[int, _Use]]]:
        """By schedule, the region in which a's last use and b's first meet, if any, and the uses of both."""
        for region, uses, others in zip(self.regions, a.uses, b.uses, strict=True):
            if region[a.last] == region[b.first]:
                yield region[a.last], uses, others

    def joins(self, life: _Life, in_place: bool, slot: _Slot) -> bool:
        """Whether the buffer may lie where the slot's members lie."""
        local = [self.row_local(m, life, in_place) for m in slot.telling]
        return any(local) and all(ok or self.apart(m, life) for ok, m in zip(local, slot.telling, strict=True))

    def add(self, slot: _Slot, life: _Life) -> None:
        """Lives come in the order of their first steps: of members that ended before one, alike ones fare alike with all later."""
        slot.members.append(life)
        ended = {self._kind(m, life.first): m for m in slot.telling if m.last < life.first}
        slot.telling = [*ended.values(), *(m for m in slot.telling if m.last >= life.first), life]

    def _kind(self, ended: _Life, step: int) -> tuple[object, ...]:
        """What ``apart`` and ``row_local`` ask of a buffer that ended before ``step``: pitch, and use in the regions of that."""
        return (ended.pitch, *(uses.get(region[step], _HELD).mode if region[ended.last] == region[step] else "past"
                               for region, uses in zip(self.regions, ended.uses, strict=True)))

    def span(self, life: _Life, schedule: int) -> Span:
        """The steps at which nobody else may have the buffer's bytes: where threads may be at any step of a region, all of that."""
        regions, uses = self.regions[schedule], life.uses[schedule]
        first, last = regions[life.first], regions[life.last]
        return (life.first if uses.get(first, _HELD).mode == SERIAL else bisect_left(regions, first),
                life.last if uses.get(last, _HELD).mode == SERIAL else bisect_right(regions, last) - 1)

    def _aliases(self, a: _Life, b: _Life, in_place: bool) -> bool:
        """Whether step a.last may write b over a."""
        reads = [t for t in a.touched if t.step == a.last]
        writes = [t for t in b.touched if t.step == b.first]
        return in_place and bool(reads) and all(
            r.in_place and r.local and w.local and not r.writes and (r.ref.start, r.ref.dims, r.ref.pitch, r.ref.row_bytes)
            == (w.ref.start, w.ref.dims, w.ref.pitch, w.ref.row_bytes) for r in reads for w in writes)


def plan(steps: Sequence[Step], schedules: Sequence[Schedule], prologue: int, in_place: bool = True, chains: bool = True) -> Plan:
    """Places every ARENA buffer. ``in_place``: outputs may lie on inputs; ``chains``: rows of a region may reuse memory."""
    planner = _Planner(steps, schedules, prologue)
    slots: list[_Slot] = []
    pools: dict[int, _Pool] = {}
    for life in planner.lives:
        pool = pools.setdefault(life.buffer.nbytes, _Pool())
        slot = None
        if chains and life.pitch is not None:
            slot = pool.take(life.first, partial(planner.joins, life, in_place))
        if slot is None:
            slot = _Slot(len(slots), life.buffer.nbytes)
            slots.append(slot)
        planner.add(slot, life)
        slot.last = max(slot.last, life.last)
        pool.give(slot)
    return _place(planner, slots)


def _lives(steps: Sequence[Step]) -> list[_Life]:
    by_buffer: dict[Buffer, list[Access]] = {}
    for touched in accesses(steps):
        for access in touched:
            if access.ref.buffer.space == "ARENA":
                by_buffer.setdefault(access.ref.buffer, []).append(access)
    loops = [[r for r in near if r.repeats] for near in regions_by_step(regions_of(steps), len(steps))]
    lives = []
    for buffer, touched in by_buffer.items():
        first, last = touched[0].step, touched[-1].step
        for loop in {r for t in touched for r in loops[t.step]}:
            if not all(loop.repeated(t.step) for t in touched):
                first, last = min(first, loop.control), max(last, loop.end - 1)
        pitches = {t.ref.pitch for t in touched if t.local}
        inside = all(t.ref.start + t.ref.row_bytes <= t.ref.pitch for t in touched if t.local)
        pitch = pitches.pop() if len(pitches) == 1 and inside else None
        lives.append(_Life(buffer, touched, first, last, pitch))
    return sorted(lives, key=lambda life: life.first)


def _uses(steps: Sequence[Step], life: _Life, split: Sequence[str], region: Sequence[int]) -> dict[int, _Use]:
    found: dict[int, list[Access]] = {}
    for access in life.touched:
        found.setdefault(region[access.step], []).append(access)
    uses = {}
    for number, near in found.items():
        modes = {_mode(steps[t.step], split[t.step], t) for t in near}
        numbers = {t.step for t in near}
        uses[number] = _Use(modes.pop() if len(modes) == 1 else None, numbers.pop() if len(numbers) == 1 else None)
    return uses


def _mode(step: Step, split: str, access: Access) -> tuple[str | int, ...] | None:
    if split == "SERIAL":
        return SERIAL
    return ("ROWS", step.rows_key) if split == "ROWS" and access.local else None


def _place(planner: _Planner, slots: list[_Slot]) -> Plan:
    """The best placement that the number of buffers leaves time for."""
    blocks = [Block.of(s.size, [[planner.span(m, i) for m in s.members] for i in range(len(planner.regions))]) for s in slots]
    offsets: dict[Buffer, int] = {}
    if len(slots) * len(planner.lives) <= _MANY:
        for slot, at in zip(slots, by_size(blocks), strict=True):
            offsets |= dict.fromkeys((m.buffer for m in slot.members), at)
    else:
        for slot, block, found in zip(slots, blocks, by_time(blocks), strict=True):
            for m in slot.members:
                at = bisect_left(block.times, (m.first + 1,)) - 1
                offsets[m.buffer] = found[block.times[at][0]]
    return Plan(offsets, max((at + aligned(buffer.nbytes) for buffer, at in offsets.items()), default=0))
