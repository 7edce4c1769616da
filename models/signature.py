"""An architecture without a recipe: its inputs are known by the names that ``forward`` takes, its outputs from what it returns."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch

from infc.compiler.errors import ExportError, InfcError
from infc.compiler.interface import Interface, TensorSpec
from infc.compiler.source import Source
from infc.models import registry
from infc.models.image import image_inputs
from infc.models.recipe import Exportable, exportable, load_model, model_class
from infc.models.text import chooser, text_inputs

_BINS = 80  # where config.json does not say
_SAMPLES = 4000  # enough for some frames
_CANNOT_RUN = "INFC-E0208"


def load(source: Source, task: str) -> Exportable:
    """Raises UsageError E0106 for an architecture that is no model of transformers, ExportError E0306 for one whose inputs are not
    among the known names or that does not run on them."""
    cls = model_class(source)
    if cls is None:
        raise registry.unknown(source.architecture, str(source.model_path))
    model = load_model(source, cls)
    inputs = tuple(_inputs(source, model))
    if not inputs:
        raise _fails(source, f"none of its inputs {', '.join(_parameters(model))} is known to infc")
    mask = next((t.name for t in inputs if t.name == "attention_mask"), None)
    limit = getattr(model.config, "max_position_embeddings", None) if mask else None
    interface = Interface(inputs, (), task, mask, {"seq": limit} if isinstance(limit, int) and limit > 0 else {},
                          examples={"samples": _SAMPLES})
    try:
        return exportable(model, interface, outputs=chooser(source))
    except Exception as error:  # whatever a model raises that wants other inputs
        if isinstance(error, InfcError) and error.code != _CANNOT_RUN:
            raise
        cause = error.__cause__ or error
        first = next((line for line in str(cause).splitlines() if line.strip()), "")
        raise _fails(source, f"it does not run on {', '.join(t.name for t in inputs)}: {type(cause).__name__}: {first}") from error


def _fails(source: Source, reason: str) -> ExportError:
    return registry.untried(source.architecture, reason, str(source.model_path))


def _parameters(model: torch.nn.Module) -> list[str]:
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [p.name for p in inspect.signature(model.forward).parameters.values() if p.kind in kinds]


def _inputs(source: Source, model: Any) -> Iterator[TensorSpec]:
    taken = _parameters(model)
    for name, specs in _KNOWN.items():
        if name in taken:
            yield from (t for t in specs(source, model.config) if t.name in taken)


def _text(source: Source, config: Any) -> tuple[TensorSpec, ...]:
    inner = getattr(config, "text_config", config)
    return text_inputs(int(inner.vocab_size), int(getattr(inner, "type_vocab_size", 0) or 0))


def _samples(source: Source, config: Any) -> tuple[TensorSpec, ...]:
    return (TensorSpec("input_values", "f32", ("batch", "samples")),)


def _features(source: Source, config: Any) -> tuple[TensorSpec, ...]:
    return (TensorSpec("input_features", "f32", ("batch", int(getattr(config, "num_mel_bins", _BINS)), "frames")),)


# a parameter of forward -> the inputs that come with it
_KNOWN: dict[str, Callable[[Source, Any], tuple[TensorSpec, ...]]] = {
    "input_ids": _text,
    "pixel_values": image_inputs,
    "input_values": _samples,
    "input_features": _features,
}
