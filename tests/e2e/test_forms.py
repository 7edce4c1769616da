"""MiniLM in every form that people have it in gives the engine of its directory: exporters, opsets, and what ONNX Runtime's
optimizers make of their files. bench/forms.py times them."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def script() -> Any:
    spec = importlib.util.spec_from_file_location("forms", ROOT / "bench" / "forms.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["forms"] = module  # its dataclass looks there
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_every_form_gives_the_same_engine(script: Any, minilm: Path, tmp_path: Path, tokens: Any) -> None:
    files = script.exported(minilm, tmp_path)
    assert len(files["whole"]) == 12
    assert len(files["hidden"]) == 4
    inputs = tokens([16, 9], width=16)
    for group in ([minilm, *files["whole"]], files["hidden"]):
        first = None
        for file in group:
            form = script.built(file, tmp_path, "batch=2,seq=16", inputs, tune=False, threads=1)
            form.artifact.unlink()
            first = first or form
            assert form.steps == first.steps, form.name
            assert script.difference(form, first) <= 1e-5, form.name
        assert first is not None
        assert "pack_tokens" in [op for op, _ in first.steps]
        assert np.isfinite(first.outputs["last_hidden_state"]).all()
