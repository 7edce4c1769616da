"""Which file of which pip package an engine is told of."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from infc.runtime.tensorrt import find_library
from tests.runtime import made

RTX, ENTERPRISE = ("tensorrt_rtx_libs", "libtensorrt_rtx.so.1"), ("tensorrt_libs", "libnvinfer.so.11")


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Instead of what is installed here."""
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    for package, _ in (RTX, ENTERPRISE):
        monkeypatch.delitem(sys.modules, package, raising=False)
    return tmp_path


def put(folder: Path, package: str, library: str) -> str:
    (folder / package).mkdir()
    (folder / package / "__init__.py").write_text("raise AssertionError('imported')")
    (folder / package / library).touch()
    return str(folder / package / library)


@pytest.mark.parametrize(("flavour", "package"), [("tensorrt-rtx", RTX), ("tensorrt", ENTERPRISE)])
@pytest.mark.parametrize("cpu", [False, True])
def test_the_installed_one(install: Path, flavour: str, package: tuple[str, str], cpu: bool) -> None:
    artifact = made.gpu_artifact(made.engine(flavour), cpu=cpu)
    path = install / "model.infc"
    path.write_bytes(artifact)
    assert find_library(str(path)) is None
    library = put(install, *package)
    for source in (str(path), artifact, bytearray(artifact), memoryview(artifact)):
        assert find_library(source) == library
    assert package[0] not in sys.modules
    assert find_library(made.cpu_artifact()) is None


def test_the_first_of_several(install: Path) -> None:
    artifact = made.gpu_artifact(made.engine("tensorrt-rtx"), made.engine("tensorrt", sms=(90,), ordinal=1))
    enterprise = put(install, *ENTERPRISE)
    assert find_library(artifact) == enterprise
    assert find_library(artifact) != put(install, *RTX) == find_library(artifact)


def test_a_package_without_the_file(install: Path) -> None:
    Path(put(install, *RTX)).unlink()
    assert find_library(made.gpu_artifact()) is None


def test_what_is_no_artifact(install: Path) -> None:
    put(install, *RTX)
    artifact = bytearray(made.gpu_artifact())
    for cut in (0, 1, 33, 44, 64, 100, len(artifact) - 1):
        find_library(bytes(artifact[:cut]))
    for at in range(32, 44):
        damaged = bytearray(artifact)
        damaged[at] = 0xFF
        assert find_library(damaged) in (None, str(install / RTX[0] / RTX[1]))
    for source in (str(install / "none"), str(install), "\0", 3):
        assert find_library(source) is None  # type: ignore[arg-type]
