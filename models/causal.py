"""Language models that write on: tokens in, logits of the next ones out. One attention node a layer, which is where a cache is.

Each token is exported as a sequence of one, [tokens, 1, N]: all but attention is about one token, and attention is a node of its
own, infc.CachedAttention, which reads the rows as they follow each other and knows of groups of heads, windows and soft-capping.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from transformers import AttentionInterface
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from infc.compiler.errors import ExportError, UsageError
from infc.compiler.interface import Interface, TensorSpec
from infc.compiler.reference import cannot_run
from infc.compiler.source import Source
from infc.models.recipe import Arrays, Exportable, load_model, model_class

CONTEXT = 4096  # tokens of a sequence that caches are made for, where the model takes as many and nobody says otherwise
_ATTENTION = "infc"  # transformers makes no mask for an implementation that it has no maker of masks for
_UNKNOWN = ("s_aux", "head_mask", "position_bias")  # of attention: arguments that change what it computes
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")  # of config.json
_served: set[int] = set()  # layers that asked for attention since it was last cleared
_BY_LENGTH = ("dynamic", "longrope")  # kinds of rope whose frequencies depend on how long the text is


def load(source: Source, task: str) -> Exportable:
    """Raises ExportError E0302 for a mixture of experts, E0308 for a model with another attention, UsageError E0207 for a context
    beyond a table of positions."""
    _refuse_experts(source)
    model = load_model(source, model_class(source))
    config = model.config.get_text_config()
    limit, table = _limit(model, config)
    context = source.context or min(limit, CONTEXT)
    if table and context > limit:
        raise UsageError("E0207", f"a context of {context} is more than the model's table of {limit} positions",
                         where=f"--context {context}", hint=f"use {limit} or less")
    notes = [f"a context of {context} is more than the {limit} that the model was made for"] if context > limit else []
    notes += sorted({_settle_rope(module, context) for module in _ropes(model)} - {""})
    _require_interface(model, source)
    reference = _reference(model)
    vocabulary = reference({"input_ids": np.zeros(1, np.int64), "position_ids": np.zeros(1, np.int64),
                            "logit_rows": np.zeros(1, np.int64)})["logits"].shape[-1]
    places = (0, context - 1)
    inputs = (TensorSpec("input_ids", "i64", ("tokens",), range=(0, int(config.vocab_size) - 1)),
              TensorSpec("position_ids", "i64", ("tokens",), range=places),
              TensorSpec("logit_rows", "i64", ("rows",), range=places))
    interface = Interface(inputs, (TensorSpec("logits", "f32", ("rows", vocabulary)),), task, limits=dict.fromkeys(
        ("tokens", "rows"), context), indices={"position_ids": "tokens", "logit_rows": "tokens"}, examples={"rows": 3},
        context=context, notes=tuple(notes))
    return Exportable(_Rows(model), interface, reference)


def _require_interface(model: Any, source: Source) -> None:
    """Raises ExportError E0308 for a model that computes attention by itself, or has none: nothing would keep its state."""
    _served.clear()
    one = torch.zeros(1, dtype=torch.int64)
    with torch.no_grad(), suppress(Exception):  # what else is wrong with it the export says
        _Rows(model)(one, one, one)
    if not _served:
        raise ExportError("E0308", f"{source.architecture} does not compute attention through transformers' attention interface",
                          hint="this model's attention is none that infc's cache serves")


def _refuse_experts(source: Source) -> None:
    """Raises ExportError E0302 for a mixture of experts: which of them compute depends on the token."""
    for name in _EXPERTS:
        count = (source.config or {}).get(name)
        if isinstance(count, int) and count > 1:
            raise ExportError("E0302", f"{source.architecture} is a mixture of {count} experts, which is not supported",
                              where=f"{name} in {source.path}", hint="build a dense model")


class _Rows(torch.nn.Module):
    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        """[tokens], [tokens] and [rows] -> [rows, vocabulary]."""
        input_ids, position_ids, logit_rows = tensors
        with _implementation(self.model, _ATTENTION):
            found = self.model(input_ids=input_ids[:, None], position_ids=position_ids[:, None], use_cache=False)
        return torch.index_select(found.logits, 0, logit_rows)[:, 0]


class _implementation:
    """Has a model compute attention in another way meanwhile."""

    def __init__(self, model: Any, name: str) -> None:
        self._model, self._name, self._before = model, name, model.config._attn_implementation

    def __enter__(self) -> None:
        self._model.set_attn_implementation(self._name)

    def __exit__(self, *_: object) -> None:
        self._model.set_attn_implementation(self._before)


def _reference(model: Any) -> Any:
    """Runs the model the way its users do, and in the one implementation that knows soft-capping."""
    model.set_attn_implementation("eager")
    keeps = "logits_to_keep" in inspect.signature(model.forward).parameters

    def run(arrays: Arrays) -> Arrays:
        ids, places, rows = (torch.from_numpy(np.array(arrays[n])) for n in ("input_ids", "position_ids", "logit_rows"))
        try:
            with torch.no_grad():
                found = model(input_ids=ids[None], position_ids=places[None], use_cache=False,
                              **({"logits_to_keep": rows} if keeps else {})).logits[0]
        except Exception as error:  # of the model's own code: any
            raise cannot_run(arrays, error) from error
        return {"logits": (found if keeps else found[rows]).numpy()}

    return run


def _attention(module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: Any = None,
               scaling: float | None = None, dropout: float = 0.0, sliding_window: int | None = None,
               softcap: float | None = None, is_causal: bool | None = None, **more: Any) -> tuple[torch.Tensor, None]:
    """What transformers calls in a layer, of [tokens, heads, 1, d]; gives [tokens, 1, heads, d]."""
    _served.add(id(module))
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    unknown = [name for name in _UNKNOWN if more.get(name) is not None]
    if unknown or attention_mask is not None or not causal:
        raise ExportError("E0308", f"{type(module).__name__} computes attention with "
                          f"{unknown[0] if unknown else 'a mask of its own' if causal else 'tokens that come later'}",
                          hint="this model's attention is none that infc's cache serves")
    tokens, heads, one, size = query.shape
    made = torch.onnx.ops.symbolic(
        "infc::CachedAttention", [_flat(t) for t in (query, key, value)],
        {"num_heads": heads, "kv_num_heads": key.shape[1], "scale": float(size**-0.5 if scaling is None else scaling),
         "softcap": float(softcap or 0.0), "window": int(sliding_window or 0), "layer": int(module.layer_idx), "interleaved": 0},
        dtype=query.dtype, shape=(tokens, one, heads * value.shape[-1]), version=1)
    return made.reshape(tokens, one, heads, value.shape[-1]), None


def _flat(x: torch.Tensor) -> torch.Tensor:
    """[tokens, heads, 1, d] as [tokens, 1, heads * d]."""
    return x.transpose(1, 2).reshape(x.shape[0], 1, -1)


AttentionInterface.register(_ATTENTION, _attention)


def _ropes(model: torch.nn.Module) -> Iterator[Any]:
    return (m for m in model.modules() if any(name.endswith("inv_freq") for name, _ in m.named_buffers(recurse=False)))


def _limit(model: torch.nn.Module, config: Any) -> tuple[int, bool]:
    """The longest text, and whether a table of positions ends there."""
    limit = int(getattr(config, "max_position_embeddings", 0) or 0)
    rotary = any(True for _ in _ropes(model))
    return limit or CONTEXT, bool(limit) and not rotary


def _settle_rope(module: Any, context: int) -> str:
    """Gives a rope whose frequencies depend on the length those of the context, and says so. The model itself changes them from one
    text to the next, which keys that lie in a cache cannot follow."""
    kinds = module.rope_type if isinstance(module.rope_type, dict) else {"": module.rope_type}
    told = ""
    for layer, kind in kinds.items():
        if kind not in _BY_LENGTH:
            continue
        prefix = f"{layer}_" if layer else ""
        which = {"layer_type": layer} if layer else {}
        frequencies, scaling = ROPE_INIT_FUNCTIONS[kind](module.config, None, seq_len=context, **which)
        setattr(module, f"{prefix}inv_freq", torch.nn.Buffer(frequencies, persistent=False))
        setattr(module, f"{prefix}attention_scaling", scaling)
        told = f"{kind} positions are those of texts of {context} tokens, the build's context"
        if layer:
            module.rope_type[layer] = "default"
        else:
            module.rope_type = "default"
    return told
