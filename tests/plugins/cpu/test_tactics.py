"""Choices: what is measured is recorded and decides; without tuning the cost model does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import repeat

import numpy as np
import onnx_ir as ir
import pytest

from infc import runtime
from infc.compiler.artifact.layout import PACKINGS
from infc.compiler.artifact.program import Operand, Program, Step, decode
from infc.compiler.artifact.reader import Artifact
from infc.compiler.profiles import Profile
from infc.compiler.target import BuildContext, Kernel, ProgramGraph
from infc.plugins.cpu import CpuTarget
from infc.plugins.cpu.tactics import MIN_ROWS, Tactics, _stored
from tests.plugins.cpu.graphs import parse
from tests.plugins.cpu.harness import aligned, context, interface_of
from tests.plugins.cpu.test_graphs import draw

ROWS = 256
CHAIN = parse(f"""g (float[{ROWS}, 256] x) => (float[{ROWS}, 256] y) {{
    a = MatMul(x, w)   b = Gelu(a)   c = MatMul(b, w)   y = Add(c, x)
}}""", w=draw(256, 256))


def build(measure: Callable[[bytes, int], float], cache: dict[str, float], **options: object) -> Program:
    base = context(["x86-64-v4"], interface_of(ir.from_proto(CHAIN)))
    chosen = {"isas": ["x86-64-v4"], "threads": 2, "tune": True, **options}
    lent = BuildContext(interface=base.interface, kernels=[Kernel(*k) for k in runtime.kernels()], native_isa="x86-64-v4",
                        measure=measure, timing_cache=cache, disabled=base.disabled, **chosen)  # type: ignore[arg-type]
    compiled = CpuTarget().compile([ProgramGraph(Profile(()), ir.from_proto(CHAIN), {})], lent)
    return decode(compiled.sections[0].data)


def lent_tactics(cache: dict[str, float], times: Iterator[float]) -> Tactics:
    lent = replace(context(["x86-64-v4"], interface_of(ir.from_proto(CHAIN))), measure=lambda a, t: next(times), timing_cache=cache)
    return Tactics(lent, "x86-64-v4", lent.interface, memoryview(b""))


def program_of(artifact: bytes) -> Program:
    found = Artifact(artifact)
    found.verify()
    return found.programs()[0]


def never(artifact: bytes, threads: int) -> float:
    raise AssertionError("measured")


def test_without_tuning_nothing_is_measured() -> None:
    program = build(never, {}, tune=False)
    assert program.schedule_min_rows == MIN_ROWS
    assert [s.kernel for s in program.steps if "gemm" in s.kernel] == ["infc_gemm_f32_12x32__avx512"] * 2


def test_nothing_is_measured_for_another_machine() -> None:
    lent = context(["x86-64-v4"], interface_of(ir.from_proto(CHAIN)))
    lent.tune, lent.native_isa, lent.measure = True, "x86-64-v3", never
    CpuTarget().compile([ProgramGraph(Profile(()), ir.from_proto(CHAIN), {})], lent)


def prefers(slow: Callable[[Program], bool]) -> Callable[[bytes, int], float]:
    return lambda artifact, threads: 2.0 if slow(program_of(artifact)) else 1.0


def test_the_faster_kernel_is_taken() -> None:
    program = build(prefers(lambda p: any("12x32" in k for k in p.kernels) and len(p.steps) == 1), {})
    assert [s.kernel for s in program.steps if "gemm" in s.kernel] == ["infc_gemm_f32_6x16__avx2"] * 2


@pytest.mark.parametrize("few", [False, True])
def test_the_faster_schedule_is_taken(few: bool) -> None:
    program = build(prefers(lambda p: p.schedule_count > 1 and (p.schedule_min_rows * 2 <= ROWS) == few), {})
    assert (program.schedule_min_rows * 2 > ROWS) == few


@pytest.mark.parametrize(("rows", "by_columns"), [(8, True), (ROWS, False)])
def test_schedules_that_take_as_long_stay_as_without_measuring(rows: int, by_columns: bool) -> None:
    program = build(never, {}, tune=False)
    tactics = lent_tactics({}, repeat(1.0))
    tactics.tunes, tactics.context.threads = True, 2
    tactics.schedules(program, rows)
    assert (program.schedule_min_rows * 2 > rows) == by_columns


def test_the_faster_block_is_taken() -> None:
    program = build(prefers(lambda p: p.row_block[0] != 96), {})
    assert program.row_block == (96, 0)


def test_the_cache_decides_and_is_not_measured_again() -> None:
    cache: dict[str, float] = {}
    times = iter(np.random.default_rng(0).uniform(1, 2, 100))
    first = build(lambda a, t: float(next(times)), cache, machine="this one")
    assert cache
    assert all("this one" in key and "2 threads" in key and "x86-64-v4" in key for key in cache)
    assert build(never, cache, machine="this one") == first


def test_times_are_known_wherever_operands_lie() -> None:
    x, b, y = Operand(0, 1, (4, 8), 0, 8), Operand(1, 2, (2, 40), 0, 40), Operand(0, 1, (4, 8), 128, 8)
    step = Step("k", (x, b), (y,), (3,), 4, name="a")
    moved = replace(step, name="b", inputs=(replace(x, offset=512), replace(b, offset=64)))
    programs = [Program(0, 4, [(name, 9)], [s], size) for name, s, size in (("n", step, 192), ("rows", moved, 1024))]
    cache: dict[str, float] = {}
    tactics = lent_tactics(cache, iter((1.0, 2.0)))
    assert [tactics.seconds(p, memoryview(b"")) for p in programs] == [1.0, 1.0]
    assert tactics.seconds(replace(programs[0], steps=[replace(step, words=(4,))]), memoryview(b"")) == 2.0


def test_constants_take_the_room_of_their_packing() -> None:
    assert _stored(Operand(1, 2, (3, 1000), 0, 1000)) == 3000
    assert _stored(Operand(1, 1, (5,), 0, 1)) == 20
    assert _stored(Operand(1, 1, (8, 33), 0, 33, packing=PACKINGS["F32_K1N32"])) == 4 * 8 * 64


@pytest.mark.skipif(runtime.cpu_isa() != "x86-64-v4", reason="needs AVX-512")
def test_what_is_measured_runs() -> None:
    def measure(artifact: bytes, threads: int) -> float:
        engine = runtime.Engine(aligned(artifact), threads=threads)
        engine.run({t.name: np.zeros(t.shape, t.dtype) for t in engine.inputs})
        return 1.0

    build(measure, {})
