"""Every family of text encoders with two layers of random weights, built and held against PyTorch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import infc
from infc.compiler import driver, profiles, samples
from infc.compiler.reference import compare
from infc.compiler.source import resolve
from tests.conftest import add_modules, add_tokenizer
from tests.models import cache
from tests.models.row import Row

PROFILES = ("batch=1,seq=16", "batch=3,seq=24")
PARITY = 2e-4  # largest accepted difference, relative where values are large
_BERT = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48, "vocab_size": 64,
         "max_position_embeddings": 40, "num_labels": 3}
_T5 = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "vocab_size": 64, "num_labels": 3,
       "relative_attention_num_buckets": 8, "relative_attention_max_distance": 20}
_HEADS = ("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering", "ForMaskedLM")


@dataclass(frozen=True)
class Family:
    """``sizes`` as in Row. ``fused`` counts operators of the base model's graph after the passes; all others of ``row.WATCHED``
    must be gone."""

    config: Mapping[str, Any]
    sizes: str
    fused: Mapping[str, int]
    base: str = "Model"
    heads: tuple[str, ...] = _HEADS
    sentence: bool = True


_PACKED = {"Linear": 8, "LayerNormalization": 5, "VarlenAttention": 2, "EmbeddingSum": 1}
_POOLED = {**_PACKED, "SegmentReduce": 1}
_DEBERTA = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 8, "share_att_key": True,
            "norm_rel_ebd": "layer_norm", "type_vocab_size": 0, "position_biased_input": False, "max_relative_positions": -1}

FAMILIES: dict[str, Family] = {
    "Bert": Family(_BERT, "packed", {**_POOLED, "Linear": 9}),
    "Roberta": Family(_BERT, "packed", {**_POOLED, "Linear": 9}),
    "XLMRoberta": Family(_BERT, "packed", {**_POOLED, "Linear": 9}),
    "Camembert": Family(_BERT, "packed", {**_POOLED, "Linear": 9}),
    "DistilBert": Family({**_BERT, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48}, "packed", _PACKED),
    "Albert": Family({**_BERT, "embedding_size": 16}, "packed", {**_POOLED, "Linear": 10}),
    "Electra": Family({**_BERT, "embedding_size": 16}, "packed", {**_PACKED, "Linear": 9}),
    "MPNet": Family(_BERT, "padded", {"Linear": 9, "LayerNormalization": 5, "Attention": 2, "EmbeddingSum": 1}),
    "DebertaV2": Family({**_BERT, **_DEBERTA}, "padded", {"Linear": 8, "LayerNormalization": 5, "Attention": 2}),
    "ModernBert": Family({**_BERT, "local_attention": 8, "global_attn_every_n_layers": 2, "pad_token_id": 0}, "padded",
                         {"Linear": 8, "LayerNormalization": 5, "Attention": 1, "PaddedAttention": 1, "RotaryEmbedding": 4,
                          "Gelu": 2}),
    "T5": Family(_T5, "padded", {"Linear": 8, "RMSNormalization": 5, "Attention": 2}, "EncoderModel", ("ForTokenClassification",)),
    "MT5": Family(_T5, "padded", {"Linear": 10, "RMSNormalization": 5, "Attention": 2}, "EncoderModel", ()),
    "CLIP": Family({**_BERT, "eos_token_id": 63, "projection_dim": 24}, "exact",
                   {"Linear": 8, "LayerNormalization": 5, "Attention": 2, "EmbeddingSum": 1}, "TextModel",
                   ("TextModelWithProjection",), False),
    "Siglip": Family({**_BERT, "projection_size": 24}, "exact",
                     {"Linear": 9, "LayerNormalization": 5, "PaddedAttention": 2, "EmbeddingSum": 1}, "TextModel", (), False),
}


def write(architecture: str, config: Mapping[str, Any], folder: Path, sentence: bool = False) -> Path:
    """A checkpoint with random weights, none of them zero, one or like another."""
    import torch
    import transformers

    cls = getattr(transformers, architecture)
    model = cls(cls.config_class(**config))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            drawn = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(1 + drawn / 4 if "norm" in name.lower() and name.endswith("weight") else drawn / 3)
    model.save_pretrained(folder)
    if sentence:
        add_tokenizer(folder)
        add_modules(folder, {"pooling_mode_mean_tokens": True})
    return folder


def measure(architecture: str, config: Mapping[str, Any], folder: Path, sentence: bool = False) -> Row:
    """Builds the model by the way of ``infc build`` and runs it beside PyTorch: full, padded, of mixed lengths."""
    if architecture.endswith("ForQuestionAnswering"):  # start and end: transformers takes no other number
        config = {**config, "num_labels": 2}
    source = resolve(write(architecture, config, folder / "model", sentence))
    exported = cache.export(source)
    with mock.patch.object(driver, "export", cache.export):
        built = driver.build(source.path, folder / "model.infc", profiles=PROFILES, tune=False, threads=1)
    engine = infc.Engine(folder / "model.infc", threads=2)
    row = Row(architecture, list(PROFILES), sentence)
    row.examine(exported)
    for profile in PROFILES:
        sizes = profiles.parse(profile).as_dict()
        for case in samples.cases(exported.interface, sizes, samples.tokenizer(source), trim=row.sizes != "exact"):
            for result in compare(engine.run(case.inputs), exported.reference(case.inputs), case.inputs, exported.interface):
                assert not result.note, f"{architecture}, {profile}, {case.name}: {result}"
                row.add(result)
    row.steps = [len(layers) for layers in built.report["layers"].values()]
    return row


def members() -> Iterator[tuple[str, Family, bool]]:
    """Each architecture of each family, and once more with pooling: (name, family, sentence)."""
    for name, family in FAMILIES.items():
        yield from ((name + head, family, False) for head in (family.base, *family.heads))
        if family.sentence:
            yield name + family.base, family, True
