"""Operators that take and put elements by index, with random shapes."""

from __future__ import annotations

import numpy as np
import pytest

from infc.runtime import Engine
from tests.plugins.cpu.harness import aligned, compile_model
from tests.plugins.cpu.rules.ops import check, floats, model_of, shape_of

SEEDS = range(25)
INDEX = (np.int32, np.int64)


def _within(rng: np.random.Generator, shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return tuple(int(rng.integers(1, 7)) if i == axis else int(rng.integers(1, d + 1)) for i, d in enumerate(shape))


@pytest.mark.parametrize("seed", SEEDS)
def test_gather_elements(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = shape_of(rng)
    axis = int(rng.integers(len(shape)))
    indices = rng.integers(-shape[axis], shape[axis], _within(rng, shape, axis)).astype(INDEX[seed % 2])
    x = floats(rng, *shape) if seed % 3 else rng.integers(-9, 9, shape)
    check("GatherElements", {"x": x, "i": indices}, ["i"] if seed % 4 == 0 else [], axis=axis - len(shape) * (seed % 2))


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
@pytest.mark.parametrize("seed", range(12))
def test_scatter_elements(reduction: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = shape_of(rng)
    axis = int(rng.integers(len(shape)))
    own = _within(rng, shape, axis)
    indices = rng.integers(-shape[axis], shape[axis], own)
    if reduction == "none":  # the order of equal indices is not defined
        own = tuple(min(o, shape[axis]) if i == axis else o for i, o in enumerate(own))
        indices = np.argsort(rng.random(tuple(shape[axis] if i == axis else o for i, o in enumerate(own))), axis=axis)
        indices = indices.take(range(own[axis]), axis)
    x, updates = (floats(rng, *s) if seed % 3 else rng.integers(-9, 9, s) for s in (shape, own))
    check("ScatterElements", {"x": x, "i": indices, "u": updates}, axis=axis, reduction=reduction)


@pytest.mark.parametrize("seed", SEEDS)
def test_gather_nd(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = shape_of(rng, 2, 5)
    batch = int(rng.integers(0, len(shape)))
    depth = int(rng.integers(1, len(shape) - batch + 1))
    lead = (*shape[:batch], *shape_of(rng, 0, 2))
    indices = np.stack([rng.integers(-d, d, lead) for d in shape[batch : batch + depth]], axis=-1)
    check("GatherND", {"x": floats(rng, *shape), "i": indices}, batch_dims=batch)


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
@pytest.mark.parametrize("seed", range(8))
def test_scatter_nd(reduction: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = shape_of(rng, 1, 5)
    depth = int(rng.integers(1, len(shape) + 1))
    places = int(np.prod(shape[:depth]))
    count = int(rng.integers(1, places + 1))
    flat = rng.permutation(places)[:count] if reduction == "none" else rng.integers(0, places, count)
    indices = np.stack(np.unravel_index(flat, shape[:depth]), axis=-1)
    indices = indices - np.array(shape[:depth]) * rng.integers(0, 2, indices.shape)
    check("ScatterND", {"x": floats(rng, *shape), "i": indices.astype(np.int64), "u": floats(rng, count, *shape[depth:])},
          reduction=reduction)


def test_an_index_outside_is_an_error() -> None:
    inputs = {"x": np.zeros((2, 3), np.float32), "i": np.zeros((2, 3), np.int64)}
    artifact, _ = compile_model(model_of("GatherElements", inputs, {}, {"axis": 1}))
    for bad in (3, -4, np.iinfo(np.int64).min):
        inputs["i"][1, 2] = bad
        with pytest.raises(Exception, match="index"):
            Engine(aligned(artifact)).run(inputs)


@pytest.mark.parametrize("seed", SEEDS)
def test_one_hot(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = shape_of(rng, 1, 3)
    depth, axis = int(rng.integers(1, 7)), int(rng.integers(-len(shape) - 1, len(shape) + 1))
    indices, values = rng.integers(-depth - 1, depth + 1, shape), floats(rng, 2)
    found = np.eye(depth, dtype=bool)[indices % depth] & ((indices >= -depth) & (indices < depth))[..., None]
    inputs = {"i": indices.astype((np.int32, np.int64, np.float32)[seed % 3]), "d": np.array(depth, np.int64), "v": values}
    check("OneHot", inputs, ["d"], want=[np.moveaxis(np.where(found, values[1], values[0]), -1, axis)], axis=axis)


@pytest.mark.parametrize("seed", SEEDS)
def test_trilu(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = floats(rng, *shape_of(rng, 2, 4))
    check("Trilu", {"x": x, "k": np.array(rng.integers(-7, 8), np.int64)}, ["k"] if seed % 2 else [], upper=int(rng.integers(2)))


@pytest.mark.parametrize("seed", SEEDS)
def test_reverse_sequence(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = shape_of(rng, 2, 4)
    batch = seed % 2
    lengths = rng.integers(1, shape[1 - batch] + 1, shape[batch])
    check("ReverseSequence", {"x": floats(rng, *shape), "n": lengths.astype(np.int64)}, batch_axis=batch, time_axis=1 - batch)


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "wrap"])
@pytest.mark.parametrize("seed", range(15))
def test_pad(mode: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = tuple(d + 1 for d in shape_of(rng, 1, 4, 4))
    pads = np.array([[rng.integers(-1 if mode == "constant" else 0, d) for d in shape] for _ in range(2)]).reshape(-1)
    inputs = {"x": floats(rng, *shape), "p": pads}
    known = ["p"]
    if mode == "constant":
        inputs["v"] = np.array(rng.standard_normal(), np.float32)
        known += ["v"] if seed % 2 else []
        if any(d + a + b < 1 for d, a, b in zip(shape, pads[: len(shape)], pads[len(shape) :], strict=True)):
            pytest.skip("nothing is left")
    check("Pad", inputs, known, mode=mode)


@pytest.mark.parametrize("seed", SEEDS)
def test_tile(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = shape_of(rng, 1, 5, 4)
    check("Tile", {"x": floats(rng, *shape), "r": rng.integers(1, 4, len(shape))}, ["r"])


@pytest.mark.parametrize("seed", range(10))
def test_tensor_scatter(seed: int) -> None:
    rng = np.random.default_rng(seed)
    batch, heads, size, count = (int(rng.integers(1, n)) for n in (4, 4, 8, 4))
    count = min(count, size)
    cache, update = floats(rng, batch, heads, size, 5), floats(rng, batch, heads, count, 5)
    circular = seed % 2
    starts = rng.integers(0, size if circular else size - count + 1, batch)
    want = cache.copy()
    for b, start in enumerate(starts):
        want[b][:, (start + np.arange(count)) % size] = update[b]
    check("TensorScatter", {"c": cache, "u": update, "s": starts}, want=[want], opset=24, mode="circular" if circular else "linear")


@pytest.mark.parametrize("seed", range(15))
def test_col2im(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rank = 2
    block, strides, dilations, pads = ([int(rng.integers(1, n)) for _ in range(rank)] for n in (4, 3, 3, 2))
    image = [int(rng.integers(7, 10)) for _ in range(rank)]
    counts = [(i + 2 * p - d * (b - 1) - 1) // s + 1 for i, p, d, b, s in zip(image, pads, dilations, block, strides, strict=True)]
    x = floats(rng, 2, 3 * int(np.prod(block)), int(np.prod(counts)))
    check("Col2Im", {"x": x, "i": np.array(image), "b": np.array(block)}, ["i", "b"], strides=strides, dilations=dilations,
          pads=pads * 2)
