"""Compiles small graphs with the CPU target and runs them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import onnx_ir as ir

from infc import runtime
from infc.compiler.artifact import io
from infc.compiler.artifact.layout import DIM_EXACT, DIM_PADS, ISAS
from infc.compiler.artifact.writer import pack
from infc.compiler.profiles import Profile
from infc.compiler.target import BuildContext, Compiled, Kernel, ProgramGraph, Section
from infc.plugins.cpu import CpuTarget
from infc.plugins.cpu.values import NAMES

RANK = list(ISAS)


def native_isas() -> list[str]:
    """The instruction sets this machine can run."""
    return RANK[: RANK.index(runtime.cpu_isa()) + 1]


def interface_of(model: ir.Model, sizes: dict[str, int] | None = None, bounds: dict[str, int] | None = None) -> io.IoSpec:
    tensors = [[io.IoTensor(v.name, NAMES[v.dtype.numpy()], tuple(d if isinstance(d, int) else str(d.value) for d in v.shape))
                for v in side] for side in (model.graph.inputs, model.graph.outputs)]
    symbols = [io.IoSymbol(n, DIM_PADS if n in (bounds or {}) else DIM_EXACT) for n in sizes or {}]
    return io.IoSpec(tensors[0], tensors[1], symbols, [sizes or {}])


def context(isas: Sequence[str], interface: io.IoSpec, disabled: Sequence[str] = (), threads: int = 1) -> BuildContext:
    return BuildContext(interface=interface, kernels=[Kernel(*k) for k in runtime.kernels()], native_isa=runtime.cpu_isa(),
                        measure=lambda a, t: 0.0, timing_cache={}, tune=False, threads=threads, isas=isas,
                        disabled=frozenset(disabled))


def compile_model(model: ir.Model | onnx.ModelProto, isas: Sequence[str] = ("scalar",), sizes: dict[str, int] | None = None,
                  bounds: dict[str, int] | None = None, disabled: Sequence[str] = ()) -> tuple[bytes, Compiled]:
    """The artifact of a graph for one profile; ``bounds`` holds the dimensions that stay symbolic."""
    if isinstance(model, onnx.ModelProto):
        model = ir.from_proto(model)
    nothing_measured = context(isas, io.IoSpec((), ()), disabled)
    compiled = CpuTarget().compile([ProgramGraph(Profile(tuple((sizes or {}).items())), model, bounds or {})], nothing_measured)
    spec = interface_of(model, sizes, bounds)  # after the target has refused what it does not take
    return pack([Section("META", b"{}"), Section("IO", io.encode(spec)), *compiled.sections]), compiled


def aligned(data: bytes) -> memoryview:
    """The bytes at a multiple of 64, as engines want them."""
    room = np.zeros(len(data) + 64, np.uint8)
    start = -room.ctypes.data % 64
    room[start : start + len(data)] = np.frombuffer(data, np.uint8)
    return memoryview(room[start : start + len(data)])


def bits(array: np.ndarray) -> np.ndarray:
    """As the runtime takes it: types that NumPy lacks as integers of their size."""
    if array.dtype.isbuiltin == 1:
        return array
    return array.view(np.int8 if NAMES[array.dtype] in ("i4", "i2") else f"u{array.dtype.itemsize}")


def run(artifact: bytes, inputs: dict[str, np.ndarray], threads: int = 1, isa: str | None = None) -> dict[str, np.ndarray]:
    return runtime.Engine(aligned(artifact), threads=threads, isa=isa).run(inputs)
