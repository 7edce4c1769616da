"""Quantised builds: from data to an artifact that tells what was asked for, what was done, and how close it is."""

from __future__ import annotations

import contextlib
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from infc.compiler import driver, target
from infc.compiler.artifact.golden import GoldenCase
from infc.compiler.artifact.reader import Artifact
from infc.compiler.calibrate import stage
from infc.compiler.errors import CheckError, InfcError, UsageError
from infc.compiler.export import Exported
from infc.compiler.interface import Interface, TensorSpec
from infc.compiler.options import BuildOptions
from tests.compiler.fake_gpu import NAME, FakeGpu
from tests.conftest import WORDS
from tests.models import cache
from tests.models.families import write

Build = Callable[..., driver.BuildResult]


def texts(path: Path, count: int, seed: int) -> Path:
    rng = random.Random(seed)
    path.write_text("\n".join(" ".join(rng.choices(WORDS, k=rng.randint(2, 20))) for _ in range(count)))
    return path


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return texts(tmp_path / "texts.txt", 40, 0)


@pytest.fixture
def build(bert: Path, exported: Exported, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Build:
    """Of the tiny model, exported once, in int8."""
    monkeypatch.setattr(driver, "export", lambda found: replace(exported, model=exported.model.clone()))
    return lambda **options: driver.build(bert, tmp_path / "tiny.infc", **{
        "profiles": ["batch=1,seq=24"], "tune": False, "precision": "int8", **options})


def about(result: driver.BuildResult) -> dict[str, Any]:
    found: dict[str, Any] = Artifact.open(result.path).meta["quantisation"]["cpu"]
    return found


def test_data_is_needed_and_the_error_says_which(build: Build) -> None:
    with pytest.raises(UsageError, match=r"E0814[^\0]*--calibration FILE[^\0]*synthetic"):
        build()


def test_data_is_asked_for_before_the_export(bert: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(driver, "export", lambda found: pytest.fail("it was exported"))
    with pytest.raises(UsageError, match="E0814"):
        driver.build(bert, tmp_path / "tiny.infc", precision="int8")


_LLAMA = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 64,
          "vocab_size": 64, "max_position_embeddings": 64}
_OF_TOKENS: dict[str, Any] = {"tune": False, "profiles": ["tokens=8,rows=8"]}


def test_a_language_model_in_int8_is_rounded_and_needs_no_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write("LlamaForCausalLM", _LLAMA, tmp_path / "model")
    monkeypatch.setattr(driver, "export", cache.export)
    found = about(driver.build(folder, tmp_path / "tiny.infc", precision="int8", **_OF_TOKENS))
    assert {layer["actual"] for layer in found["layers"]} == {"int8"}
    assert "calibration" not in found
    asked = driver.build(folder, tmp_path / "asked.infc", precision="int8", method="rtn", **_OF_TOKENS)
    assert asked.path.read_bytes() == (tmp_path / "tiny.infc").read_bytes()


@pytest.mark.parametrize(("options", "code"), [
    ({"precision": "int8", "method": "gptq"}, "E0814"), ({"precision": "int8", "sparsity": "2:4"}, "E0814"),
    ({"precision": "int8-static"}, "E0814"), ({"precision": "int4"}, "E0814"), ({"precision": "auto"}, "E0814"),
    ({"precision": "int8", "budget": 0.9}, "E0818"),
])
def test_what_else_is_done_to_a_language_model_needs_data(options: dict[str, Any], code: str, tmp_path: Path,
                                                          monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write("LlamaForCausalLM", _LLAMA, tmp_path / "model")
    monkeypatch.setattr(driver, "export", lambda found: pytest.fail("it was exported"))
    with pytest.raises(UsageError, match=code):
        driver.build(folder, tmp_path / "tiny.infc", **options, **_OF_TOKENS)


class Judged:
    """Held-out data on which a graph has a mean cosine."""

    def __init__(self, cosine: float) -> None:
        self.cosine = cosine

    def __len__(self) -> int:
        return 3

    def loss(self, run: object, most: int) -> float:
        return 1 - self.cosine


@pytest.mark.parametrize(("context", "cosine", "judged", "budget", "outcome"), [
    (0, 0.85, None, None, "cosine of 0.850"), (0, 0.95, None, None, ""), (64, 0.5, None, None, "cosine of 0.500"),
    (64, 0.7, None, None, ""), (0, 0.1, 0.99, None, "note: outside of what was calibrated"), (0, 0.1, 0.6, None, "cosine of 0.600"),
    (0, 0.95, 0.6, None, "note: has lost much"), (0, 0.1, 0.6, 0.5, "note: outside of what was calibrated"),
    (0, 0.95, 0.6, 0.5, ""),
])
def test_a_graph_that_lost_the_model_is_refused(context: int, cosine: float, judged: float | None, budget: float | None,
                                                outcome: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By what it makes of data, where there is some; a golden case is made up."""
    interface = Interface((TensorSpec("x", "f32", (1,)),), (TensorSpec("y", "f32", (2,)),), "onnx", context=context)
    case = GoldenCase({"x": np.zeros(1, np.float32)}, {"y": np.array([1, 0], np.float32)}, 0.0)
    got = {"y": np.array([cosine, (1 - cosine**2) ** 0.5], np.float32)}
    monkeypatch.setattr(stage, "runner", lambda graph, prepare: lambda inputs: got)
    notes: list[str] = []
    subject = stage.Stage([], BuildOptions(budget=budget), lambda model: None, note=notes.append)
    subject.judge = None if judged is None else Judged(judged)  # type: ignore[assignment]
    refused = outcome and not outcome.startswith("note: ")
    with pytest.raises(CheckError, match=outcome) if refused else contextlib.nullcontext():
        (found,) = subject.tolerant([case], interface, ir.Model(ir.Graph([], [], nodes=[]), ir_version=10))
        assert found.tolerance == pytest.approx(4 * max((1 - cosine**2) ** 0.5, 1 - cosine))
    assert len(notes) == outcome.startswith("note: ")
    assert all(outcome.removeprefix("note: ") in note for note in notes)


@pytest.mark.parametrize(("options", "named"), [
    ({"watch_every": 3}, "--watch-every"), ({"evaluation_samples": 3}, "--evaluation-samples"), ({"group": 64}, "--group"),
    ({"calibration_seed": 3}, "--calibration-seed"), ({"precision": "bf16", "method": "rtn"}, "--method"),
    ({"precision": "bf16", "group": 32}, "--group"), ({"metric": "top1"}, "--metric"),
])
def test_options_that_nothing_reads_are_refused(options: dict[str, Any], named: str) -> None:
    with pytest.raises(UsageError, match=f"E0820.*{named} would change nothing"):
        stage.check(BuildOptions.of(options))


def test_meta_tells_what_was_asked_and_what_was_done(build: Build, data: Path) -> None:
    found = about(build(calibration=data, calibration_samples=20))
    assert found["requested"] == "int8"
    assert found["calibration"]["data"]["name"] == "texts.txt"
    assert (found["calibration"]["data"]["samples"], found["calibration"]["data"]["of"]) == (20, 40)
    assert len(found["calibration"]["key"]) == 64
    assert found["restored"] == []
    layers = {layer["node"]: layer for layer in found["layers"]}
    assert layers
    assert all(layer["requested"] == "int8" for layer in layers.values())
    assert "int8" in {layer["actual"] for layer in layers.values()}
    assert found["accuracy"]["engine"]["samples"] == 20  # the other half of the data
    assert found["accuracy"]["engine"]["mean"] > 0.99
    assert abs(found["accuracy"]["engine"]["mean"] - found["accuracy"]["graph"]["mean"]) < 2e-3


def test_a_budget_brings_layers_back_worst_first(build: Build, data: Path) -> None:
    plain = about(build(calibration=data, calibration_samples=20))["accuracy"]["engine"]["mean"]
    least = 1 - (1 - plain) / 3
    result = build(calibration=data, calibration_samples=20, budget=least)
    found = about(result)
    assert found["accuracy"]["engine"]["mean"] >= least
    ranking = [name for name, _ in found["sensitivity"]]
    assert found["restored"] == ranking[:len(found["restored"])]
    actual = {layer["node"]: layer["actual"] for layer in found["layers"]}
    assert all(actual[name] == "f32" for name in found["restored"])
    assert 0 < len(found["restored"]) < len(ranking)
    assert any(", ".join(found["restored"]) in line for line in result.summary())


def test_a_planted_bad_layer_is_the_first_to_go_back(bert: Path, exported: Exported, data: Path, tmp_path: Path,
                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    """One row of a weight × 3000 and its channel of the input / 3000: the same function, which int8 cannot hold."""
    model = exported.model.clone()
    weight, name = _plant(model)
    monkeypatch.setattr(driver, "export", lambda found: replace(exported, model=model.clone()))
    result = driver.build(bert, tmp_path / "bad.infc", profiles=["batch=1,seq=24"], tune=False, precision="int8", method="rtn",
                          calibration=data, calibration_samples=20, budget=0.97)
    found = about(result)
    assert weight
    assert found["restored"][0].startswith(name), (found["restored"], name)
    assert found["accuracy"]["engine"]["mean"] >= 0.97


def _plant(model: ir.Model) -> tuple[str, str]:
    """Scales channels between the two products of the first feed-forward layer. The name of its weight and of its module."""
    node = next(n for n in model.graph if n.op_type == "MatMul" and "layer.0.intermediate" in (n.name or ""))
    gain = np.ones(node.inputs[1].shape[0], np.float32)  # type: ignore[union-attr,index]
    gain[:2] = 3000
    weight, x = node.inputs[1], node.inputs[0]
    assert weight is not None
    assert x is not None
    assert weight.const_value is not None
    weight.const_value = ir.tensor(weight.const_value.numpy() * gain[:, None], name=weight.name)
    scale = ir.Value(name="planted", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(gain.shape),
                     const_value=ir.tensor(1 / gain, name="planted"))
    model.graph.register_initializer(scale)
    divided = ir.node("Mul", [x, scale], name="planted/Mul")
    divided.outputs[0].name, divided.outputs[0].dtype, divided.outputs[0].shape = "planted_x", x.dtype, x.shape
    node.prepend(divided)
    node.replace_input_with(0, divided.outputs[0])
    return weight.name or "", "encoder.layer.0.intermediate"


def test_a_record_does_what_its_data_does(build: Build, bert: Path, data: Path, tmp_path: Path) -> None:
    record, path = driver.calibrate(bert, tmp_path / "record.npz", profiles=["batch=1,seq=24"], calibration=data,
                                    calibration_samples=20, grams=True)
    evaluation = texts(tmp_path / "others.txt", 10, 1)
    by_record = build(calibration=path, evaluation=evaluation)
    first, layers = about(by_record), by_record.report["layers"]
    by_data = build(calibration=data, calibration_samples=20, evaluation=evaluation)
    second = about(by_data)
    assert first["calibration"]["key"] == record.key.digest() == second["calibration"]["key"]
    assert first["accuracy"] == second["accuracy"]
    assert layers == by_data.report["layers"]


def test_a_record_without_gram_matrices_is_told_of(build: Build, bert: Path, data: Path, tmp_path: Path) -> None:
    _, path = driver.calibrate(bert, tmp_path / "record.npz", profiles=["batch=1,seq=24"], calibration=data, calibration_samples=20)
    found = about(build(calibration=path, evaluation=texts(tmp_path / "others.txt", 10, 1)))
    assert "gptq: it has no Gram matrix" in str(found)


def test_a_changed_model_is_noticed(build: Build, bert: Path, data: Path, tmp_path: Path) -> None:
    _, path = driver.calibrate(bert, tmp_path / "record.npz", profiles=["batch=1,seq=24"], calibration=data, calibration_samples=5)
    changed = tmp_path / "changed"
    shutil.copytree(bert, changed)
    weights = bytearray((changed / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (changed / "model.safetensors").write_bytes(weights)
    with pytest.raises(UsageError, match="E0809"):
        driver.build(changed, tmp_path / "out.infc", profiles=["batch=1,seq=24"], tune=False, precision="int8", calibration=path)
    assert not (tmp_path / "out.infc").exists()


def test_synthetic_data_is_asked_for_and_recorded(build: Build) -> None:
    found = about(build(calibration="synthetic", calibration_samples=8))
    assert found["calibration"]["data"]["name"] == "synthetic"


def test_slices_and_metrics(build: Build, tmp_path: Path, data: Path) -> None:
    lines = texts(tmp_path / "b.txt", 12, 2).read_text().replace(",", "").split("\n")
    (tmp_path / "sliced.csv").write_text("text,class\n" + "".join(f"{line},{n % 2}\n" for n, line in enumerate(lines)))
    found = about(build(calibration=tmp_path / "sliced.csv", evaluation=tmp_path / "sliced.csv", slices="class", metric="max-abs"))
    assert set(found["accuracy"]["engine"]["slices"]) == {"0", "1"}
    assert found["accuracy"]["engine"]["metric"] == "max-abs"


def test_a_budget_without_data_to_judge_by(build: Build) -> None:
    with pytest.raises(UsageError, match="E0818"):
        build(calibration="synthetic", calibration_samples=4, budget=0.9)


@pytest.mark.parametrize("options", [{"calibration_samples": 0}, {"calibration_method": "best"}, {"budget": "high"},
                                     {"metric": "beauty", "calibration": "synthetic"}, {"calibration": "no/such.txt"},
                                     {"precision": "f32"}])
def test_options_that_no_build_takes(options: dict[str, Any], build: Build, data: Path) -> None:
    with pytest.raises(InfcError, match="E08"):
        build(**{"calibration": data, **options})


def test_a_target_for_gpus_gets_a_graph_with_its_scales(build: Build, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake, find = FakeGpu(), target.find
    monkeypatch.setattr(target, "find", lambda name: fake if name == NAME else find(name))
    result = build(target=NAME, precision="int8-static", calibration=data, calibration_samples=20, budget=0.9)
    found = Artifact.open(result.path).meta["quantisation"][NAME]
    assert fake.context.precision == "int8"
    kinds = {node.op_type for program in fake.programs for node in program.model.graph}
    assert {"QuantizeLinear", "DequantizeLinear"} <= kinds
    assert found["accuracy"]["graph"]["by"] == "onnxruntime"
    assert "engine" not in found["accuracy"]
    assert result.report["graphs"][0]["cases"] > 0


def test_f32_stays_what_it_was(build: Build, data: Path) -> None:
    plain = build(precision="f32").path.read_bytes()
    assert build(precision="int8", method="rtn").path.read_bytes() != plain
    result = build(precision="f32")  # nothing of the other build stays
    assert result.path.read_bytes() == plain
    assert Artifact.open(result.path).meta["quantisation"] == {}
