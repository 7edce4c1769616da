"""The executor of libinfc on a GPU without TensorRT: engines are custom operators (operator_adapter.cpp), all else is real."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.gpu.operators import OPERATORS, build, table
from tests.gpu.outcome import Failed, NotRun

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
RUNS = 1000
ADAPTER = "libinfc_tensorrt_adapter.so"


def build_adapter(directory: Path, sm: int | None, prebuilt: Path | None = None) -> None:
    """``sm`` None: without code for a GPU, for the fake driver."""
    fatbins: dict[str, Path | None] = {op.name: None for op in OPERATORS}
    for op in OPERATORS:
        if prebuilt:
            fatbins[op.name] = prebuilt / f"{op.name}.fatbin"
        elif sm:
            fatbins[op.name] = directory / f"{op.name}.fatbin"
            build.fatbin(op, directory / f"{op.name}.fatbin", [sm])
    source = directory / "table.cpp"
    source.write_text(table.generate(OPERATORS, fatbins))
    include = (f"-I{build.HERE}", f"-I{ROOT / 'runtime' / 'src'}", f"-I{ROOT / 'runtime' / 'include'}")
    subprocess.run(
        [
            *build.CXX,
            "-Wno-missing-field-initializers",
            *include,
            str(source),
            str(build.HERE / "launch.cpp"),
            str(HERE / "operator_adapter.cpp"),
            "-o",
            str(directory / ADAPTER),
            "-ldl",
        ],
        check=True,
    )


def check_executor(sm: int, prebuilt: Path | None = None) -> str:
    """Runs executor_cases.py in a process whose loader finds the adapter."""
    if shutil.which("g++") is None:
        raise NotRun("no g++ for the adapter")
    sys.path.insert(0, str(ROOT))
    if importlib.util.find_spec("infc.runtime._rt") is None:
        raise NotRun("infc is not installed in this Python: pip install -e .")
    with tempfile.TemporaryDirectory() as scratch:
        try:
            build_adapter(Path(scratch), sm, prebuilt)
        except FileNotFoundError as error:
            raise NotRun(str(error)) from None
        return run_cases(sm, RUNS, Path(scratch))


def run_cases(sm: int, runs: int, *libraries: Path) -> str:
    """``libraries``: folders with the adapter and, for tests, a driver."""
    path = os.pathsep.join((*map(str, libraries), os.environ.get("LD_LIBRARY_PATH", "")))
    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu.executor_cases", str(sm), str(runs)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "LD_LIBRARY_PATH": path, "PYTHONPATH": str(ROOT)},
        timeout=120,
    )
    if done.returncode:
        raise Failed(done.stdout + done.stderr)
    return done.stdout.strip()
