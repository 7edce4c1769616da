"""Cases of test_gpu.py, each run in a process whose loader finds the fakes of tests/fake_gpu: ``python -m tests.runtime.gpu_cases
CASE``."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from infc.runtime import Engine, Error, Status
from tests.runtime import made
from tests.runtime.dlpack import CUDA, CUDA_MANAGED, Foreign

Array = np.ndarray[Any, np.dtype[Any]]
DEFAULT_STREAM = 1

cuda = ctypes.CDLL("libcuda.so.1")
cuda.fake_memory.restype = cuda.fake_called.restype = ctypes.c_void_p
cuda.fake_problem.restype = ctypes.c_char_p
cuda.fake_count.restype = ctypes.c_uint64


def values(batch: int) -> Array:
    return np.arange(-3, batch * 4 - 3, dtype=np.float32).reshape(batch, 4)


def refused(status: Status, message: str, call: Callable[[], object]) -> None:
    with pytest.raises(Error, match=message) as caught:
        call()
    assert caught.value.status == status


class Driver:
    """The device's primary context on this thread, and memory in it."""

    def __init__(self) -> None:
        context = ctypes.c_void_p()
        assert not cuda.cuInit(0)
        assert not cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
        assert not cuda.cuCtxPushCurrent_v2(context)

    def stream(self) -> int:
        stream = ctypes.c_void_p()
        assert not cuda.cuStreamCreate(ctypes.byref(stream), 1)
        return stream.value or 0

    def empty(self, shape: tuple[int, ...], dtype: Any) -> tuple[int, Array]:
        """A device address, and where the fake has its bytes."""
        address, size = ctypes.c_uint64(), int(np.prod(shape)) * np.dtype(dtype).itemsize
        assert not cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size))
        memory = cuda.fake_memory(address, ctypes.c_size_t(size))
        return address.value, np.frombuffer((ctypes.c_uint8 * size).from_address(memory), dtype).reshape(shape)

    def lend(self, array: Array, **changes: Any) -> tuple[Foreign, Array]:
        address, memory = self.empty(array.shape, array.dtype)
        memory[...] = array
        return Foreign(address, array.shape, array.dtype, **{"device": (CUDA, 0), **changes}), memory

    def write_later(self, to: Foreign, array: Array) -> None:
        """By CUDA's default stream; the array must live until then."""
        source, size = ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t(array.nbytes)
        assert not cuda.cuMemcpyHtoDAsync_v2(ctypes.c_uint64(to.address), source, size, ctypes.c_void_p(DEFAULT_STREAM))


def host_arrays() -> None:
    engine = Engine(made.gpu_artifact(), device="cuda")
    assert (engine.device, engine.note, engine.isa, engine.threads) == ("cuda:0", "", "", 1)
    assert repr(engine) == "<infc.Engine on cuda:0: TensorRT>"
    for batch in range(1, 9):
        x, ids = values(batch), np.arange(batch)
        outputs = engine.run({"x": x, "ids": ids})
        np.testing.assert_array_equal(outputs["y"], np.maximum(x, 0))
        np.testing.assert_array_equal(outputs["copy"], ids)
        np.testing.assert_array_equal(engine.run({"x": x})["copy"], np.full(batch, 7))
    large = {"x": values(2), "ids": np.array([0, 10])}
    refused(Status.BAD_VALUE, "input 'ids': the value at flat index 1 is 10", lambda: engine.run(large))
    refused(Status.BAD_SHAPE, "no profile fits batch=9", lambda: engine.run({"x": values(9)}))
    assert engine.context().memory > 0
    assert engine.context().step_times() == []
    assert engine.section("TENSORRT") is not None


def automatic() -> None:
    assert Engine(made.gpu_artifact()).device == "cuda:0"
    assert Engine(made.gpu_artifact(cpu=False)).device == "cuda:0"
    cpu = Engine(made.gpu_artifact(), device="cpu", threads=1)
    assert (cpu.device, cpu.note, cpu.isa) == ("cpu", "", "scalar")
    none = Engine(made.cpu_artifact(), threads=1)
    assert (none.device, none.note) == ("cpu", "")
    other = Engine(made.gpu_artifact(made.engine(sms=(120,))), threads=1)
    assert other.device == "cpu"
    assert "SM 120" in other.note
    assert other.note in repr(other)
    refused(Status.INCOMPATIBLE, "SM 120", lambda: Engine(made.gpu_artifact(made.engine(sms=(120,))), device="cuda"))
    refused(Status.INCOMPATIBLE, "there is no cuda:7", lambda: Engine(made.gpu_artifact(), device="cuda:7"))
    refused(Status.INVALID_ARGUMENT, "'tpu'", lambda: Engine(made.gpu_artifact(), device="tpu"))


def device_arrays() -> None:
    driver, engine = Driver(), Engine(made.gpu_artifact())
    for batch in made.BATCHES:
        context = engine.context()
        (x, x_memory), (y, y_memory) = driver.lend(values(batch)), driver.lend(np.zeros((batch, 4), np.float32))
        context.bind({"x": x}, {"y": y})
        assert x.asked[-1]["stream"] == DEFAULT_STREAM
        assert context.outputs["y"] is y
        for x_memory[...] in (values(batch), -values(batch)):
            context.run()
            np.testing.assert_array_equal(y_memory, np.maximum(x_memory, 0))
            np.testing.assert_array_equal(context.outputs["copy"], np.full(batch, 7))  # in the CPU's memory
        late = values(batch) + 1
        driver.write_later(x, late)  # what the default stream has been given comes before the run
        context.run()
        np.testing.assert_array_equal(y_memory, np.maximum(late, 0))
        context.bind({"x": values(batch)}, {"y": y})
        context.run()
        np.testing.assert_array_equal(y_memory, np.maximum(values(batch), 0))
        assert (x.lent, y.lent) == (0, 1)
        context.unbind()
        assert (x.lent, y.lent) == (0, 0)
        context.bind({"x": x})
        del context
        gc.collect()
        assert x.lent == 0


def wrong_device_arrays() -> None:
    driver, engine = Driver(), Engine(made.gpu_artifact())
    context = engine.context()

    def bind(x: Foreign, **outputs: Foreign) -> Callable[[], None]:
        return lambda: (context.bind({"x": x}, outputs), context.run())[1]

    def lend(array: Array, **changes: Any) -> Foreign:
        return driver.lend(array, **changes)[0]

    x, argument, shape = lend(values(2)), Status.INVALID_ARGUMENT, Status.BAD_SHAPE
    refused(argument, "input 'x' is on cuda:3, the engine on cuda:0", bind(lend(values(2), device=(CUDA, 3))))
    bind(lend(values(2), device=(CUDA_MANAGED, 3)))()
    refused(argument, "input 'x' is float64, not float32", bind(lend(values(2).astype(np.float64))))
    refused(argument, "'x' is not aligned", bind(lend(values(2), offset=4)))
    refused(shape, "'x' is in device memory: dimension 0 must be the profile's 8, not 3", bind(lend(values(3))))
    refused(shape, r"output 'y' has shape \(8, 4\), not \(2, 4\)", bind(x, y=lend(values(8))))
    refused(argument, "output 'copy' is float32, not int64", bind(x, copy=lend(np.zeros(2, np.float32))))
    bind(x)()


def streams() -> None:
    driver, engine = Driver(), Engine(made.gpu_artifact())
    context, number = engine.context(), driver.stream()
    (x, x_memory), (y, y_memory) = driver.lend(values(2)), driver.lend(np.zeros((2, 4), np.float32))
    context.bind({"x": x}, {"y": y})
    objects = SimpleNamespace(cuda_stream=0), SimpleNamespace(cuda_stream=number), SimpleNamespace(ptr=number)
    for stream in (None, 0, number, *objects):
        x_memory += 1
        context.run_async(stream)
        context.wait()
        np.testing.assert_array_equal(y_memory, np.maximum(x_memory, 0))
    context.wait()
    context.bind({"x": values(8)})  # host arrays alone
    context.run_async()
    context.wait()
    np.testing.assert_array_equal(context.outputs["y"], np.maximum(values(8), 0))
    context.run_async(number)
    context.bind({"x": -values(8)})  # waits
    context.run_async(number)
    context.run()
    np.testing.assert_array_equal(context.outputs["y"], np.maximum(-values(8), 0))
    for wrong in ("7", -1, 1.0, 1 << 64):
        refused(Status.INVALID_ARGUMENT, "stream is", lambda wrong=wrong: context.run_async(wrong))  # type: ignore[misc]


def eight_threads() -> None:
    import threading

    engine, failures = Engine(made.gpu_artifact()), list[object]()

    def work(seed: int) -> None:
        for i in range(30):
            x = values(1 + (seed + i) % 8) - seed
            if not np.array_equal(engine.run({"x": x})["y"], np.maximum(x, 0)):
                failures.append((seed, i))

    threads = [threading.Thread(target=work, args=(s,)) for s in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


if __name__ == "__main__":
    globals()[sys.argv[1]]()
    gc.collect()
    assert cuda.fake_problem() is None, cuda.fake_problem()
    print("passed")
