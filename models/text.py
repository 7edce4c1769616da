"""Text encoders: token ids and a mask in, vectors or scores out. A family says in a few fields what is special about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from infc.compiler.errors import ExportError
from infc.compiler.interface import Interface, TensorSpec
from infc.compiler.source import Source
from infc.models.recipe import Exportable, Tensors, exportable, load_model, model_class, tensors_of
from infc.models.sentence import SentencePooling


def positions(config: Any) -> int | None:
    """The longest text of a model with a table of positions."""
    return int(config.max_position_embeddings)


def positions_after_padding(config: Any) -> int | None:
    """The same where positions count from ``pad_token_id + 1``, as RoBERTa's do."""
    return int(config.max_position_embeddings) - int(config.pad_token_id) - 1


def boundless(config: Any) -> int | None:
    """For positions that are relative and clipped."""
    return None


def wide_mask(given: Tensors, config: Any) -> dict[str, Any]:
    """transformers takes a mask of four dimensions as it is; from one of two it would compute the same by index arithmetic."""
    return {**given, "attention_mask": attended(given, config)}


def attended(given: Tensors, config: Any, sees: torch.Tensor | None = None) -> torch.Tensor:
    """[batch, 1, seq, seq], true where a query reads a key, as the model's attention takes it. ``sees`` [seq, seq] is what a query
    may read besides padding."""
    length = given["input_ids"].shape[1]
    mask = given["attention_mask"].to(torch.bool)[:, None, None, :].expand(-1, -1, length, -1)
    mask = mask if sees is None else mask & sees
    return mask if config._attn_implementation == "sdpa" else torch.where(mask, 0.0, torch.finfo(torch.float32).min)


def distances(given: Tensors) -> torch.Tensor:
    """[seq, seq]: how far each query (row) is behind each key (column)."""
    places = torch.arange(given["input_ids"].shape[1])
    return places - places[:, None]


@dataclass(frozen=True)
class TextFamily:
    """``limit(config)`` is the longest text, None if any length will do; ``token_types`` says that the model tells segments apart;
    ``adapt(inputs, config)`` are the arguments to export with.

    ``sentence`` are the options of loading, and ``base`` the class, of the model below a sentence embedding; ``refuses`` holds
    settings of config.json, any value but the one given, with which the export would be wrong, and why.
    """

    limit: Callable[[Any], int | None] = positions
    token_types: bool = False
    adapt: Callable[[Tensors, Any], dict[str, Any]] = wide_mask
    sentence: Mapping[str, Any] = field(default_factory=dict)
    base: str = ""
    refuses: Mapping[str, tuple[Any, str]] = field(default_factory=dict)

    def load(self, source: Source, task: str) -> Exportable:
        """Raises ExportError E0302 for what ``refuses`` names."""
        config = source.config or {}
        for name, (wanted, why) in self.refuses.items():
            if config.get(name, wanted) != wanted:
                raise ExportError("E0302", f"{source.architecture} {why} is not supported", where=f"{name} in {source.path}")
        model = load_model(source, model_class(source, self.base), **(self.sentence if source.sentence else {}))
        return exportable(model, self.interface(model.config, source, task), adapt=lambda given: self.adapt(given, model.config),
                          outputs=chooser(source))

    def interface(self, config: Any, source: Source, task: str) -> Interface:
        kinds = int(getattr(config, "type_vocab_size", 0) or 0) if self.token_types else 0
        limit = self.limit(config)
        length = source.sentence.max_length if source.sentence else None
        shorter = length if length and (limit is None or length < limit) else None
        return Interface(text_inputs(int(config.vocab_size), kinds), (), task, "attention_mask", {"seq": limit} if limit else {},
                         {"seq": shorter} if shorter else {})


def text_inputs(vocabulary: int, kinds: int = 0, batch: str = "batch") -> tuple[TensorSpec, ...]:
    """Token ids, their mask, and token types where there are ``kinds``."""
    dims = (batch, "seq")
    types = (TensorSpec("token_type_ids", "i64", dims, fill=0, range=(0, kinds - 1)),) if kinds else ()
    return (TensorSpec("input_ids", "i64", dims, range=(0, vocabulary - 1)),
            TensorSpec("attention_mask", "i64", dims, fill=1, range=(0, 1)), *types)


def chooser(source: Source) -> Callable[[Any, Tensors], Tensors]:
    """What comes out: the model's tensors; of a sentence-transformers directory the token vectors and the sentence's."""
    if source.sentence is None:
        return tensors_of
    pooling = SentencePooling(source.sentence)

    def choose(found: Any, given: Tensors) -> Tensors:
        hidden = found.last_hidden_state
        return {"last_hidden_state": hidden, "sentence_embedding": pooling(hidden, given["attention_mask"])}

    return choose
