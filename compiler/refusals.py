"""What infc refuses for good, by reason: the short list that docs/operators.md prints."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import onnx_ir as ir

from infc.compiler.artifact.layout import MAX_RANK
from infc.compiler.errors import UnsupportedError

TRAINING_DOMAIN = "ai.onnx.preview.training"


@dataclass(frozen=True)
class Reason:
    """``operators`` of ONNX that are refused wherever they are left after folding; ``hint`` says what to do instead."""

    code: str
    name: str
    hint: str
    operators: frozenset[str]


_TRAINING = frozenset({"Adagrad", "Adam", "Momentum", "Gradient", "Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike",
                       "RandomUniform", "RandomUniformLike"})
_STRINGS = frozenset({"StringNormalizer", "StringConcat", "StringSplit", "RegexFullMatch"})
_SEQUENCES = frozenset({"SequenceAt", "SequenceConstruct", "SequenceEmpty", "SequenceErase", "SequenceInsert", "SequenceLength",
                        "SequenceMap", "SplitToSequence", "ConcatFromSequence", "Optional", "OptionalGetElement",
                        "OptionalHasElement"})
TRAINING = Reason("E0410", "training", "export the model for inference, without random numbers", _TRAINING)
STRINGS = Reason("E0411", "strings", "do what is done with text outside of the model", _STRINGS)
SEQUENCES = Reason("E0412", "sequences and optionals", "export the model with tensors alone", _SEQUENCES)
IMAGES = Reason("E0413", "image decoding", "decode images outside of the model", frozenset({"ImageDecoder"}))
SHAPES = Reason("E0414", "data-dependent output shapes", "cut the model before this operator and do the rest outside",
                frozenset({"NonZero", "Unique", "Compress", "NonMaxSuppression"}))
REASONS = (TRAINING, STRINGS, SEQUENCES, IMAGES, SHAPES)

_BY_OPERATOR = {operator: reason for reason in REASONS for operator in reason.operators}
_TRAINS: dict[str, Callable[[ir.Node], bool]] = {
    "BatchNormalization": lambda node: bool(node.attributes.get_int("training_mode", 0)),
    "Dropout": lambda node: len(node.inputs) > 2 and node.inputs[2] is not None,  # what is known to be false has been folded
}


def refuse(model: ir.Model) -> None:
    """Raises UnsupportedError E0410 to E0414, naming the node, for what no target takes, and E0416 for an input or output of more
    dimensions than an artifact can tell of."""
    for value in (*model.graph.inputs, *model.graph.outputs):
        check_type(value)
        if value.shape is not None and len(value.shape) > MAX_RANK:
            raise UnsupportedError("E0416", f"it has {len(value.shape)} dimensions, and infc takes at most {MAX_RANK}",
                                   where=f"'{value.name}'", hint="join some of its dimensions with Reshape, and export again")
    for node in model.graph.all_nodes():
        reason = _reason(node)
        if reason is not None:
            raise refusal(reason, f"node '{node.name}' ({node.op_type})", node.op_type, node.name or "")


def refusal(reason: Reason, where: str, what: str, node: str = "") -> UnsupportedError:
    error = UnsupportedError("E0410", f"{what}: infc does not take {reason.name}", where=where, hint=reason.hint, node=node)
    error.code = f"INFC-{reason.code}"
    return error


def check_type(value: ir.Value) -> None:
    """Raises UnsupportedError E0411 and E0412 for an input or output that is no tensor of numbers."""
    if isinstance(value.type, ir.SequenceType | ir.OptionalType):
        raise refusal(SEQUENCES, f"'{value.name}'", str(value.type))
    if value.dtype == ir.DataType.STRING:
        raise refusal(STRINGS, f"'{value.name}'", "a tensor of strings")


def _reason(node: ir.Node) -> Reason | None:
    if node.domain == TRAINING_DOMAIN:
        return TRAINING
    if node.domain not in ("", "ai.onnx.ml"):
        return None
    if any(v is not None and v.dtype == ir.DataType.STRING for v in (*node.inputs, *node.outputs)):
        return STRINGS
    trains = _TRAINS.get(node.op_type)
    if trains is not None and trains(node):
        return TRAINING
    return _BY_OPERATOR.get(node.op_type)
