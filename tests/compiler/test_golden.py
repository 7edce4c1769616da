"""Golden cases of .onnx files where the model's authorities differ, or quantised results lie between two steps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

from infc.compiler import driver
from infc.compiler.artifact.reader import Artifact
from infc.compiler.cli import main
from infc.compiler.errors import CheckError, UnsupportedError, UsageError
from infc.runtime import Engine

RNG = np.random.default_rng(0)
# What ONNX Runtime 1.32 takes for a layer normalisation and is none: the mean minus x.
SWAPPED = """g (float[n, 4, 4] x) => (float[n, 4, 4] y) <float two = {2}, float eps = {0.00001}, float[4] one = {1, 2, 3, 4}> {
    mu = ReduceMean<axes=[-1]>(x) d = Sub(mu, x) p = Pow(d, two) v = ReduceMean<axes=[-1]>(p) w = Add(v, eps) s = Sqrt(w)
    q = Div(d, s) m = Mul(q, one) y = Add(m, one) }"""


def save(folder: Path, text: str, **constants: np.ndarray[Any, Any]) -> Path:
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {text}')
    model.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in constants.items())
    onnx.save(model, folder / "m.onnx")
    return folder / "m.onnx"


def built(path: Path, **options: Any) -> tuple[dict[str, Any], Engine, Path]:
    out = path.with_suffix(".infc")
    return driver.build(path, out, tune=False, **options).report, Engine(out), out


def test_what_onnx_runtime_optimises_wrongly_is_computed_as_it_is_written(tmp_path: Path) -> None:
    path = save(tmp_path, SWAPPED)
    report, engine, out = built(path, profiles=["n=2"])
    assert report["golden"]["agrees_with"] == "ONNX Runtime without its optimisations"
    assert any("which differs from ONNX Runtime" in note for note in report["notes"])
    kept = json.loads(bytes(Artifact.open(out).section("REPORT") or b""))
    assert kept["notes"] == report["notes"]
    x = RNG.standard_normal((2, 4, 4)).astype(np.float32)
    want: Any = ReferenceEvaluator(str(path)).run(None, {"x": x})
    np.testing.assert_allclose(engine.run({"x": x})["y"], want[0], atol=1e-5)
    assert main.main(["verify", str(out)]) == 0


def test_numbers_that_no_integer_is_near_to_do_not_fail_a_build(tmp_path: Path) -> None:
    report, engine, out = built(save(tmp_path, "g (float[9] x) => (uint8[9] y) { y = Cast<to=2>(x) }"))
    assert report["golden"]["agrees_with"] == "ONNX's own evaluator"
    x = np.array([-1, -300, 0, 1.9, 255, 256, 1e30, -np.inf, np.nan], np.float32)
    assert engine.run({"x": x})["y"].tolist() == [0, 0, 0, 1, 255, 255, 255, 0, 0]
    assert main.main(["verify", str(out)]) == 0


def test_an_engine_that_agrees_with_nobody_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Engine.run
    monkeypatch.setattr(Engine, "run", lambda self, inputs: {k: v + 1 for k, v in run(self, inputs).items()})
    for text in (SWAPPED, "g (float[n] x) => (uint8[n] y) { y = Cast<to=2>(x) }"):
        with pytest.raises(CheckError, match="E0503"):
            driver.build(save(tmp_path, text), tmp_path / "m.infc", tune=False, profiles=["n=2"])


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_a_resize_of_which_onnx_and_onnx_runtime_say_different_things_is_refused_by_name(tmp_path: Path, mode: str) -> None:
    text = f"""g (float[1, 2, 7, 5] x) => (float[1, 2, 11, 11] y) {{
        y = Resize<mode="{mode}", coordinate_transformation_mode="align_corners">(x, , scales) }}"""
    with pytest.raises(UnsupportedError, match="E0407") as caught:
        built(save(tmp_path, text, scales=np.array([1, 1, 1.7, 2.3], np.float32)))
    assert "(Resize)" in caught.value.where
    report, *_ = built(save(tmp_path, text.replace(", scales", ", , sizes"), sizes=np.array([1, 2, 11, 11])))
    assert report["golden"]["agrees_with"] == ""


def test_a_mean_of_nothing(tmp_path: Path) -> None:
    report, engine, _ = built(save(tmp_path, "g (float[0, 3] x) => (float[3] y) { y = ReduceMean<axes=[0], keepdims=0>(x) }"))
    assert report["golden"]["agrees_with"] == "ONNX's own evaluator"
    assert np.isnan(engine.run({"x": np.zeros((0, 3), np.float32)})["y"]).all()


QUANTISED = """g (float[1, 3, 12, 12] x) => (float[1, 4, 12, 12] y) <float xs = {0.05}, float ys = {0.1}, uint8 z = {120}> {
    xq = QuantizeLinear(x, xs, z) xd = DequantizeLinear(xq, xs, z) wd = DequantizeLinear<axis=0>(w, ws, wz)
    c = Conv<pads=[1, 1, 1, 1]>(xd, wd) r = Relu(c) yq = QuantizeLinear(r, ys, z) y = DequantizeLinear(yq, ys, z) }"""


def quantised(folder: Path) -> Path:
    return save(folder, QUANTISED, w=RNG.integers(-127, 128, (4, 3, 3, 3)).astype(np.int8),
                ws=np.array([0.01, 0.02, 0.03, 0.04], np.float32), wz=np.zeros(4, np.int8))


@pytest.mark.parametrize(("off", "part", "fails"), [(0.1, 1 / 576, False), (-0.1, 0.01, False), (0.1, 0.05, True),
                                                    (0.2, 1 / 576, True)])
def test_results_between_two_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, off: float, part: float, fails: bool) -> None:
    """A part of the results may be one step of the output's scale off, and the report says so."""
    run = Engine.run

    def moved(self: Engine, inputs: dict[str, np.ndarray[Any, Any]]) -> dict[str, np.ndarray[Any, Any]]:
        found = run(self, inputs)
        found["y"].reshape(-1)[: round(part * found["y"].size)] += np.float32(off)
        return found

    path = quantised(tmp_path)
    monkeypatch.setattr(Engine, "run", moved)
    if fails:
        with pytest.raises(CheckError, match="E0503"):
            built(path)
    else:
        report, _, out = built(path)
        assert part / 2 < report["golden"]["stepped"] <= 2 * part
        assert any("one step off" in note for note in report["notes"])
        assert main.main(["verify", str(out)]) == 0


def test_the_report_is_json(tmp_path: Path) -> None:
    built(quantised(tmp_path), report=str(tmp_path / "r.json"))
    assert json.loads((tmp_path / "r.json").read_text())["golden"]["agrees_with"] == ""


@pytest.mark.parametrize("broken", [np.nan, -np.inf])
def test_weights_with_nan(tmp_path: Path, broken: float) -> None:
    """Infinity in weights is what masks are made of, NaN in an output need not come from weights: only both ways NaN is refused."""
    weights = np.ones((4, 4), np.float32)
    weights[2] = broken
    path = save(tmp_path, "g (float[2, 4] x) => (float[2, 4] y) { y = MatMul(x, w) }", w=weights)
    if np.isnan(broken):
        with pytest.raises(UsageError, match="nothing but NaN: 4 of 16 of its weights are NaN") as raised:
            built(path)
        assert raised.value.code == "INFC-E0504"
    else:
        assert built(path)
