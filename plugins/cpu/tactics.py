"""Choices among what would all be right: kernels of a step, schedules of a program.

Each candidate is timed once through ``BuildContext.measure`` and recorded in the timing cache, so that the same cache gives the
same program. Without tuning, and for instruction sets this machine lacks, the cost model's choice stands: the kernel of the most
demanding instruction set, and schedule 0 from MIN_ROWS rows a thread on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace

from infc.compiler.artifact import io
from infc.compiler.artifact.layout import DTYPE_SIZES, ISAS, PACKINGS, SECTION_ALIGN, SPACES
from infc.compiler.artifact.program import Operand, Program, Step, encode
from infc.compiler.artifact.writer import pack
from infc.compiler.errors import UnsupportedError
from infc.compiler.target import BuildContext, Kernel, Section
from infc.plugins.cpu.pack import PANEL
from infc.plugins.cpu.values import product

MIN_ROWS = 24  # rows a thread from which a product by rows uses its tiles well
ROW_BLOCKS = (0, 48, 96, 192)
TUNED = ("gemm", "attention", "matmul", "gemm_i8", "gemm_16", "gemm_grouped", "conv_i8")  # whose kernels are worth timing
CLEARLY = 0.97  # a candidate replaces the model's choice if it takes at most this share of its time

class Tactics:
    """Chooses for one instruction set. ``spec`` and ``weights`` complete a program to an artifact that ``measure`` can run."""

    def __init__(self, context: BuildContext, isa: str, spec: io.IoSpec, weights: memoryview) -> None:
        self.context = context
        self.isa = isa
        self.spec = spec
        self.weights = weights
        self.tunes = context.tune and ISAS[isa] <= ISAS[context.native_isa]

    def candidates(self, op: str) -> list[Kernel]:
        """Kernels that programs of this instruction set may call, the most demanding first."""
        found = [k for k in self.context.kernels if k.op == op and ISAS[k.isa] <= ISAS[self.isa]]
        if not found:
            raise UnsupportedError("E0404", f"the runtime has no kernel for operator '{op}' at {self.isa}",
                                   where=f"--isa {self.isa}", hint="reinstall infc: compiler and runtime do not match")
        return sorted(found, key=lambda k: -ISAS[k.isa])

    def seconds(self, program: Program, weights: memoryview | None = None) -> float:
        """Time of a run with the context's threads, from the cache where it is known."""
        program, key = self._known_by(program)
        cache = self.context.timing_cache
        if key not in cache:
            cache[key] = self.context.measure(self._artifact(program, weights), self.context.threads)
        return cache[key]

    def step_seconds(self, program: Program, steps: Sequence[int]) -> list[float]:
        """Times of some steps in such runs."""
        program, key = self._known_by(program)
        keys = [f"{key} step {step}" for step in steps]
        cache, measure = self.context.timing_cache, self.context.measure_steps
        assert measure is not None
        if any(k not in cache for k in keys):
            found = measure(self._artifact(program), self.context.threads)
            cache.update((k, found[step]) for k, step in zip(keys, steps, strict=True))
        return [cache[k] for k in keys]

    def _known_by(self, program: Program) -> tuple[Program, str]:
        """The program as it is measured, the only one of its file, and what its times are kept under."""
        program = replace(program, profile=0)
        digest = hashlib.sha256(encode(_timed(program))).hexdigest()[:24]
        return program, f"cpu {self.isa} {self.context.threads} threads {digest} {self.context.machine}".rstrip()

    def _artifact(self, program: Program, weights: memoryview | None = None) -> bytes:
        return pack([Section("META", b"{}"), Section("IO", io.encode(self.spec)), *self.context.state,
                     Section("PROGRAM", encode(program)), Section("WEIGHTS", self.weights if weights is None else weights)])

    def kernels(self, program: Program, ops: Sequence[str]) -> None:
        """Sets each step's kernel; ``ops`` are the steps' operators."""
        program.steps = [replace(s, kernel=self.candidates(op)[0].name) for s, op in zip(program.steps, ops, strict=True)]
        chosen: dict[tuple[object, ...], str] = {}
        steps = []
        for step, op in zip(program.steps, ops, strict=True):
            shapes = tuple((o.dims, o.row_stride, o.dtype) for o in (*step.inputs, *step.outputs))
            key = (op, step.words, step.rows, step.cols, shapes)
            if key not in chosen:
                chosen[key] = self._kernel(program, step, op)
            steps.append(replace(step, kernel=chosen[key]))
        program.steps = steps

    def _kernel(self, program: Program, step: Step, op: str) -> str:
        found = self.candidates(op)
        if not self.tunes or op not in TUNED or len(found) == 1 or step.split == (0, 0):
            return found[0].name
        trials = [_alone(program, replace(step, kernel=k.name)) for k in found if ISAS[k.isa] > ISAS["scalar"]]
        times = [self.seconds(*trial) for trial in trials]
        best = min(range(len(times)), key=lambda i: times[i])
        return found[best].name if times and times[best] < CLEARLY * times[0] else found[0].name

    def schedules(self, program: Program, rows: int) -> None:
        """Sets row_block, and for a program of two schedules the number of rows from which the first is taken."""
        program.schedule_min_rows = MIN_ROWS if program.schedule_count > 1 else 0
        if not self.tunes or all(step.split == (0, 0) for step in program.steps):
            return
        first = self._row_block(replace(program, schedule_min_rows=0), rows)
        program.row_block = first.row_block
        if program.schedule_count < 2:
            return
        few = rows // self.context.threads + 1
        margin = CLEARLY if few > MIN_ROWS else 1 / CLEARLY  # what is not clear stays as it is without measuring
        if self.seconds(replace(first, schedule_min_rows=few)) < margin * self.seconds(first):
            program.schedule_min_rows = max(few, MIN_ROWS)
        else:
            program.schedule_min_rows = min(MIN_ROWS, few - 1)

    def _row_block(self, program: Program, rows: int) -> Program:
        best = program
        for block in ROW_BLOCKS[1:]:
            if block * self.context.threads < rows:
                other = replace(program, row_block=(block, 0))
                if self.seconds(other) < CLEARLY * self.seconds(best):
                    best = other
        return best


def _alone(program: Program, step: Step) -> tuple[Program, memoryview]:
    """A program of one step, divided as in schedule 0, after the prologue that it may depend on, and weights of zeros for it."""
    size = 0
    inputs = []
    for operand in step.inputs:
        if operand.space == SPACES["WEIGHTS"]:
            operand = replace(operand, offset=size)
            size += -(-_stored(operand) // SECTION_ALIGN) * SECTION_ALIGN
        inputs.append(operand)
    steps = [*program.steps[: program.prologue_steps], replace(step, inputs=tuple(inputs), barrier=(0, 0))]
    one = replace(program, steps=steps, schedule_count=1, schedule_symbol=-1, schedule_min_rows=0, row_block=(0, 0))
    return one, memoryview(bytes(size))


def _stored(operand: Operand) -> int:
    """Bytes of a constant, panels filled up."""
    if operand.packing == PACKINGS["F32_K1N32"]:
        return 4 * operand.dims[0] * (-(-product(operand.dims[1:]) // PANEL) * PANEL)
    return DTYPE_SIZES[operand.dtype] * product(operand.dims)


def _timed(program: Program) -> Program:
    """What a time is known by: neither names nor where operands lie, so that a step of one model is measured once for all that have
    it, and gets the same kernel in each."""

    def placeless(operand: Operand) -> Operand:
        return operand if operand.space in (SPACES["INPUT"], SPACES["OUTPUT"]) else replace(operand, offset=0)

    steps = [replace(s, name="", inputs=tuple(map(placeless, s.inputs)), outputs=tuple(map(placeless, s.outputs)))
             for s in program.steps]
    symbols = [("", bound) for _, bound in program.symbols]
    return replace(program, steps=steps, symbols=symbols, arena_size=0)
