"""The CUDA driver by ctypes: enough to launch kernels, time them and replay graphs."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tests.gpu.outcome import NotRun

LIBRARY = "libcuda.so.1"
COMPUTE_MAJOR, COMPUTE_MINOR = 75, 76
NON_BLOCKING = 1
THREAD_LOCAL = 1


class NoGpu(Exception):
    """No driver, or no device."""


class CudaError(Exception):
    """A call of the driver failed; the text has its name and the driver's words."""


class Device:
    """The first GPU, its primary context and a stream, from ``__enter__`` to ``__exit__``."""

    def __init__(self) -> None:
        try:
            self._cuda = ctypes.CDLL(LIBRARY)
        except OSError as error:
            raise NoGpu(f"no NVIDIA driver: {error}") from None
        version, count = ctypes.c_int(), ctypes.c_int()
        try:
            self.call("cuInit", 0)
            self.call("cuDeviceGetCount", ctypes.byref(count))
        except CudaError as error:
            raise NoGpu(str(error)) from None
        if not count.value:
            raise NoGpu("the driver sees no GPU")
        self.call("cuDriverGetVersion", ctypes.byref(version))
        self.driver = f"{version.value // 1000}.{version.value % 1000 // 10}"
        name = ctypes.create_string_buffer(128)
        self.call("cuDeviceGetName", name, len(name), 0)
        self.name = name.value.decode()
        self.sm = 10 * self._attribute(COMPUTE_MAJOR) + self._attribute(COMPUTE_MINOR)
        self._memory: list[ctypes.c_uint64] = []

    def __enter__(self) -> Device:
        self._context, self.stream = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), 0)
        self.call("cuCtxPushCurrent_v2", self._context)
        self.call("cuStreamCreate", ctypes.byref(self.stream), NON_BLOCKING)
        return self

    def __exit__(self, *_: object) -> None:
        self.free()
        self.call("cuStreamDestroy_v2", self.stream)
        self.call("cuCtxPopCurrent_v2", ctypes.byref(self._context))
        self.call("cuDevicePrimaryCtxRelease_v2", 0)

    def call(self, symbol: str, *arguments: Any) -> None:
        try:
            function = getattr(self._cuda, symbol)
        except AttributeError:
            raise NotRun(f"the driver is too old to have {symbol}") from None
        result = function(*arguments)
        if result:
            name, text = ctypes.c_char_p(), ctypes.c_char_p()
            self._cuda.cuGetErrorName(result, ctypes.byref(name))
            self._cuda.cuGetErrorString(result, ctypes.byref(text))
            raise CudaError(f"{symbol}: {(name.value or b'?').decode()}: {(text.value or b'?').decode()}")

    def allocate(self, size: int) -> ctypes.c_uint64:
        memory = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(max(size, 1)))
        self._memory.append(memory)
        return memory

    def free(self) -> None:
        """All that was allocated."""
        for memory in self._memory:
            self.call("cuMemFree_v2", memory)
        self._memory = []

    def upload(self, array: np.ndarray) -> ctypes.c_uint64:
        memory = self.allocate(array.nbytes)
        self.copy_in(memory, array)
        return memory

    def copy_in(self, memory: ctypes.c_uint64, array: np.ndarray) -> None:
        array = np.ascontiguousarray(array)
        if array.nbytes:
            self.call(
                "cuMemcpyHtoDAsync_v2", memory, ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t(array.nbytes), self.stream
            )
            self.wait()

    def download(self, memory: ctypes.c_uint64, shape: Sequence[int], dtype: type[np.generic]) -> np.ndarray:
        array = np.empty(shape, dtype)
        if array.nbytes:
            self.call(
                "cuMemcpyDtoHAsync_v2", ctypes.c_void_p(array.ctypes.data), memory, ctypes.c_size_t(array.nbytes), self.stream
            )
            self.wait()
        return array

    def wait(self) -> None:
        self.call("cuStreamSynchronize", self.stream)

    def load(self, code: bytes) -> ctypes.c_void_p:
        """A module from a fat binary. Its bytes must outlive the call only."""
        library = ctypes.c_void_p()
        self.call("cuLibraryLoadData", ctypes.byref(library), code, None, None, 0, None, None, 0)
        return library

    def kernel(self, library: ctypes.c_void_p, name: str) -> ctypes.c_void_p:
        kernel = ctypes.c_void_p()
        self.call("cuLibraryGetKernel", ctypes.byref(kernel), library, name.encode())
        return kernel

    def launch(self, kernel: ctypes.c_void_p, grid: int, block: int, arguments: Sequence[Any]) -> None:
        addresses = (ctypes.c_void_p * len(arguments))(*(ctypes.addressof(a) for a in arguments))
        self.call("cuLaunchKernel", kernel, grid, 1, 1, block, 1, 1, 0, self.stream, addresses, None)

    def graph(self, work: Callable[[], None]) -> Graph:
        """What ``work`` launches on the stream, captured."""
        graph, executable = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuStreamBeginCapture_v2", self.stream, THREAD_LOCAL)
        work()
        self.call("cuStreamEndCapture", self.stream, ctypes.byref(graph))
        self.call("cuGraphInstantiateWithFlags", ctypes.byref(executable), graph, ctypes.c_ulonglong(0))
        self.call("cuGraphDestroy", graph)
        return Graph(self, executable)

    def seconds(self, work: Callable[[], None]) -> float:
        """What the device takes for ``work``, by events."""
        events = [ctypes.c_void_p(), ctypes.c_void_p()]
        for event in events:
            self.call("cuEventCreate", ctypes.byref(event), 0)
        self.call("cuEventRecord", events[0], self.stream)
        work()
        self.call("cuEventRecord", events[1], self.stream)
        self.call("cuEventSynchronize", events[1])
        milliseconds = ctypes.c_float()
        self.call("cuEventElapsedTime", ctypes.byref(milliseconds), *events)
        for event in events:
            self.call("cuEventDestroy_v2", event)
        return milliseconds.value / 1000

    def _attribute(self, attribute: int) -> int:
        value = ctypes.c_int()
        self.call("cuDeviceGetAttribute", ctypes.byref(value), attribute, 0)
        return value.value


class Graph:
    """An executable graph."""

    def __init__(self, device: Device, executable: ctypes.c_void_p) -> None:
        self._device, self._executable = device, executable

    def launch(self) -> None:
        self._device.call("cuGraphLaunch", self._executable, self._device.stream)

    def destroy(self) -> None:
        self._device.call("cuGraphExecDestroy", self._executable)
