"""A small artifact made by hand: y[batch, 4] = relu(x[batch, 4]), and a copy of the range-checked ids[batch]."""

from __future__ import annotations

import pytest

from infc.compiler.artifact import io, program, writer
from infc.compiler.artifact.layout import DIM_PADS, DTYPES, ISAS, SPACES, SPLITS
from infc.compiler.artifact.ops import UNARY
from infc.compiler.target import Section

WIDTH = 4
BATCHES = (2, 8)


def _operand(space: str, index: int, dtype: str, dims: tuple[int, ...]) -> program.Operand:
    return program.Operand(SPACES[space], DTYPES[dtype], dims, index, dims[1] if len(dims) > 1 else 1, rows_symbol=0)


def _step(name: str, function: str, x: program.Operand, y: program.Operand) -> program.Step:
    return program.Step("infc_unary__scalar", (x,), (y,), (UNARY.index(function), 0, 0), rows=x.dims[0], rows_symbol=0,
                        split=(SPLITS["ROWS"], 0), name=name)


def _program(profile: int, batch: int) -> bytes:
    rows = (batch, WIDTH)
    steps = [_step("relu", "relu", _operand("INPUT", 0, "f32", rows), _operand("OUTPUT", 0, "f32", rows)),
             _step("ids", "identity", _operand("INPUT", 1, "i64", (batch,)), _operand("OUTPUT", 1, "i64", (batch,)))]
    return program.encode(program.Program(profile, ISAS["scalar"], [("batch", batch)], steps, arena_size=0))


@pytest.fixture(scope="session")
def artifact() -> bytes:
    spec = io.IoSpec(
        inputs=[io.IoTensor("x", "f32", ("batch", WIDTH)),
                io.IoTensor("ids", "i64", ("batch",), optional=True, fill=7, range=(0, 9))],
        outputs=[io.IoTensor("y", "f32", ("batch", WIDTH)), io.IoTensor("copy", "i64", ("batch",))],
        symbols=[io.IoSymbol("batch", DIM_PADS)], profiles=[{"batch": b} for b in BATCHES])
    programs = [Section("PROGRAM", _program(i, b), ordinal=i) for i, b in enumerate(BATCHES)]
    return writer.pack([Section("META", b'{"made": "by hand"}'), Section("IO", io.encode(spec)), *programs])
