"""Families of text encoders: parity with PyTorch at two profiles, no fusion lost, sizes packed where that is proven."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import infc
from infc.compiler import driver
from tests.models.families import FAMILIES, PARITY, measure, write

HEADS = [(name, head) for name, family in FAMILIES.items() for head in family.heads]


@pytest.mark.parametrize("name", FAMILIES)
def test_base_models(name: str, tmp_path: Path) -> None:
    family = FAMILIES[name]
    row = measure(name + family.base, family.config, tmp_path)
    print(row)
    assert row.largest <= PARITY
    assert row.sizes == family.sizes
    assert dict(row.ops) == dict(family.fused)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "head"), HEADS)
def test_heads(name: str, head: str, tmp_path: Path) -> None:
    row = measure(name + head, FAMILIES[name].config, tmp_path)
    print(row)
    assert row.largest <= PARITY
    assert row.sizes == FAMILIES[name].sizes


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, family in FAMILIES.items() if family.sentence])
def test_sentence_embeddings(name: str, tmp_path: Path) -> None:
    row = measure(name + FAMILIES[name].base, FAMILIES[name].config, tmp_path, sentence=True)
    print(row)
    assert row.largest <= PARITY
    assert row.sizes == FAMILIES[name].sizes


@pytest.mark.parametrize("name", ["DebertaV2", *(pytest.param(n, marks=pytest.mark.slow) for n in ("MPNet", "T5"))])
def test_in_int8_shorter_texts_are_served_too(name: str, tmp_path: Path) -> None:
    family = FAMILIES[name]
    folder = write(name + family.base, family.config, tmp_path / "model")
    built = driver.build(folder, tmp_path / "model.infc", profiles=["batch=2,seq=16"], tune=False, precision="int8", method="rtn")
    assert "int8" in {layer["actual"] for layer in built.report["quantisation"]["cpu"]["layers"]}
    engine = infc.Engine(tmp_path / "model.infc", threads=1)
    ids = np.random.default_rng(0).integers(3, 50, (2, 16))
    mask = (np.arange(16) < np.array([[5], [9]])).astype(np.int64)
    whole = engine.run({"input_ids": ids * mask, "attention_mask": mask})
    for row, length in enumerate((5, 9)):
        alone = engine.run({"input_ids": ids[row:row + 1, :length], "attention_mask": np.ones((1, length), np.int64)})
        for output, got in alone.items():
            want = whole[output][row:row + 1, :length] if got.ndim == 3 else whole[output][row:row + 1]
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
