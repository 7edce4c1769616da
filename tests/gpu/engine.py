"""Real engines, built for this GPU: an encoder's, compared with its golden values, and a language model's, whose text is compared
with the CPU's; both timed."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.gpu.outcome import Failed, NotRun

ROOT = Path(__file__).resolve().parents[2]
BINDINGS = {"tensorrt-rtx": "tensorrt_rtx_bindings", "tensorrt": "tensorrt"}  # by target
ADAPTER = "libinfc_tensorrt_adapter.so"
UNSUPPORTED = 3  # exit status of infc


PROMPT = "The capital of France is"
ENCODER = ("--precision", "f16", "--profile", "batch=1,seq=128")
LANGUAGE = ("--precision", "f32", "--context", "512", "--profile", "tokens=1,rows=1", "--profile", "tokens=64,rows=1")


def check_engine(sm: int, model: Path | None) -> str:
    """Builds ``model`` in f16 with each TensorRT that is installed; one that does not take this GPU is passed over."""
    return _with_each(sm, model, "--model", _encoder)


def check_language(sm: int, model: Path | None) -> str:
    """The same in f32, for the CPU too: both give the same text."""
    return _with_each(sm, model, "--language-model", _language)


def _with_each(sm: int, model: Path | None, option: str, check: Callable[[str, int, Path], str]) -> str:
    if model is None:
        raise NotRun(f"no {option}")
    if importlib.util.find_spec("infc") is None or importlib.util.find_spec("torch") is None:
        raise NotRun("infc is not installed with its build extra in this Python")
    targets = [t for t, module in BINDINGS.items() if importlib.util.find_spec(module)]
    if not targets:
        raise NotRun("neither TensorRT-RTX's nor TensorRT's Python bindings are installed")
    done, passed_over = [], []
    for target in targets:
        try:
            done.append(f"{target}\n{check(target, sm, model)}")
        except NotRun as error:
            passed_over.append(f"{target}: {error}")
    if not done:
        raise NotRun("; ".join(passed_over))
    return "\n".join((*done, *passed_over))


def _encoder(target: str, sm: int, model: Path) -> str:
    with tempfile.TemporaryDirectory() as scratch:
        artifact = str(Path(scratch, "model.infc"))
        _infc("build", str(model), "-o", artifact, "--target", target, "--sm", str(sm), *ENCODER)
        return _infc("verify", artifact, "--device", "cuda") + _infc("bench", artifact, "--device", "cuda")


def _language(target: str, sm: int, model: Path) -> str:
    with tempfile.TemporaryDirectory() as scratch:
        artifact = str(Path(scratch, "model.infc"))
        _infc("build", str(model), "-o", artifact, "--target", f"cpu,{target}", "--sm", str(sm), "--no-tune", *LANGUAGE)
        said = [
            _infc("run", artifact, "--prompt", PROMPT, "--max-new-tokens", "48", "--device", d) for d in ("cpu", "cuda")
        ]
        if said[0] != said[1]:
            raise Failed(f"the CPU says {said[0]!r}, the GPU {said[1]!r}")
        return said[1] + _infc("bench", artifact, "--device", "cuda", "--prompt-tokens", "64", "--new-tokens", "64")


def _infc(*arguments: str) -> str:
    command = [sys.executable, "-m", "infc.compiler.cli.main", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode == UNSUPPORTED and (arguments[0] == "build" or ADAPTER in done.stderr):
        raise NotRun(done.stderr.strip())
    if done.returncode:
        raise Failed(f"infc {' '.join(arguments)}: exit status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout
