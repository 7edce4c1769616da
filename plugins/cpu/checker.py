"""Re-verifies a program from its encoded bytes, by other code than the planner's: every build runs it.

It knows of the lowering only which steps write each input. Threads are simulated at their worst: every row of a ROWS split is a
thread of its own, every column and thread of the other splits may be anywhere between two meetings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from infc.compiler.artifact.layout import ARENA_ALIGN, DTYPE_SIZES, SPACES, SPLITS
from infc.compiler.artifact.program import Operand, Program, Step, decode
from infc.compiler.errors import InternalError
from infc.plugins.cpu.access import is_row_local, may_lie_under_output, roles
from infc.plugins.cpu.regions import Region, regions

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

    @property
    def end(self) -> int:
        return self.start + (self.rows - 1) * self.pitch + self.length


def check(data: bytes, operators: Mapping[str, str], producers: Sequence[Sequence[frozenset[int]]]) -> None:
    """Raises InternalError E0901 if threads could meet in memory or a step read what its ``producers`` did not write.

    ``operators`` maps kernels to operators; ``producers[step][input]`` holds the steps that write the input, empty for inputs of
    the graph and weights.
    """
    program = decode(data)
    touched = [_touches(program, i, step, operators[step.kernel]) for i, step in enumerate(program.steps)]
    found = regions([(operators[step.kernel], step.words) for step in program.steps])
    _check_steps(program, touched)
    _check_data(program, found, touched, producers)
    for schedule in range(program.schedule_count):
        _check_regions(program, found, schedule)
        _check_threads(program, touched, schedule)


def _fail(program: Program, step: int, message: str) -> InternalError:
    return InternalError("E0901", f"step {step} ({program.steps[step].name}) {message}", where="the cpu target's plan",
                         hint="report this with the model; meanwhile build with --disable in-place,row-chains")


def _touches(program: Program, number: int, step: Step, op: str) -> list[Touch]:
    inputs, outputs = roles(op, step.words)
    if (len(inputs), len(outputs)) != (len(step.inputs), len(step.outputs)):
        raise _fail(program, number, "has other operands than its words announce")
    pairs = [*((o, r, False) for o, r in zip(step.inputs, inputs, strict=True)),
             *((o, r, True) for o, r in zip(step.outputs, outputs, strict=True))]
    result = []
    for operand, role, writes in pairs:
        if operand.space not in (SPACES["ARENA"], SPACES["OUTPUT"]):
            if writes:
                raise _fail(program, number, "writes to an input or to weights")
            continue
        local = is_row_local(op, step.words, step.rows, role, operand.dims, operand.row_stride)
        result.append(_touch(number, operand, writes, local, may_lie_under_output(op, step.words, role)))
    return result


def _touch(number: int, operand: Operand, writes: bool, local: bool, in_place: bool) -> Touch:
    size = DTYPE_SIZES[operand.dtype]
    length = size
    for d in operand.dims[1:]:
        length *= d
    output = operand.space == SPACES["OUTPUT"]
    return Touch(number, (operand.space, operand.offset if output else 0), 0 if output else operand.offset, operand.dims[0],
                 operand.row_stride * size, length, writes, local, in_place)


def meeting(a: Touch, b: Touch) -> str:
    """Whether the two share bytes: NEVER, ROWS (only row r of one with row r of the other) or ANY."""
    if a.memory != b.memory or a.end <= b.start or b.end <= a.start:
        return NEVER
    starts_a = a.start + np.arange(a.rows, dtype=np.int64) * a.pitch
    starts_b = b.start + np.arange(b.rows, dtype=np.int64) * b.pitch
    first = np.searchsorted(starts_a + a.length, starts_b, side="right")  # rows of a from here on end after row of b begins
    last = np.searchsorted(starts_a, starts_b + b.length, side="left")  # rows of a before here begin before row of b ends
    hit = np.flatnonzero(last > first)
    if not len(hit):
        return NEVER
    return ROWS if bool(np.all((first[hit] == hit) & (last[hit] == hit + 1))) else ANY


def _check_steps(program: Program, touched: Sequence[Sequence[Touch]]) -> None:
    """Bounds, and what lies on the same bytes within one step."""
    for i, touches in enumerate(touched):
        for t in touches:
            if t.memory[0] == SPACES["ARENA"] and (t.end > program.arena_size or t.start % ARENA_ALIGN):
                raise _fail(program, i, "leaves the arena")
        for a, b in combinations(touches, 2):
            if (a.writes or b.writes) and meeting(a, b) != NEVER:
                source = a if b.writes else b
                same = (a.start, a.rows, a.pitch, a.length) == (b.start, b.rows, b.pitch, b.length)
                if (a.writes and b.writes) or not (source.in_place and same and a.local and b.local):
                    raise _fail(program, i, "writes over its own operand")


def _check_data(program: Program, found: Sequence[Region], touched: Sequence[Sequence[Touch]],
                producers: Sequence[Sequence[frozenset[int]]]) -> None:
    """Every read finds what its producers wrote, whichever way control flow takes."""
    for i, step in enumerate(program.steps):
        dynamic = [p for operand, p in zip(step.inputs, producers[i], strict=True)
                   if operand.space in (SPACES["ARENA"], SPACES["OUTPUT"])]
        around = [r for r in found if r.repeated(i)]
        for read, every in zip([t for t in touched[i] if not t.writes], dynamic, strict=True):
            makers = frozenset(m for m in every if not _exclusive(found, m, i))
            later = [m for m in makers if m >= i]
            if not _made(found, {m for m in makers if m < i}, i) or any(not any(r.repeated(m) for r in around) for m in later):
                raise _fail(program, i, "reads what no step before it writes")
            if all(meeting(read, w) == NEVER for m in makers for w in touched[m] if w.writes):
                raise _fail(program, i, "reads other memory than its producers write")
            for other in _between(found, around, makers, i):
                if other not in every and not _exclusive(found, other, i) and any(
                        w.writes and meeting(read, w) != NEVER for w in touched[other]):
                    raise _fail(program, i, f"reads what step {other} wrote over")


def _exclusive(found: Sequence[Region], a: int, b: int) -> bool:
    """Whether the steps are in different parts of one branch."""
    return any(not r.repeats and r.holds(a) and r.holds(b) and (a < r.then_end) != (b < r.then_end) for r in found)


def _made(found: Sequence[Region], makers: set[int], reader: int) -> bool:
    """Whether one of these steps, which come before the reader and are in no other part of a branch around it, runs for certain.
    Loops are taken to run: what they alone make is read only where their number of trips is known."""
    made = set(makers)
    for region in reversed(found):  # inner ones first
        if region.repeats or region.holds(reader):
            continue
        inside = {m for m in made if region.holds(m)}
        made -= inside
        if any(m < region.then_end for m in inside) and any(m >= region.then_end for m in inside):
            made.add(region.control)
    return bool(made)


def _between(found: Sequence[Region], around: Sequence[Region], makers: frozenset[int], reader: int) -> set[int]:
    """Steps that run while the value waits for its reader: those in between, and all of a loop through whose iterations it lasts,
    because none of them is certain to make it before the reader."""
    steps = set(range(min(makers) + 1, reader))
    for loop in around:
        if not _made(found, {m for m in makers if m < reader and loop.repeated(m)}, reader):
            steps |= set(range(loop.control, loop.end))
    return steps - {reader}


def _check_regions(program: Program, found: Sequence[Region], schedule: int) -> None:
    """All threads meet around a region they go through together; one that thread 0 goes through alone divides nothing."""
    for region in found:
        if program.steps[region.control].split[schedule] != SPLITS["SERIAL"]:
            for i in (region.control, *region.boundaries):
                if i < len(program.steps) and not program.steps[i].barrier[schedule]:
                    raise _fail(program, i, "begins or ends a region without a barrier")
        else:
            for i in range(region.control + 1, region.end):
                if program.steps[i].split[schedule] != SPLITS["SERIAL"] or program.steps[i].barrier[schedule]:
                    raise _fail(program, i, "is divided in a region that one thread runs")


def _check_threads(program: Program, touched: Sequence[Sequence[Touch]], schedule: int) -> None:
    """No two threads share a byte that one of them writes, between two meetings of all."""
    region: dict[tuple[object, ...], Touch] = {}  # since the last meeting, one of each kind
    for i, step in enumerate(program.steps):
        if i < program.prologue_steps:
            if step.split[schedule] != SPLITS["SERIAL"]:
                raise _fail(program, i, "of the prologue is divided")
            continue
        if step.barrier[schedule] or i == program.prologue_steps:
            region = {}
        for b in touched[i]:
            for a in region.values():
                if (a.writes or b.writes) and not _ordered(program, a, b, schedule):
                    raise _fail(program, i, f"meets step {a.step} in another thread (schedule {schedule})")
        for t in touched[i]:
            region[t.memory, t.start, t.rows, t.pitch, t.length, t.writes, t.local, step.split[schedule], _rows_key(step)] = t


def _rows_key(step: Step) -> tuple[int, int]:
    """Equal for steps whose rows are divided alike."""
    return step.rows_symbol, step.rows if step.rows_symbol < 0 else 0


def _ordered(program: Program, a: Touch, b: Touch, schedule: int) -> bool:
    """Whether a thread meets in b only what it did itself in a."""
    first, second = program.steps[a.step], program.steps[b.step]
    splits = {first.split[schedule], second.split[schedule]}
    if splits == {SPLITS["SERIAL"]}:
        return True
    met = meeting(a, b)
    if met == NEVER:
        return True
    return met == ROWS and splits == {SPLITS["ROWS"]} and _rows_key(first) == _rows_key(second) and a.local and b.local
