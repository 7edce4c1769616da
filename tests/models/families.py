"""Every family of text encoders with two layers of random weights, built and held against PyTorch.

``python -m tests.models.families`` prints the table; with ``--all``, of all heads.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import onnx_ir as ir

import infc
from infc.compiler import driver, lowering, profiles, samples
from infc.compiler.options import BuildOptions
from infc.compiler.reference import compare
from infc.compiler.source import resolve
from tests.conftest import add_modules, add_tokenizer
from tests.models import cache

PROFILES = ("batch=1,seq=16", "batch=3,seq=24")
PARITY = 2e-4  # largest accepted difference, relative where values are large
_BERT = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48, "vocab_size": 64,
         "max_position_embeddings": 40, "num_labels": 3}
_T5 = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "vocab_size": 64, "num_labels": 3,
       "relative_attention_num_buckets": 8, "relative_attention_max_distance": 20}
_HEADS = ("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering", "ForMaskedLM")


@dataclass(frozen=True)
class Family:
    """``fused`` counts operators of the base model's graph after the passes; all others of ``WATCHED`` must be gone."""

    config: Mapping[str, Any]
    packed: bool
    fused: Mapping[str, int]
    base: str = "Model"
    heads: tuple[str, ...] = _HEADS
    sentence: bool = True


WATCHED = ("Linear", "LayerNormalization", "RMSNormalization", "VarlenAttention", "PaddedAttention", "Attention", "EmbeddingSum",
           "RotaryEmbedding", "Softmax", "Erf", "Tanh", "ReduceMean", "Gelu")
_PACKED = {"Linear": 8, "LayerNormalization": 5, "VarlenAttention": 2, "EmbeddingSum": 1}
_DEBERTA = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 8, "share_att_key": True,
            "norm_rel_ebd": "layer_norm", "type_vocab_size": 0, "position_biased_input": False, "max_relative_positions": -1}

FAMILIES: dict[str, Family] = {
    "Bert": Family(_BERT, True, {**_PACKED, "Linear": 9}),
    "Roberta": Family(_BERT, True, {**_PACKED, "Linear": 9}),
    "XLMRoberta": Family(_BERT, True, {**_PACKED, "Linear": 9}),
    "Camembert": Family(_BERT, True, {**_PACKED, "Linear": 9}),
    "DistilBert": Family({**_BERT, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48}, True, _PACKED),
    "Albert": Family({**_BERT, "embedding_size": 16}, True, {**_PACKED, "Linear": 10}),
    "Electra": Family({**_BERT, "embedding_size": 16}, True, {**_PACKED, "Linear": 9}),
    "MPNet": Family(_BERT, False, {"Linear": 9, "LayerNormalization": 5, "Attention": 2, "EmbeddingSum": 1}),
    "DebertaV2": Family({**_BERT, **_DEBERTA}, False, {"Linear": 8, "LayerNormalization": 5, "Attention": 2}),
    "ModernBert": Family({**_BERT, "local_attention": 8, "global_attn_every_n_layers": 2, "pad_token_id": 0}, False,
                         {"Linear": 8, "LayerNormalization": 5, "Attention": 1, "PaddedAttention": 1, "RotaryEmbedding": 4,
                          "Gelu": 2}),
    "T5": Family(_T5, False, {"Linear": 8, "RMSNormalization": 5, "Attention": 2}, "EncoderModel", ("ForTokenClassification",)),
    "MT5": Family(_T5, False, {"Linear": 10, "RMSNormalization": 5, "Attention": 2}, "EncoderModel", ()),
    "CLIP": Family({**_BERT, "eos_token_id": 63, "projection_dim": 24}, False,
                   {"Linear": 8, "LayerNormalization": 5, "Attention": 2, "EmbeddingSum": 1}, "TextModel",
                   ("TextModelWithProjection",), False),
    "Siglip": Family({**_BERT, "projection_size": 24}, False,
                     {"Linear": 9, "LayerNormalization": 5, "PaddedAttention": 2, "EmbeddingSum": 1}, "TextModel", (), False),
}


@dataclass
class Row:
    """A line of the table; ``largest`` is the largest difference over its tolerance's unit."""

    architecture: str
    sentence: bool
    packed: bool
    nodes: int
    steps: list[int]
    largest: float
    ops: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        name = self.architecture + (" + pooling" if self.sentence else "")
        steps = "/".join(map(str, self.steps))
        return f"{name:36} {'; '.join(PROFILES)}  {self.largest:8.1e}  {self.nodes:4} nodes -> {steps:7} steps  " \
               f"{'packed' if self.packed else 'exact sizes'}"


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
    nodes = exported.model.graph.num_nodes()
    with mock.patch.object(driver, "export", cache.export):
        result = driver.build(source.path, folder / "model.infc", profiles=PROFILES, tune=False, threads=1)
    engine = infc.Engine(folder / "model.infc", threads=2)
    optimised = exported.model.clone()
    lowering.optimise(type(exported)(optimised, exported.interface, exported.reference, exported.engine), BuildOptions.of({}))
    packed = bool(lowering.run_time_dims(optimised))
    largest = 0.0
    for profile in PROFILES:
        sizes = profiles.parse(profile).as_dict()
        for case in samples.cases(exported.interface, sizes, samples.tokenizer(source), trim=packed):
            for found in compare(engine.run(case.inputs), exported.reference(case.inputs), case.inputs, exported.interface):
                assert not found.note, f"{architecture}, {profile}, {case.name}: {found}"
                largest = max(largest, found.difference / max(1.0, found.tolerance * 1e4))
    steps = [len(layers) for layers in result.report["layers"].values()]
    return Row(architecture, sentence, packed, nodes, steps, largest, _counts(optimised))


def _counts(model: ir.Model) -> Counter[str]:
    return Counter(n.op_type for n in model.graph if n.op_type in WATCHED)


def table(every: bool) -> Iterator[Row]:
    for name, family in FAMILIES.items():
        wanted = [(name + family.base, False), *(((name + h, False) for h in family.heads) if every else ()),
                  *([(name + family.base, True)] if every and family.sentence else [])]
        for architecture, sentence in wanted:
            with tempfile.TemporaryDirectory() as folder:
                yield measure(architecture, family.config, Path(folder), sentence)


if __name__ == "__main__":
    for row in table("--all" in sys.argv):
        print(row, flush=True)
