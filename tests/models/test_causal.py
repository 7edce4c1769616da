"""Families of language models with two layers of random weights: logits of prompts in chunks and of many tokens after, held against
transformers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from infc.compiler import driver
from infc.compiler.artifact.reader import Artifact
from infc.compiler.errors import InfcError
from infc.compiler.source import resolve
from infc.runtime.llm import LLM
from tests.models import cache
from tests.models.families import PARITY, write

PROFILES = ("tokens=1,rows=1", "tokens=4,rows=4", "tokens=16,rows=16")
CHUNKS = (16, 13, 4, 9)  # tokens of a prompt that are added at a time
DECODED = 40
WINDOW = 9
_BASE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 48,
         "vocab_size": 64, "max_position_embeddings": 256, "eos_token_id": 2, "bos_token_id": 1, "pad_token_id": 0}
_GEMMA = {**_BASE, "head_dim": 16, "query_pre_attn_scalar": 24, "sliding_window": WINDOW}
_PHI3 = {"rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0, 1.1, 1.3, 1.7], "long_factor": [2.0, 2.1, 2.4, 2.8],
         "original_max_position_embeddings": 64}
_OPT = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 48, "vocab_size": 64,
        "max_position_embeddings": 256, "word_embed_proj_dim": 32}


def _rope(kind: str, **more: float) -> dict[str, Any]:
    return {**_BASE, "rope_parameters": {"rope_type": kind, "rope_theta": 10000.0, **more}}


@dataclass(frozen=True)
class Family:
    """``windows`` of the two layers; ``rope``: whether both rotate within their node; ``context`` and ``note`` of the build."""

    architecture: str
    config: Mapping[str, Any]
    windows: tuple[int, int] = (0, 0)
    rope: int = 2
    context: int | None = None
    note: str = ""


FAMILIES = {
    "llama": Family("LlamaForCausalLM", _BASE),
    "llama with biases, tied": Family("LlamaForCausalLM", {**_BASE, "attention_bias": True, "mlp_bias": True,
                                                           "tie_word_embeddings": True}),
    "mistral": Family("MistralForCausalLM", {**_BASE, "sliding_window": WINDOW}, (WINDOW, WINDOW)),
    "qwen2": Family("Qwen2ForCausalLM", {**_BASE, "use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1},
                    (0, WINDOW)),
    "qwen3": Family("Qwen3ForCausalLM", {**_BASE, "head_dim": 16, "max_window_layers": 2}),
    "smollm3": Family("SmolLM3ForCausalLM", {**_BASE, "no_rope_layer_interval": 2}, rope=1),
    "gemma": Family("GemmaForCausalLM", {**_BASE, "head_dim": 16}),
    "gemma2": Family("Gemma2ForCausalLM", {**_GEMMA, "attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0}, (WINDOW, 0)),
    "gemma3": Family("Gemma3ForCausalLM", {**_GEMMA, "layer_types": ["sliding_attention", "full_attention"]}, (WINDOW, 0)),
    "phi": Family("PhiForCausalLM", {**_BASE, "partial_rotary_factor": 0.5}),
    "phi3": Family("Phi3ForCausalLM", {**_BASE, "sliding_window": WINDOW}, (WINDOW, WINDOW)),
    "gpt2": Family("GPT2LMHeadModel", {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 64, "n_positions": 256}, rope=0),
    "gpt-neox": Family("GPTNeoXForCausalLM", {**_BASE, "rotary_pct": 0.25}),
    "gpt-neox, one after the other": Family("GPTNeoXForCausalLM", {**_BASE, "use_parallel_residual": False}),
    "opt": Family("OPTForCausalLM", _OPT, rope=0),
    "opt, norm after": Family("OPTForCausalLM", {**_OPT, "word_embed_proj_dim": 16, "do_layer_norm_before": False}, rope=0),
    # without recipes of their own
    "granite": Family("GraniteForCausalLM", _BASE),
    "olmo2": Family("Olmo2ForCausalLM", _BASE),
    "starcoder2": Family("Starcoder2ForCausalLM", {**_BASE, "sliding_window": WINDOW}, (WINDOW, WINDOW)),
    "glm": Family("GlmForCausalLM", {**_BASE, "head_dim": 8}, rope=0),
    "rope of llama3": Family("LlamaForCausalLM", _rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                                                       original_max_position_embeddings=32)),
    "rope linear": Family("LlamaForCausalLM", _rope("linear", factor=2.0)),
    "rope yarn": Family("LlamaForCausalLM", _rope("yarn", factor=4.0, original_max_position_embeddings=32)),
    "rope dynamic": Family("LlamaForCausalLM", {**_rope("dynamic", factor=4.0), "max_position_embeddings": 32}, context=128,
                           note="dynamic positions are those of texts of 128 tokens"),
    "rope long": Family("Phi3ForCausalLM", {**_BASE, "rope_parameters": _PHI3, "original_max_position_embeddings": 64},
                        note="longrope positions are those of texts of 256 tokens"),
}


def _build(family: Family, folder: Path, **options: Any) -> driver.BuildResult:
    source = write(family.architecture, family.config, folder / "model")
    with mock.patch.object(driver, "export", cache.export):
        return driver.build(source, folder / "model.infc", profiles=PROFILES, tune=False, threads=1, context=family.context,
                            **options)


def _logits(lm: LLM, sequence: Any, tokens: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Of all tokens of a step."""
    out = np.zeros((len(tokens), lm.vocabulary), np.float32)
    lm.lm.step([(sequence, tokens.astype(np.int32), len(tokens))], out)
    return out


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    family = FAMILIES[name]
    built = _build(family, tmp_path)
    rng = np.random.default_rng(0)
    ids = rng.integers(3, 64, sum(CHUNKS) + DECODED)
    places = np.arange(len(ids))
    source = resolve(tmp_path / "model")
    exported = cache.export(source if family.context is None else driver._source(source.path, driver.BuildOptions(
        context=family.context)))
    want = exported.reference({"input_ids": ids, "position_ids": places, "logit_rows": places})["logits"]
    lm = LLM(tmp_path / "model.infc", threads=2)
    sequence, got, at = lm.lm.sequence(), [], 0
    for size in (*CHUNKS, *[1] * DECODED):
        got.append(_logits(lm, sequence, ids[at : at + size]))
        at += size
    scale = max(1.0, float(np.abs(want).max()))
    assert np.abs(np.concatenate(got) - want).max() <= PARITY * scale
    passes = {p["name"]: len(p["matches"]) for p in built.report["passes"]}
    assert passes["fuse_rope"] == family.rope
    assert passes["token_rows"] == 1
    assert any(family.note in note for note in built.report["notes"]) or not family.note
    state = Artifact((tmp_path / "model.infc").read_bytes()).section("STATE")
    assert state is not None
    layers = np.frombuffer(state[32:], "<u4").reshape(-1, 4)
    assert tuple(layers[:, 3]) == family.windows


@pytest.mark.parametrize("kind", ["bf16", "int8", "fp8"])
def test_caches_of_fewer_bits_are_near(kind: str, tmp_path: Path) -> None:
    family = FAMILIES["llama"]
    _build(family, tmp_path, kv_cache=kind)
    ids = np.random.default_rng(1).integers(3, 64, 40)
    places = np.arange(len(ids))
    want = cache.export(resolve(tmp_path / "model")).reference({"input_ids": ids, "position_ids": places, "logit_rows": places})
    lm = LLM(tmp_path / "model.infc")
    sequence = lm.lm.sequence()
    got = np.concatenate([_logits(lm, sequence, ids[i : i + 8]) for i in range(0, len(ids), 8)])
    off = np.linalg.norm(got - want["logits"]) / np.linalg.norm(want["logits"])
    assert off < {"bf16": 0.03, "int8": 0.03, "fp8": 0.15}[kind]
    assert off > 1e-5


@pytest.mark.parametrize(("name", "context"), [("llama", 200), ("gemma2", 200), ("mistral", 2000)])
def test_the_planned_cache_is_the_one_that_is_allotted(name: str, context: int, tmp_path: Path) -> None:
    built = _build(replace(FAMILIES[name], context=context), tmp_path)
    assert built.report["memory"]["cache"] == LLM(tmp_path / "model.infc", max_sequences=1).info["cache_bytes"]


def test_a_context_beyond_the_table_of_positions(tmp_path: Path) -> None:
    write("GPT2LMHeadModel", FAMILIES["gpt2"].config, tmp_path / "model")
    with pytest.raises(InfcError, match="E0207"):
        driver.build(tmp_path / "model", tmp_path / "model.infc", context=257)


def test_experts_are_refused_by_name(tmp_path: Path) -> None:
    write("MixtralForCausalLM", {**_BASE, "num_local_experts": 4}, tmp_path / "model")
    with pytest.raises(InfcError, match=r"E0302[^\0]*mixture of 4 experts"):
        driver.build(tmp_path / "model", tmp_path / "model.infc")


@pytest.mark.parametrize(("architecture", "config"), [
    ("BloomForCausalLM", {"hidden_size": 32, "n_layer": 2, "n_head": 4, "vocab_size": 64}),
    ("FalconForCausalLM", {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 64}),
    ("MambaForCausalLM", {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 4, "vocab_size": 64}),
])
def test_attention_of_their_own_is_refused_by_name(architecture: str, config: dict[str, Any], tmp_path: Path) -> None:
    write(architecture, config, tmp_path / "model")
    with pytest.raises(InfcError, match=f"E0308[^\0]*{architecture} does not compute attention through"):
        driver.build(tmp_path / "model", tmp_path / "model.infc")


def test_a_limit_of_memory(tmp_path: Path) -> None:
    with pytest.raises(InfcError, match="E0213"):
        _build(FAMILIES["llama"], tmp_path, memory_limit="20K")
    assert not (tmp_path / "model.infc").exists()


def test_options_of_a_cache_are_for_language_models(tmp_path: Path) -> None:
    model = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 48, "vocab_size": 64,
             "max_position_embeddings": 40}
    write("BertModel", model, tmp_path / "model")
    with pytest.raises(InfcError, match="E0212"):
        driver.build(tmp_path / "model", tmp_path / "model.infc", kv_cache="int8", tune=False)
