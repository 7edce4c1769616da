"""Which layer is named, from values that are known."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from infc.compiler.artifact.layout import DTYPES, SPACES
from infc.compiler.artifact.program import Operand, Program, Step
from infc.compiler.inspection import diff

RNG = np.random.default_rng(0)


def test_error_is_relative_and_infinite_for_what_is_no_number() -> None:
    want = RNG.standard_normal((4, 5)).astype(np.float32)
    assert diff.error(want, want) == 0
    assert diff.error(want * 1.01, want) == pytest.approx(0.01, rel=1e-3)
    assert diff.error(np.where(want > 1, np.nan, want), want) == np.inf
    assert diff.error(np.array([np.inf, 1.0]), np.array([np.inf, 1.0])) == 0
    assert diff.error(np.zeros(3), np.zeros(3)) == 0
    assert diff.error(np.ones(3), np.zeros(3)) == np.inf


@pytest.mark.parametrize("shape", [(6,), (2, 12), (1, 3, 4, 5), (2, 3, 4)])
def test_the_layout_is_found(shape: tuple[int, ...]) -> None:
    want = RNG.standard_normal(shape).astype(np.float32)
    innermost = np.moveaxis(want, 1, -1) if want.ndim > 1 else want
    other = RNG.standard_normal(shape).astype(np.float32)
    found = diff.best([other, innermost.reshape(-1, shape[1] if want.ndim > 1 else 1), np.zeros(3)], want)
    assert found is not None
    np.testing.assert_array_equal(found, want)


def test_bytes_are_steps_of_a_scale() -> None:
    want = RNG.standard_normal((8, 64)).astype(np.float32)
    stored = np.clip(np.rint(want / 0.03) + 128, 0, 255).astype(np.uint8)
    found = diff.best([stored], want)
    assert found is not None
    assert diff.error(found, want) < 0.02


def chain() -> ir.Model:
    """y = (x a) b c, three products."""
    weights = {f"w{n}": RNG.standard_normal((8, 8)).astype(np.float32) for n in range(3)}
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(["n", 8]))
    value, nodes, initializers = x, [], []
    for n, (name, array) in enumerate(weights.items()):
        w = ir.Value(name=name, type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([8, 8]),
                     const_value=ir.tensor(array, name=name))
        initializers.append(w)
        node = ir.node("MatMul", [value, w], name=f"layer{n}")
        value = node.outputs[0]
        value.name, value.dtype, value.shape = f"v{n}", ir.DataType.FLOAT, ir.Shape(["n", 8])
        nodes.append(node)
    return ir.Model(ir.Graph([x], [value], nodes=nodes, initializers=initializers, opset_imports={"": 20}, name="g"), ir_version=10)


def values(model: ir.Model, x: np.ndarray, noise: list[float]) -> dict[str, list[np.ndarray]]:
    found, now = {}, x
    for n, node in enumerate(model.graph):
        weight = node.inputs[1]
        assert weight is not None
        assert weight.const_value is not None
        now = now @ weight.const_value.numpy()
        now = (now + noise[n] * np.linalg.norm(now) / now.size**0.5 * RNG.standard_normal(now.shape)).astype(np.float32)
        found[f"layer{n}"] = [now]
    return found


def test_each_layer_is_judged_on_what_the_engine_fed_it() -> None:
    model, x = chain(), RNG.standard_normal((5, 8)).astype(np.float32)
    found = values(model, x, [0.0, 0.3, 0.0])
    rows = diff.against_graph(found, model, {"x": x}, {"layer0": "int8", "layer1": "int8"}, lambda m: None)
    assert [r.layer for r in rows] == ["layer0", "layer1", "layer2"]
    assert rows[2].error > 0.05 > 1e-5 > (rows[2].own or 0)
    first = diff.first(rows)
    assert first is not None
    assert first.layer == "layer1"
    assert len(model.graph.inputs) == 1  # the graph that was given stays as it is


def test_rounding_is_explained_by_the_precision_that_a_layer_has() -> None:
    model, x = chain(), RNG.standard_normal((64, 8)).astype(np.float32)
    found = values(model, x, [0.02, 0.02, 0.02])
    int8 = dict.fromkeys(found, "int8")
    assert diff.first(diff.against_graph(found, model, {"x": x}, int8, lambda m: None)) is None
    assert diff.first(diff.against_graph(found, model, {"x": x}, {}, lambda m: None)) is not None


def program() -> Program:
    def operand(at: int) -> Operand:
        return Operand(SPACES["ARENA"], DTYPES["f32"], (5, 8), at, 8)

    steps = [Step("k", (operand(1024 * n),), (operand(1024 * (n + 1)),), (), 5, name=f"layer{n}") for n in range(3)]
    return Program(0, 0, [], steps, 8192)


def test_of_two_engines_the_first_that_adds_more_than_it_inherits() -> None:
    model, x = chain(), RNG.standard_normal((5, 8)).astype(np.float32)
    theirs, int8 = values(model, x, [0, 0, 0]), dict.fromkeys(("layer0", "layer1", "layer2"), "int8")
    rows = diff.against_engine(values(model, x, [0.01, 0.6, 0.01]), theirs, program(), int8, {})
    assert [r.diverges for r in rows] == [False, True, False]
    assert rows[2].inherited == rows[1].error
    missing = {name: v for name, v in theirs.items() if name != "layer1"}
    late = diff.against_engine(values(model, x, [0.6, 0, 0]), missing, program(), int8, {})
    assert [(r.layer, r.diverges, r.inherited) for r in late] == [("layer0", True, 0), ("layer2", False, late[0].error)]
    assert diff.first(diff.against_engine(theirs, theirs, program(), {}, {})) is None


def test_factors_of_channels_are_taken_off() -> None:
    want = RNG.standard_normal((2, 3, 8, 5)).astype(np.float32)
    for shape in ((1, 1, 1, 5), (1, 3, 1, 1), (1, 3, 1, 5)):
        factors = RNG.uniform(0.1, 9, shape).astype(np.float32)
        assert diff.error(diff.unscaled(want * factors, want), want) < 1e-6


def test_other_differences_stay() -> None:
    """A sign, noise, what is but for a few rows, and what is nearly the same."""
    want = RNG.standard_normal((64, 16)).astype(np.float32)
    turned = want * np.where(np.arange(16) == 3, -1, 1).astype(np.float32)
    other = RNG.standard_normal((64, 16)).astype(np.float32)
    near = want + 0.01 * other
    few = want[:3] * RNG.uniform(0.1, 9, 16).astype(np.float32)
    for got, wanted in ((turned, want), (other, want), (near, want), (few, want[:3])):
        assert diff.unscaled(got, wanted) is got
