"""Which recipe exports which architecture. Reading this imports no recipe and no torch."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from infc.compiler.errors import ExportError, UsageError

if TYPE_CHECKING:
    from infc.compiler.source import Source
    from infc.models.recipe import Exportable

# how an architecture's name ends -> what the model is for
HEADS = {
    "Model": "feature-extraction",
    "EncoderModel": "feature-extraction",
    "TextModel": "feature-extraction",
    "TextModelWithProjection": "feature-extraction",
    "ForConditionalGeneration": "feature-extraction",
    "ForSequenceClassification": "text-classification",
    "ForTokenClassification": "token-classification",
    "ForMaskedLM": "fill-mask",
    "ForQuestionAnswering": "question-answering",
    "VisionModel": "image-feature-extraction",
    "VisionModelWithProjection": "image-feature-extraction",
    "ForImageClassification": "image-classification",
    "ForImageClassificationWithTeacher": "image-classification",
    "ForObjectDetection": "object-detection",
    "ForSemanticSegmentation": "image-segmentation",
    "ForCTC": "automatic-speech-recognition",
    "ForAudioClassification": "audio-classification",
    "ForCausalLM": "text-generation",
    "LMHeadModel": "text-generation",
}
_IMAGE = ("Model", "ForImageClassification")
_TEXT = ("Model", "ForSequenceClassification", "ForTokenClassification", "ForMaskedLM", "ForQuestionAnswering")

# (recipe, families by the beginning of the architecture's name, their heads)
_RECIPES: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
    ("bert", ("Bert",), _TEXT),
    ("roberta", ("Roberta", "XLMRoberta", "Camembert"), _TEXT),
    ("distilbert", ("DistilBert",), _TEXT),
    ("albert", ("Albert",), _TEXT),
    ("electra", ("Electra",), _TEXT),
    ("mpnet", ("MPNet",), _TEXT),
    ("deberta", ("DebertaV2",), _TEXT),
    ("modernbert", ("ModernBert",), _TEXT),
    ("t5", ("T5", "MT5", "UMT5"), ("EncoderModel", "Model", "ForConditionalGeneration", "ForTokenClassification")),
    ("clip_text", ("CLIP", "Siglip"), ("TextModel",)),
    ("clip_text", ("CLIP",), ("TextModelWithProjection",)),
    ("clip", ("CLIP", "Siglip"), ("Model",)),
    ("whisper", ("Whisper",), ("Model", "ForConditionalGeneration", "ForAudioClassification")),
    ("causal", ("Llama", "Mistral", "Qwen2", "Qwen3", "SmolLM3", "Gemma", "Gemma2", "Gemma3", "Phi", "Phi3", "GPTNeoX", "OPT"),
     ("ForCausalLM",)),
    ("causal", ("GPT2",), ("LMHeadModel",)),
    ("detr", ("Detr",), ("Model", "ForObjectDetection")),
    # by the names of what their forward takes
    ("signature", ("ViT", "DeiT", "Dinov2", "Swin", "ResNet", "ConvNext", "MobileNetV1", "MobileNetV2", "EfficientNet"), _IMAGE),
    ("signature", ("DeiT",), ("ForImageClassificationWithTeacher",)),
    ("signature", ("CLIP", "Siglip"), ("VisionModel", "ForImageClassification")),
    ("signature", ("CLIP",), ("VisionModelWithProjection",)),
    ("signature", ("Segformer",), (*_IMAGE, "ForSemanticSegmentation")),
    ("speech", ("Wav2Vec2", "Hubert"), ("Model", "ForCTC", "ForSequenceClassification")),
)

# architecture of config.json -> recipe and what the model is for
ARCHITECTURES: dict[str, tuple[str, str]] = {
    family + head: (recipe, HEADS[head]) for recipe, families, heads in _RECIPES for family in families for head in heads
}
# model_type -> architecture, for a config.json that names none
_DEFAULTS = {"bert": "BertModel"}


def architecture(config: Mapping[str, Any], where: str) -> str:
    """The architecture that config.json names. Raises UsageError E0106 if it names none."""
    listed = config.get("architectures") or [_DEFAULTS.get(str(config.get("model_type")), "")]
    name = listed[0] if isinstance(listed, list) else listed
    if not isinstance(name, str) or not name.isidentifier():
        raise unknown(str(name or ""), where)
    return name


def unknown(name: str, where: str) -> UsageError:
    close = difflib.get_close_matches(name, ARCHITECTURES, n=1)
    return UsageError("E0106", f"no recipe exports the architecture {name or '(none)'}", where=where,
                      hint=(f"the nearest that has one: {close[0]}; " if close else "") +
                      "docs/writing_recipes.md shows how to write one; an ONNX file of any model builds too: infc build MODEL.onnx")


def untried(name: str, reason: str, where: str) -> ExportError:
    """For an architecture without a recipe that is not exported by its signature alone."""
    return ExportError("E0306", f"there is no recipe for {name}, and by its forward signature {reason}", where=where,
                       hint="docs/writing_recipes.md shows how to write a recipe; or export it yourself: infc build MODEL.onnx")


def recipe_of(architecture: str) -> tuple[str, str]:
    """Its recipe, and what the model is for."""
    return ARCHITECTURES.get(architecture, ("causal", HEADS["ForCausalLM"]) if architecture.endswith("ForCausalLM") else
                             ("signature", ""))


def load(source: Source) -> Exportable:
    """The model in PyTorch, ready for export. Imports torch. An architecture without a recipe is tried as a language model if its
    name says so, else by what its ``forward`` takes."""
    recipe, task = recipe_of(source.architecture)
    module = importlib.import_module(f"infc.models.{recipe}")
    exportable: Exportable = module.load(source, "sentence-embedding" if source.sentence else task)
    return exportable
