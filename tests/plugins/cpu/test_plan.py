"""Schedules and memory: a simulation of threads in random order, and the checker on programs made wrong."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infc import runtime
from infc.compiler.artifact import program as encoding
from infc.compiler.artifact.program import Program
from infc.compiler.errors import InternalError
from infc.compiler.profiles import Profile
from infc.compiler.target import ProgramGraph
from infc.plugins.cpu import checker, memory, target
from infc.plugins.cpu.pack import Weights
from infc.plugins.cpu.schedule import Access, Schedule, accesses
from infc.plugins.cpu.values import Buffer, Ref, Step
from tests.plugins.cpu.graphs import Case, cases
from tests.plugins.cpu.test_graphs import ATTENTION, divided

KERNELS = {f"k_{op}": op for _, op, _ in runtime.kernels()}


def planned(model: onnx.ModelProto, disabled: frozenset[str] = frozenset()) -> target._Plan:
    with divided():
        return target._plan(ProgramGraph(Profile(()), ir.from_proto(model), {}), disabled)


def assembled(plan: target._Plan) -> Program:
    weights = Weights()
    weights.add(plan.lowered.steps)
    program = target._assemble(plan, weights, 0, 0)
    program.steps = [replace(s, kernel=f"k_{v.op}") for s, v in zip(program.steps, plan.lowered.steps, strict=True)]
    return program


def check(program: Program, plan: target._Plan) -> None:
    checker.check(encoding.encode(program), KERNELS, target._producers(plan.lowered.steps))


# ---- Simulation: bytes remember which buffer and byte they hold


def rows_of(ref: Ref, local: bool, part: range) -> Iterator[range]:
    """Byte ranges, from the buffer's start, of the rows that a thread touches."""
    for row in part if local else range(ref.dims[0]):
        start = ref.start + row * ref.pitch
        yield range(start, start + ref.row_bytes)


class Machine:
    def __init__(self, plan: target._Plan) -> None:
        self.offsets = plan.memory.offsets
        self.arena = np.full((plan.memory.size, 2), -1, np.int64)
        self.outputs: dict[Buffer, np.ndarray] = {}
        self.numbers: dict[Buffer, int] = {}

    def memory(self, buffer: Buffer) -> tuple[np.ndarray, int]:
        if buffer.space == "ARENA":
            return self.arena, self.offsets[buffer]
        return self.outputs.setdefault(buffer, np.full((buffer.nbytes, 2), -1, np.int64)), 0

    def touch(self, access: Access, part: range, writes: bool) -> None:
        memory, base = self.memory(access.ref.buffer)
        tag = self.numbers.setdefault(access.ref.buffer, len(self.numbers))
        for span in rows_of(access.ref, access.local, part):
            cells = memory[base + span.start : base + span.stop]
            if writes:
                cells[:, 0], cells[:, 1] = tag, np.arange(span.start, span.stop)
            else:
                assert (cells[:, 0] == tag).all(), f"step {access.step} reads what another wrote"
                assert (cells[:, 1] == np.arange(span.start, span.stop)).all()


def simulate(plan: target._Plan, schedule: Schedule, threads: int, block: int, rng: random.Random) -> None:
    """Runs every region with its threads interleaved at random, each by blocks of rows."""
    steps, touched = plan.lowered.steps, accesses(plan.lowered.steps)
    machine = Machine(plan)
    regions = schedule.regions(plan.lowered.prologue)
    for region in sorted(set(regions)):
        members = [i for i, r in enumerate(regions) if r == region]
        queues = [list(units(steps, schedule, members, t, threads, block)) for t in range(threads)]
        while any(queues):
            i, part = rng.choice([q for q in queues if q]).pop(0)
            for writes in (False, True):
                for access in touched[i]:
                    if access.writes == writes:
                        machine.touch(access, part, writes)


def units(steps: list[Step], schedule: Schedule, members: list[int], thread: int, threads: int,
          block: int) -> Iterator[tuple[int, range]]:
    """What a thread does in a region, in order: chains of steps of equal rows go block by block."""
    at = 0
    while at < len(members):
        i = members[at]
        kind, step = schedule.split[i], steps[i]
        if kind != "ROWS":
            if thread == 0 or kind == "COLS":
                yield i, range(step.rows)
            at += 1
            continue
        chain = [i]
        while at + len(chain) < len(members) and schedule.split[members[at + len(chain)]] == "ROWS" and \
                steps[members[at + len(chain)]].rows_key == step.rows_key:
            chain.append(members[at + len(chain)])
        rows = step.rows
        mine = range(rows * thread // threads, rows * (thread + 1) // threads)
        for start in range(mine.start, mine.stop, block):
            for j in chain:
                yield j, range(start, min(start + block, mine.stop))
        at += len(chain)


@settings(max_examples=40, deadline=None)
@given(cases(), st.integers(1, 4), st.sampled_from([1, 3, 1000]), st.randoms(use_true_random=False))
def test_threads_never_meet(case: Case, threads: int, block: int, rng: random.Random) -> None:
    plan = planned(case.model)
    check(assembled(plan), plan)
    for schedule in plan.schedules:
        # Threads of a COLS step all touch everything here: only what precedes and follows it is simulated.
        simulate(plan, schedule, threads, block, rng)


def test_chains_need_no_barrier() -> None:
    model = ATTENTION
    plan = planned(model)
    assert [s.op for s in plan.lowered.steps] == ["gemm", "attention"]
    assert plan.schedules[0].barrier == [False, True]


@settings(max_examples=40, deadline=None)
@given(cases(), st.data())
def test_a_missing_barrier_is_found(case: Case, data: st.DataObject) -> None:
    plan = planned(case.model)
    program = assembled(plan)
    places = [(i, s) for i, step in enumerate(program.steps) for s in range(program.schedule_count) if step.barrier[s]]
    if not places:
        return
    at, schedule = data.draw(st.sampled_from(places))
    barrier = tuple(0 if s == schedule else b for s, b in enumerate(program.steps[at].barrier))
    program.steps = [replace(s, barrier=barrier) if i == at else s for i, s in enumerate(program.steps)]  # type: ignore[arg-type]
    with pytest.raises(InternalError):
        check(program, plan)


@settings(max_examples=40, deadline=None)
@given(cases(), st.data())
def test_overlapping_buffers_are_found(case: Case, data: st.DataObject) -> None:
    """Two buffers that are in use at the same time, put on the same bytes."""
    plan = planned(case.model, frozenset({"in-place", "row-chains"}))
    touched = accesses(plan.lowered.steps)
    lives: dict[Buffer, list[int]] = {}
    for group in touched:
        for access in group:
            if access.ref.buffer.space == "ARENA" and access.ref.start == 0:
                lives.setdefault(access.ref.buffer, []).append(access.step)
    pairs = [(a, b) for a in lives for b in lives if a is not b and min(lives[a]) < min(lives[b]) < max(lives[a])]
    if not pairs:
        return
    a, b = data.draw(st.sampled_from(pairs))
    plan.memory.offsets[b] = plan.memory.offsets[a]
    plan.memory.size += -(-b.nbytes // 64) * 64
    with pytest.raises(InternalError):
        check(assembled(plan), plan)


def test_techniques_save_memory() -> None:
    sizes = {name: planned(ATTENTION, frozenset({name})).memory.size for name in ("views", "in-place")}
    assert planned(ATTENTION).memory.size <= min(sizes.values())


@settings(max_examples=40, deadline=None)
@given(cases())
def test_the_buffers_that_are_compared_tell_of_all(case: Case) -> None:
    plan = planned(case.model)
    steps, schedules, prologue = plan.lowered.steps, plan.schedules, plan.lowered.prologue
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory._Planner, "add", lambda self, slot, life: (slot.members.append(life), slot.telling.append(life)))
        full = memory.plan(steps, schedules, prologue)
    assert memory.plan(steps, schedules, prologue) == full


def test_a_long_chain_compares_few_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [onnx.helper.make_node("Add" if i % 2 else "Mul", [f"v{i}", "v0"], [f"v{i + 1}"]) for i in range(400)]
    first, last = (onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [4]) for n in ("v0", "v400"))
    calls: list[int] = []
    compare = memory._Planner.row_local
    monkeypatch.setattr(memory._Planner, "row_local", lambda *args: calls.append(1) or compare(*args))
    planned(onnx.helper.make_model(onnx.helper.make_graph(nodes, "g", [first], [last])))
    assert 0 < len(calls) < 400 * 20
