"""What is given in place of an artifact is named."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from infc.compiler.artifact.layout import MAGIC
from infc.compiler.artifact.reader import Artifact
from infc.compiler.errors import ArtifactError

COMMANDS = ("run {} x.npz", "inspect {}", "bench {} --runs 10", "embed {} -o out.o", "compare {} {}", "verify {}", "report {}",
            "run {} --prompt hi", "chat {}", "drift {} --data x.npz", "diff {} {}")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    onnx.save(onnx.parser.parse_model('<ir_version: 9, opset_import: ["": 18]> m (float[2] x) => (float[2] y) { y = Neg (x) }'),
              "m.onnx")
    np.savez("x.npz", x=np.zeros(2))
    Path("model").mkdir()
    Path("model/config.json").write_text("{}")
    Path("w.safetensors").write_bytes((2).to_bytes(8, "little") + b'{"')
    return tmp_path


@pytest.mark.parametrize("command", COMMANDS)
def test_by_every_command(command: str, folder: Path, cli: Callable[..., Any]) -> None:
    done = cli(*command.format("m.onnx", "m.onnx").split())
    assert done.code == 2
    assert "INFC-E0131: this is an ONNX file" in done.err
    assert "infc build m.onnx" in done.err


@pytest.mark.parametrize(("name", "what", "hint"), [
    ("x.npz", "an archive of arrays", "infc run ENGINE x.npz"), ("model", "a model's directory", "infc build model"),
    (".", "a directory", "infc build"), ("w.safetensors", "a safetensors file", "infc build")])
def test_by_its_kind(name: str, what: str, hint: str, folder: Path, cli: Callable[..., Any]) -> None:
    done = cli("inspect", name)
    assert done.code == 2
    assert f"INFC-E0131: this is {what}" in done.err
    assert hint in done.err


def test_a_damaged_artifact_is_one_whatever_its_name(folder: Path) -> None:
    Path("cut.onnx").write_bytes(MAGIC + bytes(7))
    with pytest.raises(ArtifactError, match="E0601"):
        Artifact.open("cut.onnx")


def test_a_pipe_is_not_waited_for(folder: Path, cli: Callable[..., Any]) -> None:
    os.mkfifo("pipe")
    assert "INFC-E0101" in cli("inspect", "pipe").err
