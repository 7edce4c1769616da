"""Small artifacts made by hand: y[batch, 4] = relu(x[batch, 4]), and a copy of the range-checked ids[batch]; for the CPU, and for
the fake GPU of tests/fake_gpu, whose plan is a header and an artifact for the CPU."""

from __future__ import annotations

import struct
from dataclasses import replace

from infc.compiler.artifact import io, program, tensorrt, writer
from infc.compiler.artifact.layout import DIM_PADS, DTYPES, ISAS, SPACES, SPLITS
from infc.compiler.artifact.ops import UNARY
from infc.compiler.target import Section

WIDTH = 4
BATCHES = (2, 8)
VERSION = (1, 7, 1, 116)


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


def _common() -> list[Section]:
    spec = io.IoSpec(
        inputs=[io.IoTensor("x", "f32", ("batch", WIDTH)),
                io.IoTensor("ids", "i64", ("batch",), optional=True, fill=7, range=(0, 9))],
        outputs=[io.IoTensor("y", "f32", ("batch", WIDTH)), io.IoTensor("copy", "i64", ("batch",))],
        symbols=[io.IoSymbol("batch", DIM_PADS)], profiles=[{"batch": b} for b in BATCHES])
    return [Section("META", b'{"made": "by hand"}'), Section("IO", io.encode(spec))]


def _programs() -> list[Section]:
    return [Section("PROGRAM", _program(i, b), ordinal=i) for i, b in enumerate(BATCHES)]


def cpu_artifact() -> bytes:
    return writer.pack([*_common(), *_programs()])


def engine(flavour: str = "tensorrt-rtx", version: tuple[int, int, int, int] = VERSION, sms: tuple[int, ...] = (86, 89),
           ordinal: int = 0, plan: bytes | None = None) -> Section:
    """One that serves both profiles."""
    if plan is None:
        inner = cpu_artifact()
        plan = struct.pack("<8sQI44x", b"FAKEPLAN", len(inner), len(BATCHES)) + inner
    made = tensorrt.TensorRtEngine(flavour, version, 13000, sms, tuple(range(len(BATCHES))), "infc build toy.onnx", plan)
    return Section("TENSORRT", tensorrt.encode(made), ordinal=ordinal)


def gpu_artifact(*engines: Section, cpu: bool = True) -> bytes:
    engines = tuple(replace(e, required=not cpu) for e in engines or (engine(),))
    return writer.pack([*_common(), *(_programs() if cpu else ()), *engines])
