"""What META says that layers became is what kernels compute; all of it off is the f32 program."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from infc.compiler import driver
from infc.compiler.artifact.reader import Artifact
from infc.compiler.calibrate import stage
from infc.compiler.calibrate.executed import OPERATORS, confirmed
from infc.compiler.errors import UsageError
from infc.compiler.target import Layer
from infc.passes.quant.plan import Decision
from infc.runtime import Engine

K, N = 64, 32
QUANTISED = frozenset().union(*OPERATORS.values())
Build = Callable[..., dict[str, Any]]


def weight(seed: int, k: int = K, n: int = N) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal((k, n)).astype(np.float32) / 8


def nearly_sparse(seed: int) -> np.ndarray[Any, Any]:
    """Two in four along K hardly count."""
    w = weight(seed)
    w.reshape(-1, 4, N)[:, [0, 2]] *= 1e-3
    return w


def write(path: Path, weights: dict[str, np.ndarray[Any, Any]]) -> Path:
    """A chain of products and a convolution of their result, [batch, 64] in and [batch, 8, 4, 8] out."""
    nodes = [helper.make_node("MatMul", ["x", "a"], ["p"], "first"), helper.make_node("Relu", ["p"], ["r"], "relu"),
             helper.make_node("MatMul", ["r", "b"], ["q"], "second"), helper.make_node("Reshape", ["q", "shape"], ["i"], "image"),
             helper.make_node("Conv", ["i", "c"], ["y"], "conv", pads=[1, 1, 1, 1])]
    constants = {**weights, "shape": np.array([0, 1, 4, 8])}
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", K])],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 8, 4, 8])],
                              [numpy_helper.from_array(a, name) for name, a in constants.items()])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]), path)
    return path


WEIGHTS = {"a": weight(0), "b": weight(1, N, N), "c": weight(2, 8, 9).reshape(8, 1, 3, 3)}


def build_of(path: Path, data: Path) -> Build:
    def build(**options: Any) -> dict[str, Any]:
        quantised = {"calibration": data} if options.get("precision", "f32") != "f32" else {}
        result = driver.build(path, path.with_suffix(".infc"), **{"profiles": ["batch=3"], "tune": False, **quantised, **options})
        return {**Artifact.open(result.path).meta, "path": result.path, "summary": result.summary()}
    return build


@pytest.fixture
def data(tmp_path: Path) -> Path:
    np.savez(tmp_path / "data.npz", x=np.random.default_rng(5).standard_normal((32, K)).astype(np.float32))
    return tmp_path / "data.npz"


@pytest.fixture
def build(tmp_path: Path, data: Path) -> Build:
    return build_of(write(tmp_path / "net.onnx", WEIGHTS), data)


def run(meta: dict[str, Any]) -> np.ndarray[Any, Any]:
    x = np.random.default_rng(7).standard_normal((3, K)).astype(np.float32)
    return Engine(meta["path"], threads=1).run({"x": x})["y"]


def kernels(meta: dict[str, Any]) -> list[tuple[str, str]]:
    """(layer, operator) of each step that the engine runs, by its own clocks; META's list of the program is the same."""
    (isa,), (program,) = meta["isas"], meta["layers"].values()
    context = Engine(meta["path"], threads=1, isa=isa, device="cpu").context()
    context.set_timing(True)
    context.bind({"x": np.zeros((3, K), np.float32)})
    context.run()
    steps = [(t.name, t.kernel) for t in context.step_times() if t.calls]
    assert steps == [(step["name"], step["kernel"]) for step in program]
    return [(name, kernel.removeprefix("infc_").rpartition("__")[0]) for name, kernel in steps]


@pytest.mark.parametrize("precision", ["int8", "int8-static", "int4", "bf16", "f16", "fp8", "auto"])
@pytest.mark.parametrize("isa", ["native", "scalar"])
def test_the_list_of_precisions_is_what_kernels_compute(precision: str, isa: str, build: Build) -> None:
    meta = build(precision=precision, isa=isa)
    actual = {layer["node"]: layer["actual"] for layer in meta["quantisation"]["cpu"]["layers"]}
    assert len(actual) == 3
    assert set(actual.values()) != {"f32"}
    for name, kernel in kernels(meta):
        narrow = any(kernel.startswith(op) for op in QUANTISED)
        assert not narrow or actual[name] != "f32", (name, kernel)
    for name, was in actual.items():
        own = [kernel for layer, kernel in kernels(meta) if layer == name]
        assert own
        assert was == "f32" or any(kernel.startswith(op) for kernel in own for op in OPERATORS[was]), (name, was, own)


@pytest.mark.parametrize("options", [{"precision": p} for p in ("int8", "int8-static", "int4", "bf16", "f16", "fp8")]
                         + [{"precision": "bf16", "sparsity": "2:4", "sparsity_method": "magnitude", "force": True},
                            {"precision": "int8", "watch_ranges": True}], ids=lambda o: "-".join(map(str, o.values())))
def test_with_every_layer_back_it_is_the_f32_program(options: dict[str, Any], build: Build,
                                                          monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage, "LEAST_COSINE", 0.0)  # a build refuses what half of the weights make of this
    plain = build()
    want = run(plain)
    assert not np.array_equal(run(build(**options)), want)
    meta = build(**options, metric="max-abs", budget=1e-6)
    assert {layer["actual"] for layer in meta["quantisation"]["cpu"]["layers"]} == {"f32"}
    assert meta["layers"] == plain["layers"]
    assert kernels(meta) == kernels(plain)
    assert np.array_equal(run(meta), want)


def test_without_the_pass_that_fuses_nothing_is_called_int8(build: Build) -> None:
    meta = build(precision="int8", disable="fuse_quantized")
    layers = meta["quantisation"]["cpu"]["layers"]
    assert {layer["actual"] for layer in layers} == {"f32"}
    assert all("no kernel multiplies them" in layer["why"] for layer in layers if "too small" not in layer["why"])
    assert not [kernel for _, kernel in kernels(meta) if any(kernel.startswith(op) for op in QUANTISED)]


def test_a_layer_must_have_its_kernel_in_every_program() -> None:
    good, bad = Layer("n", "gemm_i8", "k", "f32"), Layer("n", "gemm", "k", "f32")
    decision = Decision("n", "int8", "int8", "note")
    assert confirmed([decision], {"a": [good], "b": [good]}) == [decision]
    found = confirmed([decision], {"a": [good], "b": [bad]})[0]
    assert (found.actual, found.why.startswith("note; ")) == ("f32", True)
    assert confirmed([decision], {"a": []}) == [decision]  # it was folded away


def test_sparsity_prunes_what_gains_by_it_and_says_why_not(tmp_path: Path, data: Path) -> None:
    build = build_of(write(tmp_path / "s.onnx", {**WEIGHTS, "a": nearly_sparse(0)}), data)
    meta = build(precision="bf16", sparsity="2:4", sparsity_method="magnitude", budget=0.999)
    found = {layer["node"]: layer for layer in meta["sparsity"]["cpu"]["layers"]}
    assert [found[name]["actual"] for name in ("first", "second", "conv")] == ["2:4", "dense", "dense"]
    assert found["first"]["method"] == "magnitude"
    steps = [step for program in meta["layers"].values() for step in program if step["name"] == "first"]
    assert found["first"]["kernel"] == "skips zeros"
    assert all(step["detail"]["sparse"] for step in steps)
    assert [found[name].get("eligible", False) for name in ("first", "second", "conv")] == [True, True, False]
    assert found["second"]["why"] == "the budget of accuracy"
    assert "no kernel of the CPU skips zeros of convolutions" in found["conv"]["why"]
    assert "cpu: 1 of 3 layers are 2:4, 0 of them were so before" in meta["summary"]


def test_weights_that_are_sparse_are_found(tmp_path: Path, data: Path) -> None:
    w = nearly_sparse(0)
    w.reshape(-1, 4, N)[:, [0, 2]] = 0
    build = build_of(write(tmp_path / "s.onnx", {**WEIGHTS, "a": w}), data)
    found = {layer["node"]: layer for layer in build(precision="int4", sparsity="2:4")["sparsity"]["cpu"]["layers"]}
    assert (found["first"]["actual"], found["first"]["found"]) == ("2:4", True)
    whole = build(precision="int4", sparsity="2:4", disable="sparse-weights")["sparsity"]["cpu"]["layers"]
    assert next(layer for layer in whole if layer["node"] == "first")["kernel"] == "multiplies zeros"
    assert "no method was given" in found["second"]["why"]


def test_both_times_of_a_layer_are_in_the_report_and_not_in_the_artifact(tmp_path: Path, data: Path) -> None:
    path = write(tmp_path / "s.onnx", {**WEIGHTS, "a": nearly_sparse(0)})
    options = {"precision": "bf16", "sparsity": "2:4", "sparsity_method": "magnitude", "tune": True,
               "timing_cache": tmp_path / "times.json", "calibration": data, "budget": 0.999}
    for force in (False, True):
        result = driver.build(path, tmp_path / "s.infc", report=tmp_path / "report.json", force=force, **options)
        report = json.loads((tmp_path / "report.json").read_text())
        first = next(layer for layer in report["sparsity"]["cpu"]["layers"] if layer["node"] == "first")
        assert first["seconds"]["dense"] > 0
        assert first["seconds"]["sparse"] > 0
        faster = first["seconds"]["sparse"] <= 0.99 * first["seconds"]["dense"]
        assert first["kernel"] == ("skips zeros" if force or faster else "multiplies zeros")
        assert ("--force" in first.get("why", "")) == (first["kernel"] == "multiplies zeros")
        artifact = Artifact.open(result.path)
        written = bytes(artifact.section("META") or b"") + bytes(artifact.section("REPORT") or b"")
        assert b"seconds" not in written
        assert b" ms" not in written


@pytest.mark.parametrize(("options", "code"), [
    ({"sparsity": "2:4"}, "E0822"), ({"sparsity": "2:4", "precision": "fp8"}, "E0822"),
    ({"sparsity_method": "wanda", "precision": "bf16"}, "E0821"), ({"force": True, "precision": "bf16"}, "E0821"),
    ({"sparsity": "2:4", "sparsity_method": "luck", "precision": "bf16"}, "E0054"),
    ({"precision": "bf16", "budget": 0.9, "calibration": None}, "E0818"),
    ({"precision": "int8", "method": "luck"}, "E0052"), ({"precision": "int4", "group": 48}, "E0053"),
    ({"precision": "int8", "evaluation": "no/such.txt"}, "E0800")])
def test_what_cannot_be_is_said_before_the_model_is_read(options: dict[str, Any], code: str, build: Build,
                                                        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "export", lambda found: pytest.fail("the model was exported"))
    with pytest.raises(UsageError, match=code):
        build(**options)


@pytest.mark.parametrize("precision", ["f32", "int8"])
def test_graphs_with_scales_of_their_own_need_no_data_and_run_in_bytes(precision: str, tmp_path: Path) -> None:
    text = """<ir_version: 9, opset_import: ["": 20]> g (float[batch,64] x) => (float[batch,32] y) {
        q = QuantizeLinear(x, xs, xz)  d = DequantizeLinear(q, xs, xz)  v = DequantizeLinear<axis: int = 1>(w, ws)
        y = MatMul(d, v)
    }"""
    model = onnx.parser.parse_model(text)
    w = np.random.default_rng(0).integers(-127, 128, (K, N)).astype(np.int8)
    constants = {"xs": np.float32(0.03), "xz": np.uint8(128), "w": w, "ws": np.full(N, 0.01, np.float32)}
    model.graph.initializer.extend(numpy_helper.from_array(np.asarray(a), name) for name, a in constants.items())
    onnx.save(model, tmp_path / "q.onnx")
    result = driver.build(tmp_path / "q.onnx", tmp_path / "q.infc", profiles=["batch=3"], tune=False, precision=precision)
    meta: dict[str, Any] = {**Artifact.open(result.path).meta, "path": result.path}
    assert "gemm_i8" in {kernel for _, kernel in kernels(meta)}
    for layer in meta["quantisation"].get("cpu", {}).get("layers", []):
        assert layer["actual"] == "int8"
    x = np.random.default_rng(7).standard_normal((3, K)).astype(np.float32)
    steps = np.clip(np.rint(x / np.float32(0.03)) + 128, 0, 255) - 128
    np.testing.assert_allclose(run(meta), (steps @ w.astype(np.float64)) * 0.03 * 0.01, rtol=1e-5, atol=1e-5)
