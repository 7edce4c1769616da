"""Language models judged by perplexity: what a build says is what ``infc eval`` measures, and a budget keeps it."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from infc.compiler import driver
from infc.compiler.artifact.reader import Artifact
from infc.compiler.calibrate import stage
from infc.compiler.calibrate.accuracy import surprise
from infc.compiler.cli import main
from infc.compiler.errors import UsageError
from infc.runtime.llm import LLM
from tests.conftest import WORDS, add_tokenizer
from tests.models import cache
from tests.models.families import write

LENGTH = 12  # words of a text, all of which count: a profile has as many rows as tokens
PROFILES = ["tokens=1,rows=1", "tokens=16,rows=16"]
CONFIG = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 96,
          "vocab_size": 4 + len(WORDS), "max_position_embeddings": 64, "eos_token_id": 2, "bos_token_id": 1, "pad_token_id": 0}
PLANTED = "model.layers.1.mlp.down_proj"


def plant(model: Path) -> None:
    """A channel between two products divided by 10,000 in the first and multiplied in the second: the same function, whose second
    product int8 cannot hold."""
    from safetensors.numpy import load_file, save_file

    weights = load_file(model / "model.safetensors")
    weights["model.layers.1.mlp.up_proj.weight"][3] /= 1e4
    weights[f"{PLANTED}.weight"][:, 3] *= 1e4
    save_file(weights, model / "model.safetensors", {"format": "pt"})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model, its f32 engine, and of random texts those that the model expects most: it can lose nothing on others."""
    where = tmp_path_factory.mktemp("perplexity")
    model = write("LlamaForCausalLM", CONFIG, where / "model")
    plant(model)
    add_tokenizer(model)
    lm = LLM(_build(where, "f32"), threads=1)
    rng = random.Random(0)
    texts = [" ".join(rng.choices(WORDS, k=LENGTH)) for _ in range(300)]
    texts.sort(key=lambda text: float(surprise(lm.logits(lm.encode(text))[:-1], np.array(lm.encode(text)[1:])).sum()))
    (where / "texts.txt").write_text("\n".join(texts[:30]))
    return where


def _build(where: Path, name: str, **options: Any) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver, "export", cache.export)
        patch.setattr(stage, "_LEAST_OF_LANGUAGE", 0.0)  # a build refuses what it can tell is broken
        return driver.build(where / "model", where / f"{name}.infc", tune=False, threads=1, profiles=PROFILES, **options).path


def _judged(where: Path, name: str, **options: Any) -> dict[str, Any]:
    path = _build(where, name, precision="int8", method="rtn", evaluation=where / "texts.txt", metric="perplexity", **options)
    found: dict[str, Any] = Artifact.open(path).meta["quantisation"]["cpu"]
    return found


def test_it_is_what_eval_measures_and_a_budget_keeps_it(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    found = _judged(folder, "int8")
    rise = found["accuracy"]["engine"]["mean"]
    assert rise > 1.05
    capfd.readouterr()
    assert main.main(["eval", str(folder / "int8.infc"), "--against", str(folder / "f32.infc"), "--perplexity",
                      str(folder / "texts.txt"), "--json"]) == 0
    ours, theirs = json.loads(capfd.readouterr().out)["results"]
    assert rise == pytest.approx(ours["perplexity"] / theirs["perplexity"], rel=1e-4)
    assert found["accuracy"]["engine"]["worst"] > rise

    budget = 1 + (rise - 1) / 4
    kept = _judged(folder, "kept", budget=budget)
    assert kept["accuracy"]["engine"]["mean"] <= budget
    assert [name.startswith(PLANTED) for name in kept["restored"]] == [True]


def test_what_perplexity_is_not_for(folder: Path, bert: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="E0815"):
        _judged(folder, "never", budget=0.04)
    assert not (folder / "never.infc").exists()
    with pytest.raises(UsageError, match="E0812"):
        driver.build(bert, tmp_path / "bert.infc", precision="int8", method="rtn", metric="perplexity",
                     evaluation=folder / "texts.txt")
