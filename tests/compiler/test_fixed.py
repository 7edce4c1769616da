"""Inputs that get their value when a model is built."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import parser

import infc
from infc.compiler.artifact.reader import Artifact
from infc.compiler.driver import build
from infc.compiler.errors import InfcError, UsageError
from infc.compiler.options import BuildOptions

# An If by the input ``rate``; a scale and a switch, whose values are a row and a truth.
TEXT = """<ir_version: 10, opset_import: ["" : 20]>
g (float[2,4] x, int64 rate, float[4] scales, bool[1] flip) => (float[2,n] y)
<int64 high = {16000}, int64[1] zero = {0}, int64[1] two = {2}, int64[1] one = {1}> {
    is_high = Equal(rate, high)
    h = If(is_high) <then_branch = then () => (float[2,4] a) { a = Mul(x, scales) },
                     else_branch = other () => (float[2,2] a) { a = Slice(x, zero, two, one) }>
    n = Neg(h)
    y = Where(flip, n, h)
}"""
X = np.arange(8, dtype=np.float32).reshape(2, 4) - 3
SCALES = np.array([1, 2, 0.5, -1], np.float32)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    onnx.save(parser.parse_model(TEXT), tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


def made(model: Path, given: Any) -> infc.Engine:
    return infc.Engine(build(model, model.with_suffix(".infc"), set=given, tune=False, threads=1).path)


@pytest.mark.parametrize("given", [
    ["rate=16000", "scales=[1, 2, 0.5, -1]", "flip=true"],
    ["rate=16000", "scales=1,2,0.5,-1", "flip=[true]"],
    {"rate": 16000, "scales": SCALES, "flip": True},
    {"rate": np.int64(16000), "scales": tuple(SCALES.tolist()), "flip": np.array([True])},
])
def test_values_take_the_place_of_inputs(model: Path, given: Any) -> None:
    engine = made(model, given)
    assert [t.name for t in engine.inputs] == ["x"]
    np.testing.assert_array_equal(engine.run({"x": X})["y"], -X * SCALES)
    artifact = Artifact.open(model.with_suffix(".infc"))
    recorded = artifact.meta["options"]["set"]
    assert (recorded["rate"], recorded["scales"], recorded["flip"] in (True, [True])) == (16000, [1, 2, 0.5, -1], True)


def test_the_other_branch(model: Path) -> None:
    engine = made(model, {"rate": 8000, "flip": False})
    assert [t.name for t in engine.inputs] == ["x", "scales"]
    np.testing.assert_array_equal(engine.run({"x": X, "scales": SCALES})["y"], X[:, :2])


def test_a_row_gives_its_dimension_a_size(tmp_path: Path) -> None:
    text = """<ir_version: 10, opset_import: ["" : 20]>
        g (float[batch,width] x, float[width] w) => (float[batch,width] y) { y = Mul(x, w) }"""
    onnx.save(parser.parse_model(text), tmp_path / "row.onnx")
    built = build(tmp_path / "row.onnx", tmp_path / "row.infc", set={"w": [1, 2, 3]}, profiles=["batch=2"], tune=False, threads=1)
    assert built.report["profiles"] == ["batch=2"]
    x = np.ones((2, 3), np.float32)
    np.testing.assert_array_equal(infc.Engine(built.path).run({"x": x})["y"], [[1, 2, 3]] * 2)


@pytest.mark.parametrize(("given", "code", "part"), [
    (["rat=1"], "E0016", "did you mean rate"),
    (["rate"], "E0210", "--set sr=16000"),
    (["rate="], "E0210", "is not an input"),
    (["rate=sixteen"], "E0210", "is not an input"),
    (["rate=[]"], "E0210", "64"),
    (["rate=[[1]]"], "E0210", "64"),
    (["rate=1", "rate=2"], "E0210", "twice"),
    (["scales=1e999,0,0,0"], "E0210", "is not an input"),
    (["rate=1.5"], "E0211", "write --set rate=1"),
    (["rate=true"], "E0211", "i64[]"),
    (["rate=16000,8000"], "E0211", "i64[]"),
    (["rate=9223372036854775808"], "E0211", "rate"),
    (["scales=1"], "E0211", "[0.5,0.5]"),
    (["scales=1,2,3"], "E0211", "f32[4]"),
    (["scales=1e39,0,0,0"], "E0211", "cannot hold"),
    (["flip=1"], "E0211", "true"),
    (["x=1,2,3,4"], "E0211", "more than a row"),
])
def test_values_that_do_not_fit(given: list[str], code: str, part: str, model: Path) -> None:
    with pytest.raises(UsageError) as caught:
        made(model, given)
    assert caught.value.code == f"INFC-{code}"
    assert part in str(caught.value)


def test_the_error_names_the_input_that_decides(model: Path) -> None:
    with pytest.raises(InfcError) as caught:
        build(model, model.with_suffix(".infc"), tune=False, threads=1)
    assert caught.value.hint.startswith("input 'rate' decides")
    assert f"infc build {model}" in caught.value.hint
    assert caught.value.hint.endswith("--set rate=16000")


def test_the_command_that_builds_again() -> None:
    options = BuildOptions.of({"set": ["rate=16000", "scales=1,2"]})
    assert options.command("m.onnx", "cpu") == "infc build m.onnx --set rate=16000 --set 'scales=[1, 2]'"


SIZED = {
    "TopK": ("(float[2,8] x, int64[1] k) => (float[a,b] y)", "y, i = TopK(x, k)", {"k": [3]}, (2, 3)),
    "Tile": ("(float[2,3] x, int64[2] r) => (float[a,b] y)", "y = Tile(x, r)", {"r": [2, 1]}, (4, 3)),
    "Range": ("(float[1] x, int64 low, int64 high) => (float[a] y)",
              "step = Constant<value_int = 1>() r = Range(low, high, step) f = Cast<to = 1>(r) y = Add(f, x)",
              {"low": 2, "high": 7}, (5,)),
    "Loop": ("(float[2,3] x, int64 m) => (float[2,3] last, float[a,2,3] y)", """on = Constant<value = bool {1}>()
             last, y = Loop(m, on, x) <body = b (int64 i, bool c, float[2,3] s) => (bool d, float[2,3] t, float[2,3] u)
             { d = Identity(c) t = Add(s, s) u = Neg(s) }>""", {"m": 4}, (4, 2, 3)),
}


@pytest.mark.parametrize("operator", SIZED)
def test_an_input_that_is_a_size_is_named_and_can_be_set(operator: str, tmp_path: Path) -> None:
    """And not the input that is data."""
    signature, body, given, shape = SIZED[operator]
    path = tmp_path / "m.onnx"
    onnx.save(parser.parse_model(f'<ir_version: 10, opset_import: ["": 20]> g {signature} {{ {body} }}'), path)
    with pytest.raises(InfcError, match="E0405") as caught:
        build(path, path.with_suffix(".infc"), tune=False, threads=1)
    assert all(f"--set {name}=VALUE" in caught.value.hint for name in given)
    assert "--set x=" not in caught.value.hint
    x = np.ones([d.dim_value for d in onnx.load(path).graph.input[0].type.tensor_type.shape.dim], np.float32)
    assert made(path, given).run({"x": x})["y"].shape == shape
