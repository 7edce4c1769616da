"""How soon the first output is there, and how much memory it took."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = ROOT / "build" / "c" / "libinfc.a"


@pytest.mark.slow
def test_first_output_and_memory(engine_path: Path) -> None:
    from infc.compiler.artifact.reader import Artifact

    if not LIBRARY.exists():
        pytest.skip("the C library is not built: make test-c")
    spec = importlib.util.spec_from_file_location("first_output", ROOT / "bench" / "first_output.py")
    assert spec
    assert spec.loader
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    found = script.measure(engine_path, 11, 2, 1, 128, LIBRARY)
    weights = next(s.size for s in Artifact.open(engine_path).sections if s.kind == "WEIGHTS")
    # Minima: other tests run beside this one. The script prints medians too.
    assert found["c_above_ms"]["min"] <= 10
    assert found["python_above_ms"]["min"] <= 20
    assert found["c_peak_kib"]["median"] <= weights / 1024 + found["c_context_kib"]["median"] + 15 * 1024
