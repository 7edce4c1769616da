"""MiniLM in bytes agrees with people as its float model does."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

import infc
from infc.compiler import driver
from infc.compiler.artifact.reader import Artifact
from infc.compiler.cli.inputs import Tokenizer
from infc.models import fetch

pytestmark = pytest.mark.slow

WITHIN = 0.003


def test_pearson_to_human_judgements(tmp_path: Path) -> None:
    model, texts = fetch.fetch("minilm"), fetch.fetch("texts")
    documents = (texts / "lee.cor").read_text(encoding="latin-1").splitlines()[:50]
    human = np.loadtxt(texts / "similarities0-1.txt")
    pairs = [(a, b) for a, b in itertools.combinations(range(len(documents)), 2)]
    found = {}
    for precision in ("f32", "int8"):
        data = {} if precision == "f32" else {"calibration": texts / "lee_background.cor", "evaluation": texts / "lee.cor"}
        path = driver.build(model, tmp_path / f"{precision}.infc", profiles=["batch=1,seq=256"], tune=False, precision=precision,
                            **data).path
        engine, tokenizer = infc.Engine(path, threads=2), Tokenizer(Artifact.open(path))
        rows = [engine.run(arrays)["sentence_embedding"][0] for arrays, _ in tokenizer.batches(documents)]
        units = np.stack([row / np.linalg.norm(row) for row in rows])
        found[precision] = np.corrcoef([units[a] @ units[b] for a, b in pairs], [human[a, b] for a, b in pairs])[0, 1]
    assert found["f32"] > 0.5
    assert found["int8"] >= found["f32"] - WITHIN  # it may be nearer to people: 0.659 and 0.654 of texts cut to 128 tokens
