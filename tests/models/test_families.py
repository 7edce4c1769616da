"""Families of text encoders: parity with PyTorch at two profiles, no fusion lost, sizes packed where that is proven."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.models.families import FAMILIES, PARITY, measure

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
