"""Calibration of a graph: the same to the last bit for any order and number at once, padding left out, memory bounded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from onnx import parser

from infc.compiler.calibrate import observe
from infc.compiler.calibrate.data import Arrays
from infc.compiler.calibrate.gather import Estimate, Gathering
from infc.compiler.errors import UsageError
from infc.passes.quant.statistics import ValueStatistics

LENGTHS = (3, 9, 1, 5, 7, 2, 8)


def graph(batch: str | int = "batch", seq: str | int = "seq") -> ir.Model:
    """Two products; the second one's input is a nonlinear function of the first one's result."""
    model = ir.from_proto(parser.parse_model(f"""
        <ir_version: 10, opset_import: ["" : 23]>
        g (float[{batch},{seq},4] x, int64[{batch},{seq}] mask) => (float[{batch},{seq},3] y)
        {{ h = MatMul(x, a)
           r = Relu(h)
           y = MatMul(r, b) }}"""))
    rng = np.random.default_rng(0)
    for name, shape in (("a", (4, 6)), ("b", (6, 3))):
        tensor = ir.tensor(rng.standard_normal(shape).astype(np.float32), name=name)
        value = next(v for node in model.graph for v in node.inputs if v is not None and v.name == name)
        value.const_value, value.shape, value.dtype = tensor, ir.Shape(shape), ir.DataType.FLOAT
        model.graph.register_initializer(value)
    for node in model.graph:
        for out in node.outputs:
            out.dtype = ir.DataType.FLOAT
            out.shape = out.shape or ir.Shape([batch, seq, 6])
    return model


def samples(pad: int = 0) -> list[Arrays]:
    rng = np.random.default_rng(1)
    made = []
    for length in LENGTHS:
        width = max(length, pad)
        x = rng.standard_normal((1, length, 4)).astype(np.float32)
        full = np.full((1, width, 4), 1e6, np.float32)  # what padding holds must not matter
        full[:, :length] = x
        made.append({"x": full, "mask": (np.arange(width) < length).astype(np.int64)[None]})
    return made


def gather(given: list[Arrays], at_once: int = 1, model: ir.Model | None = None, grams: bool = False, memory: int = 1 << 30,
           told: list[Any] | None = None) -> tuple[dict[str, ValueStatistics], dict[str, Any]]:
    model = model or graph()
    values = observe.watched(model)
    heard = told if told is not None else []
    gathering = Gathering(lambda: iter(given), len(given), "mask", lambda m: None, at_once, memory, heard.append,
                          lambda done, of: heard.append((done, of)))
    found, made = gathering.run(model, values, [v.name for v in values] if grams else [])
    return found, dict(made)


def bits(found: dict[str, ValueStatistics]) -> list[bytes]:
    """All that is known, as bytes."""
    out = []
    for name, v in found.items():
        assert v.histogram is not None
        assert v.channels is not None
        out += [name.encode(), np.array([v.count, v.invalid, v.channels.rows, v.histogram.exponent]).tobytes(),
                np.array([v.minimum, v.maximum]).tobytes(), v.histogram.counts.tobytes(), v.channels.minimum.tobytes(),
                v.channels.maximum.tobytes(), v.channels.mean.tobytes(), v.channels.absolute_mean.tobytes(),
                v.channels.square_mean.tobytes()]
    return out


def test_the_inputs_of_products_are_watched() -> None:
    assert [(v.name, v.axis, v.channels) for v in observe.watched(graph())] == [("x", -1, 4), ("r", -1, 6)]
    assert [v.name for v in observe.watched(graph(), every=True)] == ["x", "r", "h", "y"]


def test_statistics_are_those_of_the_values() -> None:
    found, _ = gather(samples())
    rows = np.concatenate([s["x"][0] for s in samples()])
    assert found["x"].count == rows.size
    assert (found["x"].minimum, found["x"].maximum) == (rows.min(), rows.max())
    assert found["r"].minimum == 0.0


def test_the_same_for_1_4_and_7_at_once() -> None:
    one = bits(gather(samples(), 1)[0])
    assert one == bits(gather(samples(), 4)[0]) == bits(gather(samples(), 7)[0])


def test_padding_does_not_enter() -> None:
    plain = bits(gather(samples())[0])
    assert plain == bits(gather(samples(pad=9))[0])
    assert plain == bits(gather(samples(pad=9), model=graph(1, 9))[0])


@pytest.mark.parametrize("memory", [1 << 30, 1])
def test_gram_matrices(memory: int) -> None:
    told: list[Any] = []
    found, grams = gather(samples(), grams=True, memory=memory, told=told)
    rows = np.concatenate([s["x"][0] for s in samples()])
    ones = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    np.testing.assert_allclose(grams["x"], ones.T @ ones, rtol=1e-5, atol=1e-6)
    assert found["r"].channels is not None
    trace = float(np.trace(grams["r"]))
    assert trace == pytest.approx(round(trace), rel=1e-4)  # the rows that are not all zero
    assert 0.8 * len(rows) < trace < len(rows) + 0.5
    estimate = next(t for t in told if isinstance(t, Estimate))
    assert estimate.passes == (2 if memory > 1 else 3)  # one matrix at a time
    assert told[-1] == (len(LENGTHS) * estimate.passes, len(LENGTHS) * estimate.passes)


def test_a_sample_that_the_model_does_not_take() -> None:
    broken = [{"x": np.zeros((1, 2, 5), np.float32), "mask": np.ones((1, 2), np.int64)}]
    with pytest.raises(UsageError, match="E0807"):
        gather(broken)


def test_a_failing_sample_ends_it_at_once() -> None:
    def endless() -> Iterator[Arrays]:
        yield from samples()
        raise UsageError("E0806", "a sample is broken")

    observer = observe.Observer(graph(), ["r"], "mask", lambda m: None)
    with pytest.raises(UsageError, match="E0806"):
        list(observer.stream(endless(), 3))


def test_convolutions_have_channels_in_front() -> None:
    model = ir.from_proto(parser.parse_model("""
        <ir_version: 10, opset_import: ["" : 23]>
        g (float[1,2,5,5] x, float[3,2,3,3] w) => (float[1,3,3,3] y) { y = Conv(x, w) }"""))
    w = model.graph.inputs.pop()
    w.const_value = ir.tensor(np.ones((3, 2, 3, 3), np.float32), name="w")
    model.graph.register_initializer(w)
    x = np.random.default_rng(0).standard_normal((1, 2, 5, 5)).astype(np.float32)
    values = observe.watched(model)
    assert [(v.name, v.axis, v.channels) for v in values] == [("x", 1, 2)]
    found, _ = Gathering(lambda: iter([{"x": x}]), 1, None, lambda m: None).run(model, values)
    assert found["x"].channels is not None
    np.testing.assert_array_equal(found["x"].channels.maximum, x.max((0, 2, 3)))
