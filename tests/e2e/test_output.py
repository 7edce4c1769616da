"""An artifact is written as one step: a full disk, an interrupt at any stage and two builds at once leave it whole or as it was."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from infc.compiler.artifact.reader import Artifact

MODEL = """<ir_version: 9, opset_import: ["": 18]>
scaled (float[n, 64] x) => (float[n, 64] y) <float[1] factor = {2.5}> { z = Mul (x, factor) y = Softmax (z) }
"""
STAGES = ("read", "export", "passes", "compile", "golden", "write")
# Builds argv[1] as argv[2]; `before` runs first, `progress` sees the events.
PROGRAM = """
import os, resource, signal, sys
import infc
from infc.compiler.artifact import writer
progress = None
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs the tests may ignore it
{before}
try:
    infc.build(sys.argv[1], sys.argv[2], profiles=["n=4"], tune=False, isa=["scalar"], progress=progress)
except infc.InfcError as error:
    print(error)
    sys.exit(error.exit_code)
except KeyboardInterrupt:
    sys.exit(130)
"""
INTERRUPT = """
def progress(event):
    if event.stage == {stage!r} and (event.seconds is not None) == {ends}:
        os.kill(os.getpid(), signal.SIGINT)
"""
# Around the rename, which is what makes the new one count.
INTERRUPT_IN_WRITE = """
replace = os.replace
def interrupted(*args):
    if {when!r} == "after":
        replace(*args)
    os.kill(os.getpid(), signal.SIGINT)
    replace(*args)
writer.os.replace = interrupted
"""
FULL = """
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, resource.RLIM_INFINITY))
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "scaled.onnx"
    onnx.save(onnx.parser.parse_model(MODEL), path)
    return path


def _build(model: Path, output: Path, before: str = "") -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", PROGRAM.format(before=before), str(model), str(output)], text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def _finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    said, _ = process.communicate(timeout=300)
    return process.returncode, said


@pytest.fixture(scope="module")
def old(model: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """An artifact of the model, as it may lie where the next one goes."""
    path = tmp_path_factory.mktemp("old") / "old.infc"
    code, said = _finish(_build(model, path))
    assert code == 0, said
    return path.read_bytes()


def _left_as_it_was(folder: Path, old: bytes) -> None:
    assert [p.name for p in folder.iterdir()] == ["a.infc"]
    assert (folder / "a.infc").read_bytes() == old


INTERRUPTS = [*(INTERRUPT.format(stage=stage, ends=ends) for stage in STAGES for ends in (False, True)
                if (stage, ends) != ("write", True)), INTERRUPT_IN_WRITE.format(when="before")]


@pytest.mark.parametrize("before", INTERRUPTS)
def test_an_interrupt_leaves_the_old_artifact_and_nothing_else(before: str, model: Path, old: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.infc").write_bytes(old)
    code, said = _finish(_build(model, tmp_path / "a.infc", before))
    assert code == 130, said
    _left_as_it_was(tmp_path, old)


@pytest.mark.parametrize("before", [INTERRUPT_IN_WRITE.format(when="after"), INTERRUPT.format(stage="write", ends=True)])
def test_an_interrupt_after_the_write_leaves_a_whole_artifact(before: str, model: Path, old: bytes, tmp_path: Path) -> None:
    code, said = _finish(_build(model, tmp_path / "a.infc", before))
    assert code == 130, said
    _left_as_it_was(tmp_path, old)


@pytest.mark.parametrize("size", [0, 1, 4096])
@pytest.mark.parametrize("there", [True, False])
def test_a_full_disk_leaves_the_old_artifact_and_nothing_else(size: int, there: bool, model: Path, old: bytes,
                                                              tmp_path: Path) -> None:
    assert len(old) > 4096
    if there:
        (tmp_path / "a.infc").write_bytes(old)
    limit = f"""
def progress(event):
    if event.stage == "write":
{"".join(f"        {line}" + chr(10) for line in FULL.format(size=size).strip().splitlines())}"""
    code, said = _finish(_build(model, tmp_path / "a.infc", limit))
    assert code == 2, said
    assert re.search(r"INFC-E0023: cannot be written: .*\n.*a\.infc", said)
    assert [p.name for p in tmp_path.iterdir()] == ["a.infc"] * there
    assert not there or (tmp_path / "a.infc").read_bytes() == old


def test_two_builds_of_one_output_at_once(model: Path, old: bytes, tmp_path: Path) -> None:
    for code, said in [_finish(p) for p in [_build(model, tmp_path / "a.infc") for _ in range(2)]]:
        assert code == 0, said
    _left_as_it_was(tmp_path, old)
    Artifact.open(tmp_path / "a.infc").verify()
