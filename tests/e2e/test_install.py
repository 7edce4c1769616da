"""What a user installs: the wheel in a clean environment, the library without Python."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.slow


def run(*command: object, cwd: Path, **changes: str) -> str:
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | changes
    done = subprocess.run([str(c) for c in command], cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy of what is tracked, so that what lies about in the checkout is no part of it."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in run("git", "ls-files", cwd=ROOT).splitlines():
        target = source / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_symlink():
            target.symlink_to(os.readlink(ROOT / name))
        elif (ROOT / name).is_file():
            shutil.copy(ROOT / name, target)
    run(sys.executable, "-m", "pip", "wheel", "--no-deps", "-w", out, source, cwd=out)
    return next(out.glob("*.whl"))


@pytest.fixture(scope="module")
def clean(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment that holds the wheel and numpy, nothing else."""
    home = tmp_path_factory.mktemp("clean")
    venv.create(home, with_pip=True)
    run(home / "bin" / "pip", "install", wheel, cwd=home)
    return home / "bin" / "python"


def test_the_wheel_holds_everything_and_no_more(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as z:
        sizes = {i.filename: i.file_size for i in z.infolist()}
    tracked = run("git", "ls-files", "compiler", "passes", "plugins", "models", cwd=ROOT).splitlines()
    assert {f"infc/{name}" for name in tracked if name.endswith((".py", ".toml"))} <= set(sizes)
    assert {"infc/py.typed", "infc/include/infc/infc.h", "infc/runtime/_rt.abi3.so", "infc/runtime/_rt.pyi"} <= set(sizes)
    assert {"infc/runtime/tensorrt.py", "infc/runtime/libinfc_tensorrt.so"} <= set(sizes)
    assert not [name for name in sizes if name.startswith("infc/runtime/") and name.endswith(".h")]
    assert sizes["infc/runtime/libinfc.so"] <= 2 << 20
    assert not [name for name in sizes if name.endswith((".c", ".pyc", ".infc")) or "tests" in name]


def test_the_wheel_runs_engines_with_numpy_alone(clean: Path, engine_path: Path, engine: Any, tokens: Any, tmp_path: Path) -> None:
    inputs = tokens([16])
    np.savez(tmp_path / "in.npz", **inputs)
    code = f"""
import infc, numpy as np
outputs = infc.Engine({str(engine_path)!r}, threads=1).run(dict(np.load("in.npz")))
np.save("out.npy", outputs["sentence_embedding"])
print(infc.get_include())
"""
    include = run(clean, "-c", code, cwd=tmp_path).strip()
    assert (Path(include) / "infc" / "infc.h").is_file()
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), engine.run(inputs)["sentence_embedding"], atol=1e-6)


def test_a_c_program_links_with_the_wheel(clean: Path, tmp_path: Path) -> None:
    """As docs/getting-started.md has it."""
    (tmp_path / "v.c").write_text("""
        #include <infc/infc.h>
        #include <stdio.h>
        int main(void) { return puts(infc_version()) < 0; }
    """)
    include, library = (run(clean, "-c", f"import infc; print(infc.{name}())", cwd=tmp_path).strip()
                        for name in ("get_include", "get_library"))
    run("gcc", "v.c", "-o", "v", "-I", include, library, f"-Wl,-rpath,{Path(library).parent}", cwd=tmp_path)
    import infc

    assert run(tmp_path / "v", cwd=tmp_path).strip() == infc.__version__


def test_the_command_line_says_which_extra_it_lacks(clean: Path, tmp_path: Path) -> None:
    done = subprocess.run([clean.parent / "infc", "--help"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2
    assert "pip install 'infc[cli]'" in done.stderr


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """libinfc installed under a prefix by CMake alone."""
    work, prefix = tmp_path_factory.mktemp("cmake"), tmp_path_factory.mktemp("prefix")
    run("cmake", "-S", ROOT / "runtime", "-B", work, "-G", "Ninja", "-DINFC_TESTS=OFF", f"-DCMAKE_INSTALL_PREFIX={prefix}",
        "-DCMAKE_INSTALL_LIBDIR=lib", cwd=work)
    run("cmake", "--build", work, "--target", "install", cwd=work)
    return prefix


def test_the_c_example_finds_the_installed_library(installed: Path, engine_path: Path, tmp_path: Path) -> None:
    """By CMake package; the same outputs from a file and from an object that ``infc embed`` made and gcc linked."""
    run(sys.executable, "-m", "infc.compiler.cli.main", "embed", engine_path, "-o", tmp_path / "model.o", "--symbol", "model",
        cwd=tmp_path, PYTHONPATH=str(ROOT))
    run("cmake", "-S", ROOT / "examples" / "embed", "-B", tmp_path / "cmake", "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={installed}",
        f"-DMODEL={tmp_path}/model.o", cwd=tmp_path)
    run("cmake", "--build", tmp_path / "cmake", cwd=tmp_path)
    file = run(tmp_path / "cmake" / "main", engine_path, 2, cwd=tmp_path).splitlines()
    linked = run(tmp_path / "cmake" / "embedded", 2, cwd=tmp_path).splitlines()
    assert "2 threads: first output after" in file[0]
    assert file[1:] == linked[1:]
    assert file[1].startswith("last_hidden_state:")


def test_pkg_config_knows_the_flags(installed: Path, tmp_path: Path) -> None:
    if not shutil.which("pkg-config"):
        pytest.skip("no pkg-config")
    paths = {"PKG_CONFIG_PATH": f"{installed}/lib/pkgconfig"}
    flags = run("pkg-config", "--cflags", "--libs", "infc", cwd=tmp_path, **paths).split()
    (tmp_path / "v.c").write_text("""
        #include <infc/infc.h>
        #include <stdio.h>
        int main(void) { return puts(infc_version()) < 0; }
    """)
    run("gcc", "v.c", "-o", "v", *flags, f"-Wl,-rpath,{installed}/lib", cwd=tmp_path)
    import infc

    assert run(tmp_path / "v", cwd=tmp_path).strip() == infc.__version__
