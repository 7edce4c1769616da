"""Re-verifies a program from its encoded bytes, by other code than the planner's: every build runs it.

It knows of the lowering only which steps write each input. Threads are simulated at their worst: every row of a ROWS split is a
thread of its own, every column and thread of the other splits may be anywhere between two meetings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, combinations

from infc.compiler.artifact.layout import ARENA_ALIGN, DTYPE_SIZES, SPACES, SPLITS
from infc.compiler.artifact.program import Operand, Program, Step, decode
from infc.compiler.errors import InternalError
from infc.plugins.cpu.access import is_row_local, may_lie_under_output, roles
from infc.plugins.cpu.dataflow import DataCheck
from infc.plugins.cpu.regions import Region, regions
from infc.plugins.cpu.touches import NEVER, ROWS, Spans, Touch, meeting


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
    dynamic = [[p for operand, p in zip(step.inputs, producers[i], strict=True)
                if operand.space in (SPACES["ARENA"], SPACES["OUTPUT"])] for i, step in enumerate(program.steps)]
    DataCheck(found, touched, lambda step, message: _fail(program, step, message)).run(dynamic)


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
    alone, divided = Spans(), Spans()  # since the last meeting, thread 0's and those of all
    for i, step in enumerate(program.steps):
        serial = step.split[schedule] == SPLITS["SERIAL"]
        if i < program.prologue_steps:
            if not serial:
                raise _fail(program, i, "of the prologue is divided")
            continue
        if step.barrier[schedule] or i == program.prologue_steps:
            alone, divided = Spans(), Spans()
        for b in touched[i]:
            for a in chain(divided.near(b), () if serial else alone.near(b)):
                if (a.writes or b.writes) and not _ordered(program, a, b, schedule):
                    raise _fail(program, i, f"meets step {a.step} in another thread (schedule {schedule})")
        for t in touched[i]:
            kind = (t.memory, t.start, t.rows, t.pitch, t.length, t.writes, t.local, step.split[schedule], _rows_key(step))
            (alone if serial else divided).add(t, kind)


def _rows_key(step: Step) -> tuple[int, int]:
    """Equal for steps whose rows are divided alike."""
    return step.rows_symbol, step.rows if step.rows_symbol < 0 else 0


def _ordered(program: Program, a: Touch, b: Touch, schedule: int) -> bool:
    """Whether a thread meets in b only what it did itself in a."""
    first, second = program.steps[a.step], program.steps[b.step]
    splits = {first.split[schedule], second.split[schedule]}
    met = meeting(a, b)
    if met == NEVER:
        return True
    return met == ROWS and splits == {SPLITS["ROWS"]} and _rows_key(first) == _rows_key(second) and a.local and b.local
