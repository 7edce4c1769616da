"""If, Loop and Scan as regions of a program: random ones against ONNX Runtime, and what is refused."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from infc import runtime
from infc.compiler.artifact import io
from infc.compiler.artifact import program as encoding
from infc.compiler.artifact.writer import pack
from infc.compiler.errors import InternalError, UnsupportedError
from infc.compiler.pipeline import FOLD, Normalise
from infc.compiler.profiles import Profile
from infc.compiler.target import ProgramGraph, Section
from infc.passes.base import PassManager
from infc.plugins.cpu import target
from infc.plugins.cpu.regions import Region
from infc.plugins.cpu.schedule import Schedule, accesses, regions_of
from tests.plugins.cpu.graphs import parse
from tests.plugins.cpu.harness import aligned, compile_model, interface_of, native_isas, run
from tests.plugins.cpu.programs import feeds, programs
from tests.plugins.cpu.test_graphs import divided, expected
from tests.plugins.cpu.test_plan import Machine, assembled, check, planned, units

RELAXED = settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


def compare(model: onnx.ModelProto, compiled: ir.Model | onnx.ModelProto, seed: int, isas: list[str]) -> None:
    """The artifact of a graph against the model it comes from, on several inputs, with one thread and with two."""
    rng = np.random.default_rng(seed)
    with divided():
        artifact, _ = compile_model(compiled, isas)
    for _ in range(3):
        given_ = feeds(rng)
        want = expected(model, given_)
        for threads in (1, 2):
            got = run(artifact, given_, threads, isas[-1])
            for name, array in want.items():
                np.testing.assert_allclose(got[name], array, atol=2e-5, rtol=1e-4, err_msg=name)


@RELAXED
@given(programs(), st.integers(0, 999))
def test_regions(model: onnx.ModelProto, seed: int) -> None:
    compare(model, model, seed, native_isas()[-1:])


@RELAXED
@given(programs(), st.integers(0, 999))
def test_after_passes(model: onnx.ModelProto, seed: int) -> None:
    """Short loops written out, known branches taken."""
    graph = ir.from_proto(model)
    PassManager((Normalise, *FOLD)).run(graph)
    compare(model, graph, seed, native_isas()[:1])


# ---- Plans


def path(found: list[Region], schedule: Schedule, first: int, end: int, rng: random.Random) -> list[int | None]:
    """Steps in the order of one run through random branches; None where all threads meet."""
    trace: list[int | None] = []
    i = first
    while i < end:
        trace += [None] if schedule.barrier[i] else []
        region = next((r for r in found if r.control == i), None)
        if region is None:
            trace.append(i)
            i += 1
            continue
        meets: list[int | None] = [] if schedule.split[i] == "SERIAL" else [None]
        for _ in range(rng.randint(1, 3) if region.repeats else 1):
            trace += [*meets, i, *meets]
            taken = region.repeats or rng.random() < 0.5
            trace += path(found, schedule, *((i + 1, region.then_end) if taken else (region.then_end, region.end)), rng)
        trace += [*meets, i, *meets] if region.repeats else []
        i = region.end
    return trace


@RELAXED
@given(programs(), st.integers(1, 3), st.randoms(use_true_random=False))
def test_threads_never_meet(model: onnx.ModelProto, threads: int, rng: random.Random) -> None:
    plan = planned(model)
    check(assembled(plan), plan)
    steps, touched = plan.lowered.steps, accesses(plan.lowered.steps)
    for schedule in plan.schedules:
        machine = Machine(plan)
        trace = path(regions_of(steps), schedule, 0, len(steps), rng)
        segments: list[list[int]] = [[]]
        for i in trace:
            if i is None:
                segments.append([])
            else:
                segments[-1].append(i)
        serial = Schedule(["SERIAL" if s.op in ("branch", "repeat") else p for s, p in zip(steps, schedule.split, strict=True)],
                          schedule.barrier)
        for members in segments:
            queues = [list(units(steps, serial, members, t, threads, 2)) for t in range(threads)]
            while any(queues):
                i, part = rng.choice([q for q in queues if q]).pop(0)
                for writes in (False, True):
                    for access in touched[i]:
                        if access.writes == writes:
                            machine.touch(access, part, writes)


@RELAXED
@given(programs(), st.data())
def test_a_value_lost_in_a_loop_is_found(model: onnx.ModelProto, data: st.DataObject) -> None:
    """Something of a loop's body put over what the loop needs in its next iteration."""
    plan = planned(model)
    steps = plan.lowered.steps
    pairs = []
    for region in regions_of(steps):
        inside = range(region.control, region.end) if region.repeats else range(0)
        uses: dict[object, set[int]] = {}
        reads: set[object] = set()
        for group in accesses(steps):
            for a in group:
                if a.ref.buffer.space == "ARENA":
                    uses.setdefault(a.ref.buffer, set()).add(a.step)
                    reads |= {a.ref.buffer} if not a.writes and a.step in inside else set()
        held = [b for b, at in uses.items() if b in reads and min(at) < region.control]
        passing = [b for b, at in uses.items() if at <= set(inside)]
        pairs += [(h, p) for h in held for p in passing]
    if not pairs:
        return
    held, passing = data.draw(st.sampled_from(pairs))
    plan.memory.offsets[passing] = plan.memory.offsets[held]  # type: ignore[index]
    plan.memory.size += 64
    with pytest.raises(InternalError):
        check(assembled(plan), plan)


def test_a_region_without_barriers_is_found() -> None:
    plan = planned(LOOP)
    program = assembled(plan)
    control = regions_of(plan.lowered.steps)[0].control
    assert program.steps[control].split[0] == 1
    program.steps = [replace(s, barrier=(0, 0)) if i == control + 1 else s for i, s in enumerate(program.steps)]
    with pytest.raises(InternalError, match="without a barrier"):
        check(program, plan)


# ---- What there is to say about single ones

LOOP = parse("""g (float[8, 64] x, int64 trips) => (float[8, 64] y) {
  y = Loop (trips, , x) <body = b (int64 i, bool go, float[8, 64] v) => (bool on, float[8, 64] w) {
    on = Identity (go)
    w = Tanh (v)
  }>
}""")


@pytest.mark.parametrize("trips", [-1, 0, 1, 7])
def test_trips(trips: int) -> None:
    with divided():
        artifact, _ = compile_model(LOOP, native_isas())
    x = np.random.default_rng(0).normal(0, 1, (8, 64)).astype(np.float32)
    want = x
    for _ in range(trips):
        want = np.tanh(want)
    for threads in (1, 2):
        got = run(artifact, {"x": x, "trips": np.array(trips)}, threads)["y"]
        np.testing.assert_allclose(got, want, atol=1e-5)


@pytest.mark.parametrize(("first", "goes_on"), [("yes", "go"), ("on", "on")])
def test_a_body_without_effect(first: str, goes_on: str) -> None:
    """It leaves no steps, and what is carried is what was given."""
    model = parse(f"""g (float[3] x, int64 trips, bool on) => (float[3] y) <bool yes = {{1}}> {{
      z = Loop (trips, {first}, x) <body = b (int64 i, bool go, float[3] c) => (bool next, float[3] d) {{
        next = Identity ({goes_on})
        d = Identity (c)
      }}>
      y = Tanh (z)
    }}""")
    artifact, _ = compile_model(model, native_isas()[:1])
    x = np.ones(3, np.float32)
    got = run(artifact, {"x": x, "trips": np.array(3), "on": np.array(True)}, 2)["y"]
    np.testing.assert_allclose(got, np.tanh(x), atol=1e-6)


def test_branches_that_return_nothing_new() -> None:
    model = parse("""g (float[3] x, bool on) => (float[3] y) {
      u = Tanh (x)
      y = If (on) <then_branch = t () => (float[3] a) { a = Identity (u) }, else_branch = e () => (float[3] b) { b = Identity (u) }>
    }""")
    artifact, _ = compile_model(model, native_isas()[:1])
    x = np.ones(3, np.float32)
    np.testing.assert_allclose(run(artifact, {"x": x, "on": np.array(True)}, 2)["y"], np.tanh(x), atol=1e-6)


def test_a_loop_that_does_not_end_is_an_error() -> None:
    artifact, _ = compile_model(LOOP)
    x = np.zeros((8, 64), np.float32)
    with pytest.raises(runtime.Error, match=r"the loop of step \d+ \(Loop_0\) did not end"):
        run(artifact, {"x": x, "trips": np.array(1 << 62)})


def refused(text: str, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message) as error:
        compile_model(parse(text))
    assert error.value.where.startswith("node '")


def test_branches_of_different_shapes() -> None:
    refused("""g (bool c, float[2, 3] x) => (float[a, b] y) {
      y = If (c) <then_branch = t () => (float[2, 3] u) { u = Identity (x) },
                  else_branch = e () => (float[3, 2] w) { w = Transpose (x) }>
    }""", "data-dependent output shapes")


def test_as_many_rows_as_iterations() -> None:
    refused("""g (int64 n, float[3] x) => (float[a, 3] y) {
      y = Loop (n, ) <body = b (int64 i, bool go) => (bool on, float[3] r) { on = Identity (go)  r = Tanh (x) }>
    }""", "data-dependent output shapes")


def test_a_value_that_grows() -> None:
    refused("""g (int64 n, float[3] x) => (float[a] y) {
      y = Loop (n, , x) <body = b (int64 i, bool go, float[a] v) => (bool on, float[b] w) {
        on = Identity (go)
        w = Concat <axis = 0> (v, x)
      }>
    }""", "data-dependent output shapes")


def test_nothing_ends_it() -> None:
    refused("""g (float[3] x) => (float[3] y) {
      y = Loop ( , , x) <body = b (int64 i, bool go, float[3] v) => (bool on, float[3] w) { on = Identity (go)  w = Tanh (v) }>
    }""", "nothing ends")


def test_a_body_writes_where_the_next_iteration_reads() -> None:
    """No copies where the steps can do without."""
    plan = target._plan(ProgramGraph(Profile(()), ir.from_proto(parse("""g (float[8, 64] x, int64 n) => (float[8, 64] y) {
      y = Loop (n, , x) <body = b (int64 i, bool go, float[8, 64] v) => (bool on, float[8, 64] w) {
        on = Identity (go)
        t = Tanh (v)
        w = Exp (t)
      }>
    }""")), {}), frozenset())
    assert [s.op for s in plan.lowered.steps] == ["copy", "repeat", "unary", "unary"]


def rewritten(words: tuple[int, ...], split: tuple[int, int] | None = None) -> bytes:
    """The artifact of LOOP with other words in its control step."""
    with divided():
        _, compiled = compile_model(LOOP)
    sections = [Section("META", b"{}"), Section("IO", io.encode(interface_of(ir.from_proto(LOOP))))]
    for section in compiled.sections:
        data = section.data
        if section.kind == "PROGRAM":
            program = encoding.decode(data)
            program.steps = [replace(s, words=words, split=split or s.split) if "repeat" in s.kernel else s for s in program.steps]
            data = encoding.encode(program)
        sections.append(replace(section, data=data))
    return pack(sections)


@pytest.mark.parametrize("words", [(0, 1, 0, 1), (1000, 1, 0, 1), (0xFFFFFFFF, 1, 0, 1), (1, 0, 0, 1), (1, 1, 1, 1), (1, 2, 0, 1)])
def test_regions_of_hostile_files_are_refused(words: tuple[int, ...]) -> None:
    with pytest.raises(runtime.Error, match="step 1"):
        runtime.Engine(aligned(rewritten(words)))


def test_a_divided_step_that_one_thread_would_run_is_refused() -> None:
    assert runtime.Engine(aligned(rewritten((1, 1, 0, 1))))
    with pytest.raises(runtime.Error, match="where only one runs"):
        runtime.Engine(aligned(rewritten((1, 1, 0, 1), (0, 0))))


def test_a_loop_within_that_always_goes_on_is_written_out() -> None:
    """A constant that the inner body returns stays where it is returned."""
    model = parse("""g (float[3] x, bool on) => (float[3] y) <bool yes = {1}, int64 three = {3}> {
      y = Loop (three, yes, x) <body = b (int64 i, bool go, float[3] c) => (bool next, float[3] d) {
        d = Loop (three, on, c) <body = e (int64 j, bool go2, float[3] f) => (bool next2, float[3] h) {
          h = Tanh (f)
          next2 = Identity (yes)
        }>
        next = Identity (yes)
      }>
    }""")
    graph = ir.from_proto(model)
    PassManager((Normalise, *FOLD)).run(graph)
    assert [n.op_type for n in graph.graph].count("Loop") == 3
    artifact, _ = compile_model(graph, native_isas()[:1])
    x = np.ones(3, np.float32)
    for on in (False, True):
        given_ = {"x": x, "on": np.array(on)}
        np.testing.assert_allclose(run(artifact, given_, 2)["y"], expected(model, given_)["y"], atol=1e-6)
