"""Which recipe exports which architecture. Reading this imports no recipe and no torch."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from infc.compiler.errors import UsageError

if TYPE_CHECKING:
    from infc.compiler.source import Source
    from infc.models.recipe import Exportable

# architecture of config.json -> module of its recipe and what the model is for
ARCHITECTURES: dict[str, tuple[str, str]] = {
    "BertModel": ("infc.models.bert", "feature-extraction"),
    "BertForSequenceClassification": ("infc.models.bert", "text-classification"),
    "BertForTokenClassification": ("infc.models.bert", "token-classification"),
    "BertForMaskedLM": ("infc.models.bert", "fill-mask"),
    "BertForQuestionAnswering": ("infc.models.bert", "question-answering"),
}
# model_type -> architecture, for a config.json that names none
_DEFAULTS = {"bert": "BertModel"}


def architecture(config: Mapping[str, Any], where: str) -> str:
    """The architecture that config.json names. Raises UsageError E0106 if no recipe exports it."""
    listed = config.get("architectures") or [_DEFAULTS.get(str(config.get("model_type")), "")]
    name = str(listed[0] if isinstance(listed, list) else listed)
    if name not in ARCHITECTURES:
        close = difflib.get_close_matches(name, ARCHITECTURES, n=1)
        raise UsageError("E0106", f"architecture {name or repr(config.get('model_type'))} is not supported", where=where,
                         hint=(f"the nearest one that is: {close[0]}; " if close else "") +
                              "an ONNX file of any model can be built too: infc build MODEL.onnx")
    return name


def load(source: Source) -> Exportable:
    """The model in PyTorch, ready for export. Imports torch."""
    module, task = ARCHITECTURES[source.architecture]
    exportable: Exportable = importlib.import_module(module).load(source, "sentence-embedding" if source.sentence else task)
    return exportable
