"""A real engine: MiniLM built for this GPU, compared with its golden values, timed."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.gpu.outcome import Failed, NotRun

ROOT = Path(__file__).resolve().parents[2]
BINDINGS = {"tensorrt-rtx": "tensorrt_rtx_bindings", "tensorrt": "tensorrt"}  # by target
ADAPTER = "libinfc_tensorrt_adapter.so"
UNSUPPORTED = 3  # exit status of infc


def check_engine(sm: int, model: Path | None) -> str:
    """Builds ``model`` in f16 with each TensorRT that is installed; one that does not take this GPU is passed over."""
    if model is None:
        raise NotRun("no --model")
    if importlib.util.find_spec("infc") is None or importlib.util.find_spec("torch") is None:
        raise NotRun("infc is not installed with its build extra in this Python")
    targets = [t for t, module in BINDINGS.items() if importlib.util.find_spec(module)]
    if not targets:
        raise NotRun("neither TensorRT-RTX's nor TensorRT's Python bindings are installed")
    done, passed_over = [], []
    for target in targets:
        try:
            done.append(f"{target}\n{_check(target, sm, model)}")
        except NotRun as error:
            passed_over.append(f"{target}: {error}")
    if not done:
        raise NotRun("; ".join(passed_over))
    return "\n".join((*done, *passed_over))


def _check(target: str, sm: int, model: Path) -> str:
    with tempfile.TemporaryDirectory() as scratch:
        artifact = str(Path(scratch, "model.infc"))
        _infc(
            "build",
            str(model),
            "-o",
            artifact,
            "--target",
            target,
            "--sm",
            str(sm),
            "--precision",
            "f16",
            "--profile",
            "batch=1,seq=128",
        )
        return _infc("verify", artifact, "--device", "cuda") + _infc("bench", artifact, "--device", "cuda")


def _infc(*arguments: str) -> str:
    command = [sys.executable, "-m", "infc.compiler.cli.main", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode == UNSUPPORTED and (arguments[0] == "build" or ADAPTER in done.stderr):
        raise NotRun(done.stderr.strip())
    if done.returncode:
        raise Failed(f"infc {' '.join(arguments)}: exit status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout
