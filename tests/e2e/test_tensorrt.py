"""MiniLM for the CPU and for GPUs in one artifact, built on a machine without one."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from filelock import FileLock

from infc.compiler.artifact.reader import Artifact

pytest.importorskip("tensorrt_rtx_bindings", reason="engines are built by tensorrt-rtx-cu13")

OPTIONS = ("--target", "cpu,tensorrt-rtx", "--sm", "89,120", "--precision", "cpu=f32,tensorrt-rtx=f16", "--no-tune")
PROFILES = ("batch=1,seq=16", "batch=1,seq=128", "batch=8,seq=128")
LAYERS = 6


@pytest.fixture(scope="module")
def both(minilm: Path, build: Callable[..., None], tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    path = shared / "minilm-both.infc"
    with FileLock(f"{path}.lock"):
        if not path.exists():
            build(minilm, path, *OPTIONS)
    return path


def test_it_lists_its_engine_sms_and_layers(both: Path) -> None:
    artifact = Artifact.open(both)
    artifact.verify()
    (engine,) = artifact.engines()
    assert (engine.flavour, engine.sms, engine.profiles) == ("tensorrt-rtx", (89, 120), (0, 1, 2))
    assert not next(s.required for s in artifact.sections if s.kind == "TENSORRT"), "there are programs besides"
    (facts,) = artifact.meta["engines"]
    assert (facts["sms"], facts["precision"], facts["size"]) == ([89, 120], "f16", len(engine.plan))
    for profile in PROFILES:
        label = f"{profile}/tensorrt-rtx/sm89+120"
        steps, counts = artifact.meta["layers"][label], facts["programs"][label]
        assert counts["layers"] == len(steps)
        assert counts["fused_attentions"] == LAYERS
        assert 0 < counts["launches"] <= 70
        assert sum("f16" in step["precision"] for step in steps) > len(steps) / 2
        named = {node for step in steps for node in step["fused"]}
        assert any(node.startswith(f"encoder.layer.{LAYERS - 1}.") for node in named), "layers name the model's nodes"


def test_the_graph_that_was_handed_over_computes_what_the_model_does(both: Path) -> None:
    (graph,) = Artifact.open(both).meta["graphs"]
    assert (graph["by"], graph["precision"], graph["note"]) == ("onnxruntime", "f16", "")
    assert graph["cases"] >= len(PROFILES)
    assert set(graph["outputs"]) == {"last_hidden_state", "sentence_embedding"}
    for figures in graph["outputs"].values():
        assert figures["cosine"] > 0.9999
        assert figures["difference"] < 0.05


def test_it_runs_on_this_cpu_as_the_cpus_own_artifact_does(both: Path, engine_path: Path, tokens: Any) -> None:
    import infc

    inputs = tokens([77, 5, 128])
    got, want = (infc.Engine(path, threads=1, device="cpu").run(inputs) for path in (both, engine_path))
    for name in want:
        np.testing.assert_array_equal(got[name], want[name])


def test_the_choice_of_the_cpu_is_said_and_the_gpu_can_be_asked_for(both: Path) -> None:
    import infc
    from infc.compiler.cli.gpu import find_driver

    if find_driver()["devices"]:
        pytest.skip("this machine has a GPU")
    engine = infc.Engine(both)
    assert engine.device == "cpu"
    assert "TensorRT-RTX" in engine.note
    with pytest.raises(infc.Error, match=r"built for TensorRT-RTX .*SM 89,120.*found no NVIDIA driver"):
        infc.Engine(both, device="cuda")


def test_the_same_bytes_from_two_directories(both: Path, minilm: Path, build: Callable[..., None], tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    build(minilm, tmp_path / "again.infc", *OPTIONS, cwd=tmp_path / "elsewhere")
    assert _digest(tmp_path / "again.infc") == _digest(both)
    data = both.read_bytes()
    for path in (minilm, Path(__file__).resolve().parents[2], both.parent):
        assert str(path).encode() not in data


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
