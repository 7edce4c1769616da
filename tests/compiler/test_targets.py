"""Builds for several targets: what each is lent, how their sections go together, and what is said of engines that were not run."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

import infc
from infc.compiler import driver, target
from infc.compiler.artifact.layout import DIM_EXACT, DIM_PADS
from infc.compiler.artifact.reader import Artifact
from infc.compiler.errors import CheckError, UnsupportedError, UsageError
from infc.compiler.export import Exported
from tests.compiler.fake_gpu import NAME, PLAN, FakeGpu

PROFILES = ["batch=1,seq=8", "batch=2,seq=24"]
Build = Callable[..., driver.BuildResult]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    """The target ``fake-gpu``, registered."""
    plugin, find = FakeGpu(), target.find
    monkeypatch.setattr(target, "find", lambda name: plugin if name == NAME else find(name))
    return plugin


@pytest.fixture
def build(bert: Path, exported: Exported, fake: FakeGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Build:
    """``driver.build`` of the tiny model for the fake target, exported once."""
    monkeypatch.setattr(driver, "export", lambda found: replace(exported, model=exported.model.clone()))
    default = {"profiles": PROFILES, "tune": False, "target": NAME}
    return lambda **options: driver.build(bert, tmp_path / "a.infc", **{**default, **options})


def scale(factor: float) -> Callable[[ir.Model], None]:
    """Multiplies the sentence embedding of a graph."""

    def spoil(model: ir.Model) -> None:
        graph = model.graph
        old = next(v for v in graph.outputs if v.name == "sentence_embedding")
        constant = ir.Value(name="factor", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(()),
                            const_value=ir.tensor(np.array(factor, np.float32), name="factor"))
        graph.register_initializer(constant)
        node = ir.node("Mul", [old, constant], name="spoilt")
        new = node.outputs[0]
        new.type, new.shape = old.type, old.shape
        graph.append(node)
        graph.outputs[[v.name for v in graph.outputs].index("sentence_embedding")] = new
        old.name, new.name = "old", "sentence_embedding"

    return spoil


def flip(model: ir.Model) -> None:
    """Replaces the embedding by one of another direction: the first half of each row changes its sign."""
    graph = model.graph
    index = [v.name for v in graph.outputs].index("sentence_embedding")
    old = graph.outputs[index]
    signs = np.where(np.arange(32) < 16, -1, 1).astype(np.float32)
    constant = ir.Value(name="signs", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape((32,)),
                        const_value=ir.tensor(signs, name="signs"))
    graph.register_initializer(constant)
    node = ir.node("Mul", [old, constant], name="flipped")
    node.outputs[0].type, node.outputs[0].shape = old.type, old.shape
    graph.append(node)
    graph.outputs[index] = node.outputs[0]
    old.name, node.outputs[0].name = "old", "sentence_embedding"


def test_both_targets_in_one_artifact(build: Build, fake: FakeGpu, exported: Exported) -> None:
    result = build(target=f"cpu,{NAME}", sm="120,8.9", precision=f"{NAME}=f16")
    artifact = Artifact.open(result.path)
    kinds = [(s.kind, s.ordinal, s.required) for s in artifact.sections]
    assert kinds[2:5] == [("PROGRAM", 0, True), ("PROGRAM", 1, True), ("TENSORRT", 0, False)]
    assert kinds[-1][0] == "WEIGHTS"
    assert [(e.sms, e.profiles, bytes(e.plan)) for e in artifact.engines()] == [((89, 120), (0, 1), PLAN)]
    assert artifact.meta["options"]["precision"] == {"cpu": "f32", NAME: "f16"}
    assert {label.split("/")[-2:][0] for label in artifact.meta["layers"]} == {"batch=1,seq=8", "batch=2,seq=24", NAME}
    engine = infc.Engine(result.path, device="cpu")
    inputs = {"input_ids": np.array([[2, 14, 5, 3]])}
    assert np.isfinite(engine.run(inputs)["sentence_embedding"]).all()


def test_what_a_target_is_lent(build: Build, fake: FakeGpu, tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text('{"x": [-1, 2.5]}')
    build(target=f"cpu,{NAME}", sm=[89], precision=f"{NAME}=int8", ranges=tmp_path / "r.json", sparsity="2:4", isa="scalar",
          engine_timeout=60, engine_memory="2G", disable=["fake-technique", "views"])
    lent = fake.context
    assert (lent.precision, lent.ranges, lent.mask) == ("int8", {"x": (-1.0, 2.5)}, "attention_mask")
    assert lent.disabled == {"fake-technique"}
    assert (lent.gpu.sms, lent.gpu.sparsity, lent.gpu.timeout, lent.gpu.memory) == ((89,), "2:4", 60.0, 2 << 30)
    assert [s.policy for s in lent.interface.symbols] == [DIM_PADS, DIM_PADS]
    assert lent.command.startswith("infc build tiny "), "the directory's name, not what its config calls the model"
    assert lent.command.split(" ", 3)[3] == ("--precision int8 --precision cpu=f32 --isa scalar --profile batch=1,seq=8 "
                                             "--profile batch=2,seq=24 --no-tune --ranges r.json --sparsity 2:4 "
                                             "--disable fake-technique,views")
    assert str(tmp_path) not in lent.command
    assert lent.symbolic
    assert any(isinstance(d, ir.SymbolicDim) for v in lent.symbolic.graph.inputs for d in v.shape or ())
    for program in fake.programs:
        values = [*program.model.graph.inputs, *program.model.graph.outputs, *(v for n in program.model.graph for v in n.outputs)]
        assert all(isinstance(d, int) for v in values for d in v.shape or ()), "the graph of a profile is static, and not packed"


def test_an_engine_alone(build: Build, fake: FakeGpu, exported: Exported) -> None:
    result = build(engine_layout="each", precision="f16")
    artifact = Artifact.open(result.path)
    assert [(s.ordinal, s.required) for s in artifact.sections if s.kind == "TENSORRT"] == [(0, True), (1, True)]
    assert not [s for s in artifact.sections if s.kind in ("PROGRAM", "WEIGHTS")]
    assert [s.policy for s in artifact.io.symbols] == [DIM_PADS, DIM_PADS], "proven by the passes of the CPU"
    assert artifact.meta["isas"] == []
    report = json.loads(bytes(artifact.section("REPORT") or b""))
    for graphs in (artifact.meta["graphs"], report["graphs"]):
        assert [g["graph"] for g in graphs] == [f"{p}/{NAME}/sm89" for p in PROFILES]
        assert sum(g["cases"] for g in graphs) == result.report["golden"]["cases"]
        for graph in graphs:
            assert (graph["by"], graph["precision"], graph["note"]) == ("onnxruntime", "f16", "")
            assert all(0 <= f["difference"] < 1e-4 and f["cosine"] > 0.99999 for f in graph["outputs"].values())
    said = "\n".join(result.summary())
    assert "not replayed on the engine" in said
    assert "the graph handed to the builder, in ONNX Runtime" in said
    assert "2:4 sparsity deferred 1" in said
    assert {p["target"] for p in report["passes"]} == {NAME}


def test_an_engine_for_all_profiles_is_replayed_in_all(build: Build, fake: FakeGpu) -> None:
    result = build()
    assert [(g["graph"], g["cases"]) for g in result.report["graphs"]] == [
        (f"{'; '.join(PROFILES)}/{NAME}/sm89", result.report["golden"]["cases"])]


@pytest.mark.parametrize(("precision", "spoil", "code", "words"), [
    ("f32", scale(1.001), "E0767", "sentence_embedding: largest difference"), ("bf16", flip, "E0768", "cosine of"),
    ("f16", scale(float("nan")), "E0768", "not finite in f16"), ("f16", scale(float("inf")), "E0768", "not finite"),
    ("f16", scale(0.0), "E0768", "0.000")])
def test_a_graph_that_is_wrong_fails_the_build(precision: str, spoil: Any, code: str, words: str, build: Build, fake: FakeGpu,
                                               tmp_path: Path) -> None:
    fake.spoil = spoil
    with pytest.raises(CheckError) as caught:
        build(precision=precision)
    assert caught.value.code == f"INFC-{code}"
    assert words in caught.value.message
    assert "sentence_embedding" in caught.value.message
    assert NAME in caught.value.where
    assert list(tmp_path.iterdir()) == []


def test_a_difference_of_a_lower_precision_is_told(build: Build, fake: FakeGpu) -> None:
    fake.spoil = scale(1.01)
    graph = build(precision="f16", profiles=PROFILES[:1]).report["graphs"][0]
    assert 1e-3 < graph["outputs"]["sentence_embedding"]["difference"] < 1e-2
    assert graph["outputs"]["sentence_embedding"]["cosine"] == pytest.approx(1, abs=1e-5)
    assert graph["outputs"]["last_hidden_state"]["difference"] < 1e-4


def test_a_graph_that_onnx_runtime_cannot_run_is_a_note(build: Build, fake: FakeGpu) -> None:
    def spoil(model: ir.Model) -> None:
        next(n for n in model.graph if n.op_type == "MatMul").domain = "no.such.domain"

    fake.spoil = spoil
    result = build(precision="bf16")
    graph = result.report["graphs"][0]
    assert graph["cases"] == 0
    assert "not replayed: ONNX Runtime cannot run the graph: " in graph["note"]
    assert "no.such.domain" in graph["note"]
    assert any(graph["note"] in line for line in result.summary())


def test_without_a_proof_dimensions_are_exact(build: Build, fake: FakeGpu) -> None:
    result = build(disable=["pack_tokens", "prove_padding"])
    assert [s.policy for s in Artifact.open(result.path).io.symbols] == [DIM_EXACT, DIM_EXACT]
    assert fake.context.mask is None
    assert result.report["graphs"][0]["cases"] == result.report["golden"]["cases"]


@pytest.mark.parametrize(("options", "kind", "code", "words"), [
    ({"target": "cpu", "sm": "89"}, UsageError, "E0766", "--sm is for targets of the GPU"),
    ({"isa": "scalar"}, UsageError, "E0766", "--isa is for targets of the CPU"),
    ({"target": "cpu", "engine_layout": "each"}, UsageError, "E0766", "--engine-layout"),
    ({"target": f"cpu,{NAME}", "precision": "int4"}, UnsupportedError, "E0769", f"--precision cpu=int4,{NAME}=f32"),
    ({"target": f"{NAME},tensorrt-rtxx"}, UsageError, "E0010", "tensorrt-rtx"),
    ({"disable": ["fake-technik"]}, UsageError, "E0016", "fake-technique")])
def test_options_that_no_target_takes(options: dict[str, Any], kind: type[Exception], code: str, words: str, build: Build) -> None:
    with pytest.raises(kind) as caught:
        build(**options)
    assert caught.value.code == f"INFC-{code}"  # type: ignore[attr-defined]
    assert words in str(caught.value)


def test_the_same_bytes_again(build: Build, fake: FakeGpu, tmp_path: Path) -> None:
    first = build(target=f"cpu,{NAME}").path.read_bytes()
    assert build(target=f"cpu,{NAME}").path.read_bytes() == first
