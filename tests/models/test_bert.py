"""BERT: every parameter matters, all heads and poolings export, variants that would come out wrong are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from infc.compiler import samples
from infc.compiler.errors import ExportError
from infc.compiler.export import Exported, export
from infc.compiler.reference import OnnxReference, compare
from infc.compiler.source import resolve

_HEADS = {"BertForSequenceClassification": (["logits"], 3), "BertForTokenClassification": (["logits"], 3),
          "BertForMaskedLM": (["logits"], 3), "BertForQuestionAnswering": (["start_logits", "end_logits"], 2)}


def differs(exported: Exported, model: ir.Model) -> bool:
    graph = OnnxReference(model, threads=1)
    cases = samples.cases(exported.interface, samples.small_sizes(exported.interface))
    return any(not r.ok for c in cases for r in compare(graph.run(c.inputs), exported.reference(c.inputs), c.inputs,
                                                       exported.interface))


def weights(model: ir.Model) -> dict[str, np.ndarray]:
    return {n: v.const_value.numpy() for n, v in model.graph.initializers.items()
            if v.const_value is not None and v.const_value.dtype == ir.DataType.FLOAT and v.const_value.size > 1}


def test_zeroing_any_parameter_is_noticed(make_bert: Callable[..., Path]) -> None:
    exported = export(resolve(make_bert("BertModel")), verify=False)
    assert not differs(exported, exported.model)
    unnoticed = []
    for name, array in weights(exported.model).items():
        assert np.unique(array).size > array.size // 2, f"{name} is degenerate"
        model = exported.model.clone()
        model.graph.initializers[name].const_value = ir.tensor(np.zeros_like(array), name=name)
        if not differs(exported, model):
            unnoticed.append(name)
    # A bias of the keys adds the same to all scores of a query, and softmax does not depend on that.
    assert unnoticed == [f"model.encoder.layer.{i}.attention.self.key.bias" for i in range(2)]


def test_every_parameter_is_in_the_graph_unchanged(make_bert: Callable[..., Path]) -> None:
    folder = make_bert("BertModel")
    from safetensors.numpy import load_file

    def key(array: np.ndarray) -> bytes:
        return np.ascontiguousarray(array).tobytes()

    found = {key(a) for a in weights(export(resolve(folder), verify=False).model).values()}
    for name, array in load_file(folder / "model.safetensors").items():
        assert key(array) in found or key(array.T) in found, name


@pytest.mark.parametrize("architecture", sorted(_HEADS))
def test_heads(make_bert: Callable[..., Path], architecture: str) -> None:
    outputs, labels = _HEADS[architecture]
    exported = export(resolve(make_bert(architecture, num_hidden_layers=1, num_labels=labels)))
    assert [t.name for t in exported.interface.outputs] == outputs


def test_poolings_match_sentence_transformers(make_bert: Callable[..., Path]) -> None:
    flags = ("pooling_mode_cls_token", "pooling_mode_max_tokens", "pooling_mode_mean_tokens")
    exported = export(resolve(make_bert(pooling=dict.fromkeys(flags, True), normalize=False, num_hidden_layers=1)))
    case = next(c for c in samples.cases(exported.interface, {"batch": 3, "seq": 10}) if c.name == "mixed lengths")
    found = exported.reference(case.inputs)
    hidden, mask = found["last_hidden_state"], case.inputs["attention_mask"]
    rows = [h[m != 0] for h, m in zip(hidden, mask, strict=True)]
    expected = np.stack([np.concatenate([h[0], r.max(0), r.mean(0)]) for h, r in zip(hidden, rows, strict=True)])
    np.testing.assert_allclose(found["sentence_embedding"], expected, atol=1e-5)


@pytest.mark.parametrize("change", [{"is_decoder": True}, {"position_embedding_type": "relative_key"}])
def test_variants_that_would_come_out_wrong_are_refused(make_bert: Callable[..., Path], change: dict[str, Any]) -> None:
    with pytest.raises(ExportError) as caught:
        export(resolve(make_bert("BertModel", **change)))
    assert caught.value.code == "INFC-E0302"
