"""Arrays of other libraries, bound by DLPack to an engine on the CPU."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

from infc.runtime import Engine, Error, Status
from tests.runtime.dlpack import COPIED, CUDA, CUDA_HOST, CUDA_MANAGED, READ_ONLY, ROCM, Foreign, Numpys, lend

Array = np.ndarray[Any, np.dtype[Any]]


def values(batch: int = 2) -> Array:
    return np.arange(-3, batch * 4 - 3, dtype=np.float32).reshape(batch, 4)


@pytest.fixture(scope="module")
def engine(artifact: bytes) -> Engine:
    return Engine(artifact, threads=1)


@pytest.mark.parametrize("version", [None, 1])
@pytest.mark.parametrize("batch", range(1, 9))
def test_inputs_and_outputs_are_not_copied(engine: Engine, batch: int, version: int | None) -> None:
    x, y, context = values(batch), np.zeros((batch, 4), np.float32), engine.context()
    theirs = lend(y, version=version)
    context.bind({"x": lend(x, version=version)}, {"y": theirs})
    context.run()
    np.testing.assert_array_equal(y, np.maximum(x, 0))
    assert context.outputs["y"] is theirs
    x[:] = 5
    context.run()
    assert (y == 5).all()
    assert theirs.asked[-1] == ({} if version is None else {"max_version": (1, 0)})  # on the CPU there is no stream


def test_of_numpy(engine: Engine) -> None:
    x = values()
    np.testing.assert_array_equal(engine.run({"x": Numpys(x)})["y"], np.maximum(x, 0))


def test_of_torch(engine: Engine) -> None:
    torch = pytest.importorskip("torch")
    x, y, context = torch.from_numpy(values()), torch.zeros(2, 4), engine.context()
    context.bind({"x": x}, {"y": y})
    context.run()
    np.testing.assert_array_equal(y.numpy(), np.maximum(values(), 0))
    with pytest.raises(Error, match="input 'x' is float64, not float32"):
        engine.run({"x": x.double()})
    with pytest.raises(Error, match="input 'x' is not C-contiguous"):
        engine.run({"x": torch.zeros(4, 2).T})
    with pytest.raises(Error, match=r"input 'x': .*require.* grad"):
        engine.run({"x": x.clone().requires_grad_()})
    with pytest.raises(Error, match="input 'x': "):
        engine.run({"x": x.to("meta")})


def test_memory_is_kept_until_it_is_unbound(engine: Engine) -> None:
    x, first, second = values(), lend(values()), lend(values())
    context = engine.context()
    context.bind({"x": first})
    assert first.lent == 1
    context.bind({"x": second})
    assert (first.lent, second.lent) == (0, 1)
    context.unbind()
    assert second.lent == 0
    context.bind({"x": second}, {"y": lend(np.zeros_like(x))})
    del context
    gc.collect()
    assert second.lent == 0


def test_what_is_refused_is_let_go_of(engine: Engine) -> None:
    for changes in ({"kind": 0}, {"strides": (1, 2)}, {"version": 2}, {"version": 1, "flags": COPIED}):
        theirs = lend(values(), **changes)
        with pytest.raises(Error):
            engine.run({"x": theirs})
        assert theirs.lent == 0
    theirs = lend(np.zeros((9, 4), np.float32))
    with pytest.raises(Error, match="no profile fits batch=9"):
        engine.run({"x": theirs})
    assert theirs.lent == 0


MEMORY = np.zeros(64, np.float32)
ADDRESS = MEMORY.ctypes.data


@pytest.mark.parametrize(
    ("theirs", "message"),
    [
        (Foreign(ADDRESS, (2, 4), np.int32), "input 'x' is int32, not float32"),
        (Foreign(ADDRESS, (2, 4), np.bool_), "input 'x' is bool, not float32"),
        (Foreign(ADDRESS, (2, 4), kind=4, bits=16), "input 'x' is bfloat16, not float32"),
        (Foreign(ADDRESS, (2, 4), kind=77, bits=3), "input 'x' is type3, not float32"),
        (Foreign(ADDRESS, (2, 4), lanes=4), "input 'x' is float32 of 4 lanes, not float32"),
        (Foreign(ADDRESS, (2, 4), strides=(1, 2)), "input 'x' is not C-contiguous: pass a contiguous copy of it"),
        (Foreign(ADDRESS, (2, 4), strides=(8, 1)), "input 'x' is not C-contiguous"),
        (Foreign(ADDRESS, (2, 4), strides=(-4, 1)), "input 'x' is not C-contiguous"),
        (Foreign(ADDRESS, (2, 4), strides=(4, 0)), "input 'x' is not C-contiguous"),
        (Foreign(ADDRESS + 1, (2, 4)), "'x' is not aligned to its elements"),
        (Foreign(ADDRESS, (2, 4), offset=2), "'x' is not aligned to its elements"),
        (Foreign(ADDRESS, (8,)), "input 'x' has 2 dimensions, not 1"),
        (Foreign(ADDRESS, (1,) * 80), "input 'x' has 2 dimensions, not 80"),
        (Foreign(ADDRESS, (2, 3)), "input 'x': dimension 1 is 3, not 4"),
        (Foreign(ADDRESS, (0, 4)), "input 'x': dimension 0 is 0, not 1 or more"),
        (Foreign(ADDRESS, (2, 4), device=(CUDA, 1)), r"input 'x' is on cuda:1, the engine runs on the CPU: copy it there first"),
        (Foreign(ADDRESS, (2, 4), device=(CUDA_MANAGED, 0)), "input 'x' is on cuda:0, the engine runs on the CPU"),
        (Foreign(ADDRESS, (2, 4), device=(ROCM, 0)), "input 'x' is neither in the CPU's memory nor on a CUDA device"),
        (Foreign(ADDRESS, (2, 4), version=2), "input 'x': its DLPack version is 2, not 1"),
        (Foreign(ADDRESS, (2, 4), version=1, flags=COPIED), "input 'x' is not lent, but copied, by its library"),
    ],
)
def test_wrong_inputs(engine: Engine, theirs: Foreign, message: str) -> None:
    with pytest.raises(Error, match=message) as caught:
        engine.run({"x": theirs})
    assert caught.value.status in (Status.INVALID_ARGUMENT, Status.BAD_SHAPE)
    assert theirs.lent == 0


def test_strides_of_one_element_do_not_matter(engine: Engine) -> None:
    x = values(1)
    np.testing.assert_array_equal(engine.run({"x": lend(x, strides=(77, 1))})["y"], np.maximum(x, 0))
    moved = Foreign(x.ctypes.data - 8, x.shape, offset=8)
    np.testing.assert_array_equal(engine.run({"x": moved})["y"], np.maximum(x, 0))
    pinned = lend(x, device=(CUDA_HOST, 0))
    np.testing.assert_array_equal(engine.run({"x": pinned})["y"], np.maximum(x, 0))


def test_wrong_outputs(engine: Engine) -> None:
    context = engine.context()
    y = np.zeros((2, 4), np.float32)
    for theirs, message in ((lend(y, version=1, flags=READ_ONLY), "output 'y' is not writable"),
                            (lend(y, device=(CUDA, 0)), "output 'y' is on cuda:0, the engine runs on the CPU"),
                            (lend(y.astype(np.int32)), "output 'y' is int32, not float32"),
                            (lend(np.zeros((3, 4), np.float32)), r"output 'y' has shape \(3, 4\), not \(2, 4\)")):
        with pytest.raises(Error, match=message):
            context.bind({"x": values()}, {"y": theirs})
    context.bind({"x": lend(values(), version=1, flags=READ_ONLY)})  # an input may be


def raises(error: Exception) -> Any:
    def refuse() -> None:
        raise error
    return refuse


def test_a_library_that_refuses(engine: Engine) -> None:
    for error in (BufferError("cannot lend"), RuntimeError("cannot lend"), TypeError("cannot lend")):
        with pytest.raises(Error, match="input 'x': cannot lend") as caught:
            engine.run({"x": Numpys(values(), raises(error))})
        assert caught.value.status == Status.INVALID_ARGUMENT


class Broken:
    shape = (2, 4)

    def __init__(self, device: Any, capsule: Any = None) -> None:
        self.device, self.capsule = device, capsule

    def __dlpack_device__(self) -> Any:
        return self.device

    def __dlpack__(self, **asked: Any) -> Any:
        return self.capsule


@pytest.mark.parametrize("theirs", [Broken(None), Broken(3), Broken(("cpu", 0)), Broken((1,)), Broken((1, 0)), Broken((1, 0), 7)])
def test_a_library_that_is_broken(engine: Engine, theirs: Broken) -> None:
    with pytest.raises(Error, match="input 'x': "):
        engine.run({"x": theirs})


def test_streams_are_a_gpus(engine: Engine) -> None:
    context = engine.context()
    context.bind({"x": values()})
    for stream in ("0", 1.5, -1, object()):
        with pytest.raises(Error, match=r"stream is .*, not a number or an object with"):
            context.run_async(stream)
    for call in (context.run_async, context.wait):
        with pytest.raises(Error, match="the engine runs on the CPU") as caught:
            call()
        assert caught.value.status == Status.INVALID_ARGUMENT
