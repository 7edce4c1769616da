"""report, compare, diff and sensitivity, on a small model and on one with a layer that int8 cannot hold."""

from __future__ import annotations

import random
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from infc.compiler.artifact.reader import Artifact
from infc.compiler.calibrate import stage
from infc.compiler.cli import main
from infc.compiler.export import Exported
from tests.conftest import WORDS

PROFILE = ("--profile", "batch=1,seq=24")
LAYER = "encoder.layer.1.attention.output.dense"
GAINS = {"weights x 1e4": 1e4, "an outlier channel x 200": 1 / 200}


def plant(model: ir.Model, gain: float) -> None:
    """One row of a layer's weight times ``gain``, and its channel of the input divided by it: the same function."""
    node = next(n for n in model.graph if n.op_type == "MatMul" and LAYER in (n.name or ""))
    x, weight = node.inputs
    assert x is not None
    assert weight is not None
    assert weight.const_value is not None
    data = weight.const_value.numpy()
    gains = np.where(np.arange(len(data)) == 3, gain, 1).astype(np.float32)
    weight.const_value = ir.tensor(data * gains[:, None], name=weight.name)
    scale = ir.Value(name="planted", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(gains.shape),
                     const_value=ir.tensor(1 / gains, name="planted"))
    model.graph.register_initializer(scale)
    divided = ir.node("Mul", [x, scale], name="planted/Mul")
    divided.outputs[0].name, divided.outputs[0].dtype, divided.outputs[0].shape = "planted_x", x.dtype, x.shape
    node.prepend(divided)
    node.replace_input_with(0, divided.outputs[0])


@pytest.fixture(scope="module")
def folder(bert: Path, exported: Exported, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models as .onnx files with their tokenizer beside them, texts, and engines of them."""
    where = tmp_path_factory.mktemp("inspection")
    shutil.copy(bert / "tokenizer.json", where)
    rng = random.Random(0)
    (where / "texts.txt").write_text("\n".join(" ".join(rng.choices(WORDS, k=rng.randint(2, 20))) for _ in range(40)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stage, "LEAST_COSINE", 0.0)  # a build refuses what it can tell is broken
        for name, gain in {"plain": 1.0, **GAINS}.items():
            model = exported.model.clone()
            plant(model, gain)
            ir.save(model, where / f"{name}.onnx")
            _build(where, name, "int8", "--method", "rtn", *_data(where))
        _build(where, "plain", "f32")
    return where


def _build(where: Path, name: str, precision: str, *options: str) -> None:
    assert main.main(["build", str(where / f"{name}.onnx"), "-o", str(where / f"{name} {precision}.infc"), "--no-tune",
                      "--precision", precision, *PROFILE, *options]) == 0


def _data(where: Path) -> tuple[str, ...]:
    return "--calibration", str(where / "texts.txt"), "--calibration-samples", "20"


@pytest.mark.parametrize("name", GAINS)
def test_sensitivity_names_a_planted_layer(name: str, folder: Path, cli: Any) -> None:
    found = cli("sensitivity", folder / f"{name}.onnx", "--method", "rtn", *_data(folder), *PROFILE, "--json").json["cpu"]
    assert found[0]["layer"].startswith(LAYER)
    assert found[0]["loss"] > 5 * found[1]["loss"]
    assert [row["loss"] for row in found] == sorted((row["loss"] for row in found), reverse=True)


@pytest.mark.parametrize("name", GAINS)
def test_diff_names_a_planted_layer(name: str, folder: Path, cli: Any) -> None:
    done = cli("diff", folder / f"{name} int8.infc", folder / f"{name}.onnx", "--json")
    assert done.code == 1
    assert done.json["first"].startswith(LAYER)
    assert [row["layer"] for row in done.json["layers"] if row["diverges"]] == [done.json["first"]]
    done = cli("diff", folder / f"{name} int8.infc", folder / "plain f32.infc")
    assert done.code == 1
    assert re.search(rf"first layer that diverges: {re.escape(LAYER)}", done.out)
    assert done.out.count("DIVERGES") == 1


@pytest.mark.parametrize("name", GAINS)
def test_a_budget_brings_a_planted_layers_accuracy_back(name: str, folder: Path, cli: Any) -> None:
    """To what the model has in int8 without the plant, by that layer alone in f32."""
    plain, planted = (_quantised(folder / f"{n} int8.infc")["accuracy"]["engine"]["mean"] for n in ("plain", name))
    budget = plain - (1 - plain) / 2
    assert planted < budget
    built = folder / f"{name} within.infc"
    assert cli("build", folder / f"{name}.onnx", "-o", built, "--no-tune", "--precision", "int8", "--method", "rtn",
               "--budget", budget, *PROFILE, *_data(folder)).code == 0
    found = _quantised(built)
    (restored,) = found["restored"]
    assert restored.startswith(LAYER)
    assert found["accuracy"]["engine"]["mean"] >= budget
    assert {layer["node"] for layer in found["layers"] if layer["actual"] == "f32"} == {restored}
    done = cli("diff", built, folder / f"{name}.onnx", "--json")
    assert (done.code, done.json["first"]) == (0, None)


def _quantised(path: Path) -> Any:
    return Artifact.open(path).meta["quantisation"]["cpu"]


def test_sensitivity_needs_something_to_rank(folder: Path, cli: Any) -> None:
    done = cli("sensitivity", folder / "plain.onnx", "--precision", "f32", *PROFILE)
    assert done.code == 2
    assert "E0050" in done.err
    assert "--calibration" in cli("sensitivity", folder / "plain.onnx", *PROFILE).err


@pytest.mark.parametrize("precision", ["f32", "int8"])
def test_layers_of_a_sound_engine_do_what_their_precision_explains(precision: str, folder: Path, cli: Any) -> None:
    done = cli("diff", folder / f"plain {precision}.infc", folder / "plain.onnx", "--json")
    assert (done.code, done.json["first"]) == (0, None)
    layers = {row["layer"]: row for row in done.json["layers"]}
    assert len(layers) > 15
    assert any(name.startswith(LAYER) for name in layers)
    assert all(row["own"] < (1e-5 if precision == "f32" else 0.06) for row in layers.values())
    if precision == "int8":
        assert any(row["precision"] == "int8" and row["own"] > 1e-4 for row in layers.values())


def test_an_engine_and_itself_do_not_part(folder: Path, cli: Any) -> None:
    done = cli("diff", folder / "plain f32.infc", folder / "plain f32.infc", "--json")
    assert done.code == 0
    assert done.json["layers"]
    assert all(row["error"] == 0 for row in done.json["layers"])


def test_diff_refuses_another_model(folder: Path, cli: Any) -> None:
    done = cli("diff", folder / "plain f32.infc", folder / "weights x 1e4.onnx")
    assert done.code == 2
    assert "E0038" in done.err


def test_report_is_a_page_and_the_same_as_json(folder: Path, cli: Any, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    done = cli("report", folder / "plain int8.infc", "-o", page, "--json", "--runs", "3")
    assert done.code == 0
    rows = {row["layer"]: row for row in done.json["layers"]}
    quantised = [row for row in rows.values() if row["actual"] == "int8"]
    assert quantised
    assert all(row["requested"] == "int8" and row["error"] > 0 and row["seconds"] > 0 and row["operations"] > 0
               for row in quantised)
    assert done.json["quantisation"]["cpu"]["accuracy"]["engine"]["mean"] > 0.99
    assert done.json["measured"]["peak"] > 0
    text = page.read_text()
    assert all(row in text for row in rows)
    assert text.count("<svg") == 2
    assert cli("report", folder / "plain int8.infc", "-o", folder / "plain int8.infc").code == 2


def test_compare_and_its_gate(folder: Path, cli: Any, tmp_path: Path) -> None:
    old, new = folder / "plain f32.infc", folder / "plain int8.infc"
    strict = ("--gate", "--runs", "0", "--accuracy", "0.000001")
    assert cli("compare", old, old, *strict).code == 0
    done = cli("compare", old, new, *strict, "--json", "--markdown", tmp_path / "pr.md")
    assert done.code == 1
    worse = [f for f in done.json["findings"] if f["worse"]]
    assert {f["kind"] for f in worse} <= {"accuracy", "size"}  # its arena holds two types
    assert any(f["kind"] == "accuracy" for f in worse)
    assert "**worse**" in (tmp_path / "pr.md").read_text()
    assert cli("compare", old, new, "--runs", "0", "--accuracy", "0.000001").code == 0


def test_compare_measures_by_turns(folder: Path, cli: Any) -> None:
    engine = folder / "plain f32.infc"
    found = cli("compare", engine, engine, "--runs", "20", "--latency", "10", "--json").json["findings"]
    assert [f["worse"] for f in found if f["kind"] == "latency"] == [False]


def test_compare_refuses_two_models(folder: Path, cli: Any, tmp_path: Path) -> None:
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([1, 4]))
    node = ir.node("Relu", [x], name="relu")
    node.outputs[0].name, node.outputs[0].dtype, node.outputs[0].shape = "y", ir.DataType.FLOAT, ir.Shape([1, 4])
    graph = ir.Graph([x], node.outputs, nodes=[node], opset_imports={"": 20}, name="g")
    ir.save(ir.Model(graph, ir_version=10), tmp_path / "a.onnx")
    assert cli("build", tmp_path / "a.onnx", "-o", tmp_path / "a.infc", "--no-tune").code == 0
    done = cli("compare", folder / "plain f32.infc", tmp_path / "a.infc")
    assert done.code == 2
    assert "E0056" in done.err
