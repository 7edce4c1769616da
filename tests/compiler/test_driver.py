"""build(): from a directory to an artifact that was replayed, with nothing in it of time or place."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from infc import runtime
from infc.compiler import driver, golden, samples
from infc.compiler.artifact.reader import Artifact
from infc.compiler.errors import CheckError, InfcError, UsageError
from infc.compiler.export import Exported
from infc.compiler.golden import interface_of
from infc.compiler.reference import compare
from infc.compiler.source import resolve

ROOT = Path(__file__).resolve().parents[2]
PROFILES = ["batch=1,seq=16", "batch=4,seq=32"]
BUILD = ("import sys, infc.compiler.driver as d; "
         "d.build(sys.argv[1], 'out.infc', profiles=['batch=1,seq=8'], tune=False)")


@pytest.fixture
def build(bert: Path, exported: Exported, monkeypatch: pytest.MonkeyPatch) -> Callable[..., driver.BuildResult]:
    """``driver.build`` of the tiny model, exported once."""
    monkeypatch.setattr(driver, "export", lambda found: replace(exported, model=exported.model.clone()))
    return lambda *args, **options: driver.build(bert, *args, **{"profiles": PROFILES, "tune": False, **options})


def test_computes_what_the_model_does(build: Callable[..., driver.BuildResult], exported: Exported, tmp_path: Path) -> None:
    path = build(tmp_path / "tiny.infc").path
    engine = runtime.Engine(path, threads=2)
    rng = np.random.default_rng(1)
    for batch, seq in ((1, 1), (1, 7), (1, 16), (1, 17), (3, 5), (4, 32)):
        inputs = samples.random_inputs(exported.interface, {"batch": batch, "seq": seq}, rng)
        inputs["attention_mask"][...] = np.arange(seq) < rng.integers(1, seq + 1, (batch, 1))
        results = compare(engine.run(inputs), exported.reference(inputs), inputs, exported.interface)
        assert all(r.ok for r in results), [str(r) for r in results]


def test_optional_inputs_read_as_declared(build: Callable[..., driver.BuildResult], exported: Exported, tmp_path: Path) -> None:
    engine = runtime.Engine(build(tmp_path / "tiny.infc").path)
    inputs = samples.random_inputs(exported.interface, {"batch": 1, "seq": 9}, np.random.default_rng(2))
    inputs["token_type_ids"][...] = 0
    full, least = engine.run(inputs), engine.run({"input_ids": inputs["input_ids"]})
    for name in full:
        np.testing.assert_array_equal(full[name], least[name])


def test_meta_and_report_tell_what_was_built(build: Callable[..., driver.BuildResult], bert: Path, tmp_path: Path) -> None:
    events: list[driver.Event] = []
    result = build(tmp_path / "tiny.infc", progress=events.append, report=tmp_path / "report.json")
    artifact = Artifact.open(result.path)
    meta = artifact.meta
    assert meta["source"]["sha256"] == resolve(bert).hash
    assert meta["profiles"] == PROFILES
    assert {step["precision"] for steps in meta["layers"].values() for step in steps} >= {"f32"}
    assert meta["versions"].keys() >= {"infc", "torch", "transformers", "onnx_ir"}
    passes = json.loads(bytes(artifact.section("REPORT") or b""))["passes"]
    matched = {p["name"]: len(p["matches"]) for p in passes}
    assert matched["fuse_attention"] == 2
    assert matched["pack_tokens"] == 1
    assert [e.stage for e in events if e.seconds is not None] == [
        "read", "export", "passes", "golden", "compile", "golden", "write"]
    assert json.loads((tmp_path / "report.json").read_text())["golden"]["cases"] == len(golden.read(artifact))
    assert any("golden" in line for line in result.summary())
    for section in artifact.sections:
        data = bytes(artifact.section(section.kind, section.ordinal) or b"")
        assert str(bert).encode() not in data, section.kind
        assert str(ROOT).encode() not in data, section.kind


def test_golden_cases_replay(build: Callable[..., driver.BuildResult], tmp_path: Path) -> None:
    path = build(tmp_path / "tiny.infc").path
    artifact = Artifact.open(path)
    cases = golden.read(artifact)
    lengths = [c.inputs["attention_mask"].sum(1).tolist() for c in cases]
    assert [16] in lengths, "a full one"
    assert any(len(set(rows)) > 1 for rows in lengths), "mixed lengths"
    assert any(0 in c.inputs["attention_mask"] for c in cases), "a padded one"
    assert golden.require(golden.replay(runtime.Engine(path), cases, interface_of(artifact)), "test") < 1e-4
    cases[0].outputs["sentence_embedding"] = cases[0].outputs["sentence_embedding"] + np.float32(0.01)
    with pytest.raises(CheckError, match="sentence_embedding"):
        golden.require(golden.replay(runtime.Engine(path), cases, interface_of(artifact)), "test")


@pytest.mark.parametrize("fault", [lambda a: a * np.float32(1.01), lambda a: a * 0 + np.float32(1)])
def test_an_engine_that_differs_leaves_no_artifact(build: Callable[..., driver.BuildResult], exported: Exported, tmp_path: Path,
                                                   monkeypatch: pytest.MonkeyPatch, fault: Callable[[Any], Any]) -> None:
    def reference(inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {name: fault(value) for name, value in exported.reference(inputs).items()}

    monkeypatch.setattr(driver, "export", lambda found: replace(exported, model=exported.model.clone(), reference=reference))
    with pytest.raises(CheckError) as caught:
        build(tmp_path / "tiny.infc")
    assert caught.value.code == "INFC-E0503"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("options", "code", "words"), [
    ({"profiles": ["batch=1,seq=41"]}, "E0207", "40"),
    ({"profiles": ["batch=1"]}, "E0205", "seq"),
    ({"disable": ["fuse_atention"]}, "E0016", "fuse_attention"),
    ({"only": ["nothing_like_it"]}, "E0016", "dead_code"),
    ({"isa": "sse2"}, "E0018", "x86-64-v3"),
    ({"target": "gpu"}, "E0010", "cpu"),
    ({"profil": ["batch=1"]}, "E0016", "profiles"),
])
def test_mistakes(build: Callable[..., driver.BuildResult], tmp_path: Path, options: dict[str, Any], code: str, words: str) -> None:
    with pytest.raises(InfcError) as caught:
        build(tmp_path / "tiny.infc", **options)
    assert caught.value.code == f"INFC-{code}"
    assert words in f"{caught.value.message} {caught.value.hint}"
    assert list(tmp_path.iterdir()) == []


def test_directory_of_the_artifact_must_exist(build: Callable[..., driver.BuildResult], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="directory"):
        build(tmp_path / "none" / "tiny.infc")


def test_passes_may_be_off(build: Callable[..., driver.BuildResult], tmp_path: Path) -> None:
    result = build(tmp_path / "tiny.infc", disable=["fuse_attention", "pack_tokens"], profiles=["batch=2,seq=8"])
    assert "fuse_attention" not in {r.name for r in result.records}
    assert runtime.Engine(result.path).profiles == [{"batch": 2, "seq": 8}]


def test_several_instruction_sets_in_one_file(build: Callable[..., driver.BuildResult], tmp_path: Path) -> None:
    result = build(tmp_path / "tiny.infc", isa="native,scalar", profiles=["batch=1,seq=8"])
    assert runtime.Engine(result.path, isa="scalar").isa == "scalar"
    assert runtime.Engine(result.path).isa == runtime.cpu_isa()


def test_same_bytes_with_a_warm_timing_cache(build: Callable[..., driver.BuildResult], tmp_path: Path) -> None:
    cache = tmp_path / "timing.json"
    options = {"tune": True, "timing_cache": cache, "profiles": ["batch=2,seq=32"]}
    build(tmp_path / "cold.infc", **options)
    written = cache.read_bytes()
    first, second = (build(tmp_path / f"{n}.infc", **options).path.read_bytes() for n in "ab")
    assert first == second == (tmp_path / "cold.infc").read_bytes()
    assert cache.read_bytes() == written


def test_same_bytes_from_another_directory_and_process(build: Callable[..., driver.BuildResult], bert: Path,
                                                       tmp_path: Path) -> None:
    here = build(tmp_path / "here.infc", profiles=["batch=1,seq=8"]).path
    model = shutil.copytree(bert, tmp_path / "deep" / "another name")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "1"}
    subprocess.run([sys.executable, "-c", BUILD, str(model)], cwd=tmp_path, env=environment, check=True)
    assert (tmp_path / "out.infc").read_bytes() == here.read_bytes()


def test_what_is_no_artifact_is_not_replaced(build: Callable[..., driver.BuildResult], tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "model.onnx").write_bytes(b"weights of years")
    for path in (tmp_path, tmp_path / "pipe", tmp_path / "model.onnx"):
        with pytest.raises(UsageError) as caught:
            build(path)
        assert (caught.value.code, caught.value.where) == ("INFC-E0022", str(path))
    assert (tmp_path / "model.onnx").read_bytes() == b"weights of years"
    with pytest.raises(UsageError, match="does not exist"):
        build(tmp_path / "none" / "a.infc")
    with pytest.raises(UsageError, match="report does not exist"):
        build(tmp_path / "a.infc", report=tmp_path / "none" / "a.json")
    for report in (tmp_path / "a.infc", tmp_path, tmp_path / "model.onnx"):
        with pytest.raises(UsageError, match="report") as caught:
            build(tmp_path / "a.infc", report=report)
        assert caught.value.code == "INFC-E0022"
    assert (tmp_path / "model.onnx").read_bytes() == b"weights of years"


def test_an_artifact_and_an_empty_file_are_replaced(build: Callable[..., driver.BuildResult], tmp_path: Path) -> None:
    (tmp_path / "a.infc").touch()
    first = build(tmp_path / "a.infc").path.read_bytes()
    assert build(tmp_path / "a.infc").path.read_bytes() == first
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.infc"]


def test_a_failed_write_names_the_artifact(build: Callable[..., driver.BuildResult], tmp_path: Path,
                                           monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UsageError, match="No space left") as caught:
        build(tmp_path / "a.infc")
    assert caught.value.where == str(tmp_path / "a.infc")
    assert not list(tmp_path.iterdir())


def test_the_report_is_written_through_what_is_there(build: Callable[..., driver.BuildResult], tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "report.json")
    build(tmp_path / "a.infc", report=tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert json.loads((tmp_path / "report.json").read_text())["task"] == "sentence-embedding"
