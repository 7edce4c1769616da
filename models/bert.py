"""BERT: the base model, sentence embedding on top of it, and its heads."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from infc.compiler.errors import ExportError
from infc.compiler.interface import Interface, TensorSpec
from infc.compiler.source import Source
from infc.models.recipe import Arrays, Exportable, load_model
from infc.models.sentence import SentencePooling

_TOKENS = ("batch", "seq")


def load(source: Source, task: str) -> Exportable:
    """Raises ExportError E0302 for variants of BERT that this recipe would get wrong."""
    config = source.config or {}
    if config.get("is_decoder") or config.get("position_embedding_type", "absolute") != "absolute":
        raise ExportError("E0302", "BERT as a decoder or with relative positions is not supported", where=str(source.path))
    extra = {"add_pooling_layer": False} if task == "sentence-embedding" else {}
    model: Any = load_model(source, task, **extra)
    module = _Bert(model, SentencePooling(source.sentence) if source.sentence else None)
    interface = _interface(model.config, source, task)
    return Exportable(module, interface, lambda arrays: _reference(module, interface, arrays))


class _Bert(torch.nn.Module):
    def __init__(self, model: Any, pooling: SentencePooling | None) -> None:
        super().__init__()
        self.model = model
        self.pooling = pooling

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> tuple[Tensor, ...]:
        # transformers takes a mask of four dimensions as it is; from one of two it would compute the same by index arithmetic.
        length = input_ids.shape[1]
        mask = attention_mask.to(torch.bool)[:, None, None, :].expand(-1, -1, length, -1)
        return self.outputs(input_ids, attention_mask, token_type_ids, mask)

    def outputs(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor, model_mask: Tensor) -> tuple[Tensor, ...]:
        found = self.model(input_ids=input_ids, attention_mask=model_mask, token_type_ids=token_type_ids, return_dict=True)
        if self.pooling is not None:
            hidden = found.last_hidden_state
            return hidden, self.pooling(hidden, attention_mask)
        return tuple(found.values())


def _reference(module: _Bert, interface: Interface, arrays: Arrays) -> Arrays:
    """The model with the mask of two dimensions that its users give."""
    tensors = {t.name: torch.from_numpy(arrays[t.name]) for t in interface.inputs}
    with torch.no_grad():
        outputs = module.outputs(**tensors, model_mask=tensors["attention_mask"])
    return {t.name: o.numpy() for t, o in zip(interface.outputs, outputs, strict=True)}


def _interface(config: Any, source: Source, task: str) -> Interface:
    inputs = (TensorSpec("input_ids", "i64", _TOKENS, range=(0, config.vocab_size - 1)),
              TensorSpec("attention_mask", "i64", _TOKENS, fill=1, range=(0, 1)),
              TensorSpec("token_type_ids", "i64", _TOKENS, fill=0, range=(0, config.type_vocab_size - 1)))
    limit = int(config.max_position_embeddings)
    length = source.sentence.max_length if source.sentence else None
    return Interface(inputs, _outputs(config, source, task), task, "attention_mask", {"seq": limit},
                     {"seq": length} if length and length < limit else {})


def _outputs(config: Any, source: Source, task: str) -> tuple[TensorSpec, ...]:
    hidden = TensorSpec("last_hidden_state", "f32", (*_TOKENS, config.hidden_size))
    if source.sentence:
        width = config.hidden_size * len(source.sentence.pooling)
        return hidden, TensorSpec("sentence_embedding", "f32", ("batch", width))
    return {
        "feature-extraction": (hidden, TensorSpec("pooler_output", "f32", ("batch", config.hidden_size))),
        "text-classification": (TensorSpec("logits", "f32", ("batch", config.num_labels)),),
        "token-classification": (TensorSpec("logits", "f32", (*_TOKENS, config.num_labels)),),
        "fill-mask": (TensorSpec("logits", "f32", (*_TOKENS, config.vocab_size)),),
        "question-answering": (TensorSpec("start_logits", "f32", _TOKENS), TensorSpec("end_logits", "f32", _TOKENS)),
    }[task]
