"""MiniLM, fetched and built once for all workers of a test run."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from filelock import FileLock

PROFILES = ("batch=1,seq=16", "batch=1,seq=128", "batch=8,seq=128")


@pytest.fixture(scope="session")
def minilm() -> Path:
    from infc.models.fetch import fetch

    return fetch("minilm")


@pytest.fixture(scope="session")
def texts() -> list[str]:
    """News documents of more than eight words."""
    from infc.models.fetch import fetch

    lines = (fetch("texts") / "lee.cor").read_text(encoding="latin-1").splitlines()
    return [line.strip() for line in lines if len(line.split()) > 8]


@pytest.fixture(scope="session")
def engine_path(minilm: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MiniLM with three profiles, built without tuning by the command line in a process of its own."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base  # the workers' directories lie in one of this run
    path = shared / "minilm.infc"
    with FileLock(f"{path}.lock"):
        if not path.exists():
            run_build(minilm, path, "--no-tune")
    return path


def run_build(model: Path, output: Path, *options: str, cwd: Path | None = None) -> None:
    profiles = [item for p in PROFILES for item in ("--profile", p)]
    command = [sys.executable, "-m", "infc.compiler.cli.main", "build", str(model), "-o", str(output), *profiles, *options]
    subprocess.run(command, check=True, cwd=cwd, env=environment())


@pytest.fixture(scope="session")
def build() -> Callable[..., None]:
    """``build(model, artifact, *options, cwd=None)``: the command line in a process of its own."""
    return run_build


def environment(**changes: str) -> dict[str, str]:
    """The test's environment; the checkout importable from any directory, installed or not."""
    root = str(Path(__file__).resolve().parents[2])
    return {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in (root, os.environ.get("PYTHONPATH")) if p), **changes}


@pytest.fixture(scope="session")
def reference(minilm: Path) -> Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]:
    """MiniLM in PyTorch, as its users run it."""
    from infc.compiler.source import resolve
    from infc.models import registry

    return registry.load(resolve(minilm)).reference


@pytest.fixture(scope="session")
def engine(engine_path: Path) -> Iterator[Any]:
    import infc

    return infc.Engine(engine_path, threads=2)


@pytest.fixture(scope="session")
def tokens(minilm: Path, texts: list[str]) -> Callable[[list[int]], dict[str, np.ndarray]]:
    """Inputs whose rows hold as many tokens of real text as asked, padded to the longest."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(minilm / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()

    def make(lengths: list[int], width: int | None = None) -> dict[str, np.ndarray]:
        ids = np.zeros((len(lengths), width or max(lengths)), np.int64)
        mask = np.zeros_like(ids)
        for row, length in enumerate(lengths):
            found = tokenizer.encode(" ".join([texts[row % len(texts)]] * 8)).ids
            ids[row, :length] = [*found[: length - 1], found[-1]]
            mask[row, :length] = 1
        return {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}

    return make
