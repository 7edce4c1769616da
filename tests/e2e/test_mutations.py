"""Mutated artifacts of a real model: a status each, no crash, no hang, no write outside a buffer. See tests/c/fuzz/mutate.c."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(os.environ.get("INFC_MUTATE", ROOT / "build" / "c" / "mutate"))
COUNT = int(os.environ.get("INFC_MUTATIONS", "1000"))


def test_mutated_artifacts_never_crash(bert: Path, tmp_path: Path) -> None:
    import infc

    if "INFC_MUTATE" not in os.environ and not PROGRAM.exists():
        pytest.skip("the C tests are not built: make test-c")
    infc.build(bert, tmp_path / "tiny.infc", profiles=["batch=1,seq=8", "batch=2,seq=24"], tune=False, isa=["scalar", "native"])
    done = subprocess.run([PROGRAM, str(COUNT), "1", tmp_path / "tiny.infc"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
