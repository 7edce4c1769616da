"""The parity test can fail: it notices when any one parameter of the model is missing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

TOLERANCE = 1e-4
# Not used by the outputs, or cancelled by softmax: q·(k + b) adds the same q·b to every score of a row.
WITHOUT_EFFECT = ("pooler.", ".key.bias")


@pytest.mark.parametrize("seed", [1])
def test_zeroing_any_parameter_breaks_parity(seed: int, bert: Path, tmp_path: Path) -> None:
    import torch

    import infc
    from infc.compiler.source import resolve
    from infc.models import registry

    infc.build(bert, tmp_path / "tiny.infc", profiles=["batch=2,seq=24"], tune=False)
    engine = infc.Engine(tmp_path / "tiny.infc", threads=1)
    exportable = registry.load(resolve(bert))
    rng = np.random.default_rng(seed)
    inputs = {"input_ids": rng.integers(0, 64, (2, 24)), "token_type_ids": rng.integers(0, 2, (2, 24)),
              "attention_mask": (np.arange(24) < np.array([[24], [17]])).astype(np.int64)}
    got = engine.run(inputs)
    assert _difference(got, exportable.reference(inputs)) <= TOLERANCE
    unnoticed = [name for name, parameter in exportable.module.named_parameters()
                 if _without(torch, parameter, lambda: _difference(got, exportable.reference(inputs))) <= TOLERANCE]
    assert all(any(part in name for part in WITHOUT_EFFECT) for name in unnoticed), unnoticed


def _without(torch: object, parameter: object, measure: Callable[[], float]) -> float:
    saved = parameter.detach().clone()  # type: ignore[attr-defined]
    with torch.no_grad():  # type: ignore[attr-defined]
        parameter.zero_()  # type: ignore[attr-defined]
        found = measure()
        parameter.copy_(saved)  # type: ignore[attr-defined]
    return found


def _difference(got: dict[str, np.ndarray], want: dict[str, np.ndarray]) -> float:
    """Of the pooled vectors, and of the hidden states at real tokens (the second row has 17)."""
    hidden = np.abs(got["last_hidden_state"] - want["last_hidden_state"])
    return float(max(hidden[0].max(), hidden[1, :17].max(), np.abs(got["sentence_embedding"] - want["sentence_embedding"]).max()))
