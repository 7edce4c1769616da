"""infc.runtime: open artifacts and run them. Needs numpy and nothing else.

>>> engine = Engine("model.infc", threads=2)
>>> engine.run({"input_ids": ids, "attention_mask": mask})["sentence_embedding"]

A caller that runs often with the same shapes binds its arrays once:

>>> context = engine.context()
>>> context.bind({"input_ids": ids, "attention_mask": mask})
>>> context.run()  # reads ids and mask as they are now, writes context.outputs

An artifact with a TensorRT engine runs on the GPU where it can; ``engine.note`` says why not where it could not.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from enum import IntEnum
from typing import Any, NamedTuple, Protocol

import numpy as np

from infc.runtime import _rt
from infc.runtime._rt import Error, cpu_isa, kernels
from infc.runtime.tensorrt import find_library

__all__ = ["Context", "Drift", "Engine", "Error", "Status", "StepTime", "TensorInfo", "Traced", "cpu_isa", "kernels"]

Array = np.ndarray[Any, np.dtype[Any]]


class DLPack(Protocol):
    """An array of another library's."""

    def __dlpack__(self) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...


Bindable = Array | DLPack
SECTIONS = {"META": 1, "IO": 2, "PROGRAM": 4, "TOKENIZER": 6, "GOLDEN": 7, "REPORT": 8, "TENSORRT": 9}


class Status(IntEnum):
    """What ``Error.status`` holds: infc_status of infc.h."""

    INVALID_ARGUMENT = 1
    OUT_OF_MEMORY = 2
    IO = 3
    BAD_ARTIFACT = 4
    INCOMPATIBLE = 5
    BAD_SHAPE = 6
    BAD_VALUE = 7
    NOT_BOUND = 8
    BUSY = 9
    INTERNAL = 10
    DEVICE = 11
    CACHE_FULL = 12


class TensorInfo(NamedTuple):
    """An input or output. ``shape`` holds sizes, and names of dimensions that vary; ``max_shape`` the sizes in the largest profile.

    ``range`` is what integer inputs are held against, inclusive. A bfloat16 tensor is passed as uint16.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int | str, ...]
    max_shape: tuple[int, ...]
    optional: bool
    range: tuple[int, int] | None


class StepTime(NamedTuple):
    """``seconds`` of the slowest thread, summed over ``calls`` runs."""

    name: str
    kernel: str
    calls: int
    seconds: float


class Drift(NamedTuple):
    """Activations of a quantised layer that lay beyond the range that calibration gave them. ``expected`` is the part of
    calibration's own that did; of ``values`` counted in ``runs`` runs ``beyond`` were. ``least`` and ``greatest`` are the values
    farthest out, within the range's ends of layers that read bytes."""

    layer: str
    low: float
    high: float
    expected: float
    least: float
    greatest: float
    values: int
    beyond: int
    runs: int

    @property
    def share(self) -> float:
        return self.beyond / self.values if self.values else 0.0

    def drifted(self, threshold: float = 0.001) -> bool:
        """Whether more lies beyond than twice what calibration had, and ``threshold``: the model meets other data than it was
        calibrated for."""
        return self.share > 2 * self.expected + threshold


class Traced(NamedTuple):
    """What a step wrote as its ``output``-th. ``type`` is ONNX's number; of types that numpy lacks ``value`` holds the bits."""

    step: int
    output: int
    name: str
    kernel: str
    type: int
    value: Array


class Engine:
    """An opened artifact. Any number of threads may use one at the same time."""

    def __init__(self, source: str | os.PathLike[str] | bytes | bytearray | memoryview, threads: int | None = None,
                 isa: str | None = None, device: str | None = None,
                 tensorrt_library: str | os.PathLike[str] | None = None) -> None:
        """``source`` is a file's path, or its bytes; these must not change while the engine lives.

        ``threads`` includes the caller's; None takes as many as affinity and CPU quota allow. ``isa`` is an instruction set such as
        "x86-64-v3"; None takes the best that artifact and CPU share. ``device`` is "cpu", or "cuda" or "cuda:1" for the TensorRT
        engine on that GPU; None takes the first GPU if the artifact has an engine for it that can run here, else the CPU.
        ``tensorrt_library`` is the path of libtensorrt_rtx.so.1 or libnvinfer.so.11; None takes the one pip has installed, else the
        one the loader finds. Raises Error.
        """
        if threads is not None and threads < 1:
            raise _error(Status.INVALID_ARGUMENT, f"threads is {threads}, not 1 or more")
        if isinstance(source, os.PathLike):
            source = os.fspath(source)
        if tensorrt_library is None and device != "cpu":
            tensorrt_library = find_library(source)
        elif tensorrt_library is not None:
            tensorrt_library = os.fspath(tensorrt_library)
        self._engine = _rt.Engine(source, threads or 0, isa, device, tensorrt_library)
        symbols = self._engine.symbols()
        self.inputs = [_tensor(symbols, *record) for record in self._engine.inputs()]
        self.outputs = [_tensor(symbols, *record) for record in self._engine.outputs()]
        self.profiles = [dict(zip(symbols, sizes, strict=True)) for sizes in self._engine.profiles()]
        self.isa = self._engine.isa()  # "" on a GPU
        self.device = self._engine.device()  # "cpu" or "cuda:0"
        self.note = self._engine.note()  # why the automatic choice did not take the GPU; "" if it did or could not
        self.threads = self._engine.threads()
        self._idle: list[Context] = []

    def __repr__(self) -> str:
        how = f"{self.isa}, {self.threads} threads" if self.isa else "TensorRT"
        return f"<infc.Engine on {self.device}: {how}{'; ' if self.note else ''}{self.note}>"

    def context(self) -> Context:
        """A context of its own: one for each thread that binds arrays."""
        return Context(self)

    def run(self, inputs: Mapping[str, Bindable]) -> dict[str, Array]:
        """Outputs by name, in new arrays. Raises Error, naming the input, for a wrong name, shape, dtype, layout or value."""
        try:
            context = self._idle.pop()
        except IndexError:
            context = self.context()
        try:
            context.bind(inputs)
            context.run()
            return context.outputs
        finally:
            context.unbind()
            self._idle.append(context)

    def verify(self) -> None:
        """Reads the whole artifact and compares checksums. Raises Error."""
        self._engine.verify()

    def drift(self) -> list[Drift]:
        """What ``run`` has counted so far, by layer, in an engine built with ``--watch-ranges``; [] in others. ``Context.drift`` is
        that of contexts of your own."""
        layers = zip(*(context.drift() for context in list(self._idle)), strict=True)
        return [one[0]._replace(least=min(d.least for d in one), greatest=max(d.greatest for d in one),
                                values=sum(d.values for d in one), beyond=sum(d.beyond for d in one),
                                runs=sum(d.runs for d in one)) for one in layers]

    def section(self, kind: str) -> memoryview | None:
        """The bytes of a section, a key of SECTIONS; None if the artifact has none. Raises Error if its checksum differs."""
        return self._engine.section(SECTIONS[kind])


class Context(_rt.Context):
    """Arrays bound to an engine, and the memory to run it. Used by one thread at a time.

    ``run()`` computes on what the bound arrays hold at that moment. ``outputs`` are the bound output arrays by name.

    Beside numpy's, arrays of any library that speaks DLPack are bound without a copy: PyTorch's, CuPy's. An engine on a GPU takes
    them in its memory too. ``run()`` then comes after all that CUDA's default stream has been given, which is PyTorch's and CuPy's
    unless told otherwise; give another stream to ``run_async``.
    """

    def __new__(cls, engine: Engine) -> Context:
        return super().__new__(cls, engine._engine)  # type: ignore[return-value]

    def __init__(self, engine: Engine) -> None:
        # Not the engine, which keeps its idle contexts: the cycle would keep threads and memory until a collection.
        self._known_inputs, self._known_outputs = engine.inputs, engine.outputs
        self.outputs: dict[str, Any] = {}

    def bind(self, inputs: Mapping[str, Bindable], outputs: Mapping[str, Bindable] | None = None) -> None:
        """Binds all inputs, and output arrays: the caller's where given, else new numpy arrays. All must be C-contiguous and of the
        right dtype; none is copied. In a GPU's memory sizes must be exactly a profile's. Raises Error, naming the tensor."""
        _reject_unknown("input", inputs, self._known_inputs)
        for index, info in enumerate(self._known_inputs):
            array = inputs.get(info.name)
            if array is None and not info.optional:
                raise _error(Status.NOT_BOUND, f"input '{info.name}' is missing")
            self.bind_input(index, array)
        self._bind_outputs(outputs or {})

    def _bind_outputs(self, outputs: Mapping[str, Bindable]) -> None:
        _reject_unknown("output", outputs, self._known_outputs)
        bound = {}
        for index, info in enumerate(self._known_outputs):
            dims = self.output_dims(index)
            array = outputs.get(info.name)
            if array is None:
                array = np.empty(dims, info.dtype)
            elif (shape := _shape(array)) != dims:
                raise _error(Status.BAD_SHAPE, f"output '{info.name}' has shape {shape}, not {dims}")
            self.bind_output(index, array)
            bound[info.name] = array
        self.outputs = bound

    def unbind(self) -> None:
        """Lets go of all arrays."""
        for index in range(len(self._known_inputs)):
            self.bind_input(index, None)
        for index in range(len(self._known_outputs)):
            self.bind_output(index, None)
        self.outputs = {}

    def run_async(self, stream: Any = None) -> None:
        """On a GPU: enqueues a run and returns. ``stream`` is a CUstream's number, or an object that has it as ``cuda_stream``
        (PyTorch) or ``ptr`` (CuPy); None is CUDA's default stream if an array in the GPU's memory is bound, else the context's own.
        Inputs in the CPU's memory have been read when it returns, outputs there are written by ``wait()``. Raises Error, on the CPU
        always."""
        for name in ("cuda_stream", "ptr"):
            stream = getattr(stream, name, stream)
        if stream is not None and (not isinstance(stream, int) or not 0 <= stream < 1 << 64):
            raise _error(Status.INVALID_ARGUMENT, f"stream is {stream!r}, not a number or an object with .cuda_stream or .ptr")
        self.enqueue(stream)

    def trace(self) -> list[Traced]:
        """One run, on this thread alone, and what each step wrote to memory of the context's; what goes to ``outputs`` is there.

        For finding out where a result goes wrong: values are copied. Raises Error, on a GPU always.
        """
        found: list[Traced] = []

        def keep(step: int, output: int, name: str, kernel: str, code: int, dtype: str, shape: tuple[int, ...], data: bytes
                 ) -> None:
            found.append(Traced(step, output, name, kernel, code, np.frombuffer(data, dtype).reshape(shape)))

        self.run_traced(keep)
        return found

    def drift(self) -> list[Drift]:
        """Activations beyond calibration's ranges, by layer, as counted so far; ``set_watch(every)`` counts every so many runs and
        forgets what was. [] in engines built without ``--watch-ranges``."""
        return [Drift(*record) for record in self.counts()]

    def step_times(self) -> list[StepTime]:
        """Times by step of the profile used last, since ``set_timing(True)``."""
        return [StepTime(*record) for record in self.times()]

    @property
    def memory(self) -> int:
        """Bytes the context allocated."""
        return self.allocated()


def _error(status: Status, message: str) -> Error:
    error = Error(message)
    error.status = status
    return error


def _shape(array: Any) -> tuple[int, ...]:
    """Without bringing the array into the CPU's memory, as np.shape does."""
    return tuple(array.shape) if hasattr(array, "shape") else np.shape(array)


def _reject_unknown(role: str, arrays: Mapping[str, Bindable], known: list[TensorInfo]) -> None:
    names = [info.name for info in known]
    for name in arrays:
        if name not in names:
            raise _error(Status.INVALID_ARGUMENT, f"there is no {role} '{name}'; {role}s are: {', '.join(names)}")


def _tensor(symbols: list[str], name: str, dtype: str, dims: tuple[tuple[int, int], ...], optional: bool,
            limits: tuple[int, int] | None) -> TensorInfo:
    shape = tuple(size if symbol < 0 else symbols[symbol] for size, symbol in dims)
    return TensorInfo(name, np.dtype(dtype), shape, tuple(size for size, _ in dims), optional, limits)
