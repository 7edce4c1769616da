"""Engines on a GPU from Python. Driver and TensorRT are the fakes of tests/fake_gpu, in the folder that INFC_FAKE_GPU names: they
show what is asked of a GPU, not what one does. Each case has a process of its own: the loader reads its path at its start."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CASES = ("host_arrays", "automatic", "device_arrays", "wrong_device_arrays", "streams", "eight_threads")  # of gpu_cases.py
FAKES = os.environ.get("INFC_FAKE_GPU", "")
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.skipif(not FAKES, reason="INFC_FAKE_GPU does not name the folder of the fake driver; `make test` sets it")
@pytest.mark.parametrize("settings", ["", "async=1,delay=300"], ids=["at once", "later"])
@pytest.mark.parametrize("case", CASES)
def test_gpu(case: str, settings: str) -> None:
    environment = {**os.environ, "LD_LIBRARY_PATH": FAKES, "FAKE_CUDA": settings}
    done = subprocess.run([sys.executable, "-m", "tests.runtime.gpu_cases", case], cwd=ROOT, env=environment, capture_output=True,
                          text=True, timeout=120)
    assert done.stdout == "passed\n", done.stdout + done.stderr
