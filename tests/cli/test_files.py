"""What commands write is there whole or not at all, and never in the place of what they read."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from infc.compiler import save
from infc.compiler.cli import main
from infc.compiler.onnx_reader import read

MODEL = """<ir_version: 9, opset_import: ["": 18]>
wide (float[n, 4096] x) => (float[n, 4096] y) <float[4096] w> { y = Mul (x, w) }
"""
# By command: what it is called with, {} being the file that it writes, and its name.
WRITERS = {
    "run": ("run m.infc x.npz -o {}", "out.npz"),
    "embed": ("embed m.infc -o {}", "out.o"),
    "report": ("report m.infc --runs 0 -o {}", "out.html"),
    "compare": ("compare m.infc m.infc --runs 0 --markdown {}", "out.md"),
    "export": ("export m.onnx -o {}", "out.onnx"),
    "reduce": ("debug reduce bad.onnx --profile n=2 --isa scalar -o {}", "out.onnx"),
    "build --report": ("build m.onnx -o new/m.infc --profile n=2 --no-tune --isa scalar --report {}", "out.json"),
    "build --dump-graphs": ("build m.onnx -o new/m.infc --profile n=2 --no-tune --isa scalar --dump-graphs .", "00_input.onnx"),
    "calibrate": ("calibrate m.onnx --calibration x.npz --profile n=2 -o {}", "out.npz"),
}
LIMITED = """
import os, resource, signal, sys
from infc.compiler import aside
from infc.compiler.cli import main
whole = aside.whole
def full(path):
    if os.path.basename(path) == {name!r}:  # what else is written has room
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, resource.RLIM_INFINITY))
    return whole(path)
aside.whole = full
sys.exit(main.main(sys.argv[1:]))
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("files")
    model = onnx.parser.parse_model(MODEL)
    del model.graph.initializer[:]
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.linspace(-1, 1, 4096, dtype=np.float32), "w"))
    onnx.save(model, where / "m.onnx")
    model.graph.node[0].CopyFrom(onnx.helper.make_node("Normalizer", ["x"], ["y"], domain="ai.onnx.ml"))
    model.opset_import.append(onnx.helper.make_opsetid("ai.onnx.ml", 3))
    onnx.save(model, where / "bad.onnx")
    np.savez(where / "x.npz", x=np.random.default_rng(0).standard_normal((2, 4096), np.float32))
    assert main.main(["build", f"{where}/m.onnx", "-o", f"{where}/m.infc", "--profile", "n=2", "--no-tune"]) == 0
    return where


@pytest.fixture
def folder(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for path in made.iterdir():
        shutil.copy(path, tmp_path)
    (tmp_path / "new").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _files(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()}


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("name", WRITERS)
def test_a_full_disk_leaves_the_old_file_and_nothing_else(name: str, there: bool, folder: Path) -> None:
    words, output = WRITERS[name]
    if there:
        old = Path("m.onnx" if output.endswith(".onnx") else "x.npz")
        if name == "calibrate":
            old = Path("record.npz")
            assert main.main(f"calibrate m.onnx --calibration x.npz --profile n=2 -o {old}".split()) == 0
        shutil.copy(old, output) if name != "build --report" else Path(output).write_text("{}")
    before = _files(folder)
    done = subprocess.run([sys.executable, "-c", LIMITED.format(name=output, size=10), *words.format(output).split()],
                          capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    assert "INFC-E0023: cannot be written: File too large" in done.stderr
    assert f"where: {output}" in done.stderr
    assert "Traceback" not in done.stderr
    assert _files(folder) == before


@pytest.mark.parametrize("size", [100, 20_000])
def test_a_full_disk_leaves_neither_model_nor_weights(size: int, folder: Path) -> None:
    """Of a model whose weights go to a file beside it."""
    before, inside = _files(folder), "from infc.compiler import save; save._INSIDE = 0"
    script = LIMITED.format(name="out.onnx", size=size).replace("sys.exit", f"{inside}\nsys.exit")
    done = subprocess.run([sys.executable, "-c", script, "export", "m.onnx", "-o", "out.onnx"], capture_output=True, text=True)
    assert (done.returncode == 2) == (size < 4 * 4096), done.stderr
    assert set(_files(folder)) - set(before) == (set() if done.returncode else {"out.onnx", "out.onnx.data"})


def test_weights_beside_a_model_are_found_there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(save, "_INSIDE", 0)
    assert save.save_model(read(Path("m.onnx")), Path("out.onnx")) == 4 * 4096
    loaded = onnx.load("out.onnx")
    np.testing.assert_array_equal(onnx.numpy_helper.to_array(loaded.graph.initializer[0])[[0, -1]], [-1, 1])


@pytest.mark.parametrize("command", [
    "run m.infc x.npz -o m.infc", "run m.infc x.npz -o x.npz", "run m.infc x.npz -o other.infc", "embed m.infc -o m.infc",
    "embed m.infc -o other.infc", "report m.infc --runs 0 -o m.infc", "report m.infc --runs 0 -o other.infc",
    "compare m.infc m.infc --runs 0 --markdown m.infc", "compare m.infc m.infc --runs 0 --markdown other.infc",
    "export m.onnx -o m.onnx", "export m.onnx -o link.onnx", "export m.onnx -o m.infc",
    "calibrate m.onnx --calibration x.npz -o x.npz", "calibrate m.onnx --calibration x.npz -o m.infc",
    "debug reduce m.onnx -o m.infc", "debug reduce m.onnx -o m.onnx",
    "build m.onnx -o m.infc --report m.infc", "build m.onnx -o m.onnx", "run m.infc x.npz -o new", "export split.onnx -o a.onnx"])
def test_what_is_read_and_artifacts_are_not_replaced(command: str, folder: Path, cli: Callable[..., Any]) -> None:
    shutil.copy("m.infc", "other.infc")
    Path("link.onnx").symlink_to("m.onnx")
    onnx.save(onnx.load("m.onnx"), "split.onnx", save_as_external_data=True, location="a.onnx.data")
    before = _files(folder)
    done = cli(*command.split())
    assert done.code == 2, done.err
    assert "E0022" in done.err
    assert _files(folder) == before


def test_files_of_a_model_are_not_replaced(bert: Path, tmp_path: Path, cli: Callable[..., Any]) -> None:
    shutil.copytree(bert, tmp_path / "bert")
    weights = (tmp_path / "bert" / "model.safetensors").read_bytes()
    done = cli("export", tmp_path / "bert", "-o", tmp_path / "bert" / "model.safetensors")
    assert done.code == 2
    assert "E0022" in done.err
    assert (tmp_path / "bert" / "model.safetensors").read_bytes() == weights


@pytest.mark.parametrize("command", ["run m.infc x.npz -o none/x", "embed m.infc -o none/x", "export m.onnx -o none/x",
                                     "report m.infc -o none/x", "compare m.infc m.infc --markdown none/x"])
def test_a_directory_that_is_missing_is_told_before_the_work(command: str, folder: Path, cli: Callable[..., Any]) -> None:
    done = cli(*command.split())
    assert done.code == 2
    assert "INFC-E0021" in done.err
