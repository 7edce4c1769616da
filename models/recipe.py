"""What a recipe hands to the exporter, and the loading that recipes share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import transformers

from infc.compiler.errors import ExportError, UsageError
from infc.compiler.interface import Interface
from infc.compiler.source import Source

Arrays = dict[str, np.ndarray]

AUTO_CLASSES: Mapping[str, Any] = {
    "feature-extraction": transformers.AutoModel,
    "sentence-embedding": transformers.AutoModel,
    "text-classification": transformers.AutoModelForSequenceClassification,
    "token-classification": transformers.AutoModelForTokenClassification,
    "fill-mask": transformers.AutoModelForMaskedLM,
    "question-answering": transformers.AutoModelForQuestionAnswering,
}


@dataclass(frozen=True)
class Exportable:
    """``module.forward`` takes the interface's inputs in order and returns a tuple of its outputs in order.

    ``reference`` runs the model the way its users do, with none of the rewriting a recipe does for export.
    """

    module: torch.nn.Module
    interface: Interface
    reference: Callable[[Arrays], Arrays]


def load_model(source: Source, task: str, **options: Any) -> torch.nn.Module:
    """The model in float32 for inference. Weights load as data only; the directory's code runs only if the source trusts it.

    Raises UsageError E0107 for weights that cannot be read, ExportError E0301 for a checkpoint that lacks some of the model's.
    """
    transformers.utils.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    folder = str(source.model_path)
    try:
        model, info = AUTO_CLASSES[task].from_pretrained(
            source.model_path, trust_remote_code=source.trust_remote_code, local_files_only=True, dtype=torch.float32,
            attn_implementation="sdpa", output_loading_info=True, weights_only=True, ignore_mismatched_sizes=True, **options)
    except Exception as error:
        raise UsageError("E0107", f"the weights cannot be loaded: {_reason(error)}", where=folder,
                         hint="download the model again; weights that need code to be unpickled are not loaded") from error
    for name, found, wanted in sorted(info["mismatched_keys"]):
        raise UsageError("E0118", f"'{name}' is {list(found)} in the weights, {list(wanted)} by config.json", where=folder,
                         hint="config.json and weights are not of the same model: download both again")
    missing = sorted(info["missing_keys"])
    if missing:
        raise ExportError("E0301", f"the checkpoint lacks {len(missing)} of the model's weights, such as {missing[0]}",
                          where=folder, hint="they would be random; use a checkpoint made for this task")
    model.eval()
    loaded: torch.nn.Module = model.requires_grad_(False)
    return loaded


def _reason(error: Exception) -> str:
    """The first line of the message, and the next where that ends in a colon."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    first = " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]
    return first if " " in first else f"{type(error).__name__} {first}".strip()  # a KeyError says no more than the key
