"""What is asked of each product, and what became of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import onnx_ir as ir

from infc.compiler.errors import UsageError
from infc.passes.domain import DOMAIN
from infc.passes.quant.products import KEPT, find

PRECISIONS = ("f32", "bf16", "f16", "int8", "int8-static", "fp8", "int4")
METHODS = ("rtn", "gptq", "awq", "smoothquant", "bias")  # several are joined by +
BLOCKS = (32, 64, 128)


@dataclass(frozen=True)
class LayerChoice:
    """How one product is to be stored and computed.

    ``method`` joins by "+": how weights are rounded, ``rtn`` or ``gptq``; how channels share the work between activations and
    weights, ``smoothquant`` or ``awq``; and ``bias``, by which the mean of what rounding changes is taken off. ``group``:
    weights along K that share a scale, activations too, of int4 (0: 32) and int8 (0: a scale for each output channel and row);
    ``symmetric``: int4 weights have no zero point. ``act_order``: GPTQ takes the rows with the largest activations first.
    """

    precision: str = "f32"
    method: str = "rtn"
    group: int = 0
    symmetric: bool = False
    act_order: bool = False

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise UsageError("E0051", f"no precision is named '{self.precision}'", where="--precision",
                             hint=f"one of: {', '.join(PRECISIONS)}")
        unknown = [m for m in self.methods if m not in METHODS]
        if unknown or {"gptq", "rtn"} <= self.methods or {"awq", "smoothquant"} <= self.methods:
            raise UsageError("E0052", f"'{self.method}' is no method of quantisation", where="--method",
                             hint=f"names joined by +: {', '.join(METHODS)}; one of gptq and rtn, one of awq and smoothquant")
        if self.group and self.group not in BLOCKS:
            raise UsageError("E0053", f"{self.group} weights cannot share a scale", where="--group",
                             hint=f"one of: {', '.join(map(str, BLOCKS))}")

    @property
    def methods(self) -> frozenset[str]:
        return frozenset(self.method.split("+"))


@dataclass(frozen=True)
class Decision:
    """``actual`` is the precision that the product ``node`` has now; ``why`` says it where that is not what was ``requested``, and
    what was left out. ``error``: the change of the weights, as a part of them or of the products on calibration data (relative,
    squared)."""

    node: str
    requested: str
    actual: str
    why: str = ""
    method: str = ""
    error: float | None = None
    details: Mapping[str, Any] = field(default_factory=dict)

    def record(self) -> dict[str, Any]:
        """For reports."""
        return {k: v for k, v in asdict(self).items() if v not in ("", None, {})}


Plan = Mapping[str, LayerChoice]

# What measured best on a text encoder (docs/passes.md), and on a network of convolutions (docs/quantisation.md).
_METHODS = {"int8": "smoothquant+gptq+bias", "int8-static": "smoothquant+gptq+bias", "int4": "awq"}
_OF_CONVOLUTIONS = {"int8": "gptq+bias", "int8-static": "gptq+bias"}
# Of language models, whose rows hold numbers a hundred times as large as the rest: also how many weights share a scale.
_OF_LANGUAGE = {"int8": ("rtn", 64), "int4": ("awq+gptq", 0)}


def usual(precision: str, *, language: bool = False, sparse: bool = False) -> tuple[str, int]:
    """The method for matrices that measured best, and how many weights share a scale. ``sparse``: weights may become 2:4, and no
    kernel skips zeros of bytes in groups."""
    found = _METHODS.get(precision, "rtn"), 0
    return _OF_LANGUAGE.get(precision, found) if language and not (sparse and precision == "int8") else found


def default_plan(model: ir.Model, precision: str, method: str = "", *, sparse: bool = False,
                 **settings: Any) -> dict[str, LayerChoice]:
    """The same for every product that has constant weights, stored ones too; ``method`` and ``settings`` as LayerChoice's, of what
    is not given ``usual``. Raises UsageError E0051 to E0053 for a precision, method or group that there is not."""
    language = any(node.op_type == "CachedAttention" and node.domain == DOMAIN for node in model.graph)
    best, group = usual(precision, language=language, sparse=sparse)
    choice = LayerChoice(precision, method or best, **{"group": group, **settings})
    of_convolutions = replace(choice, method=method or _OF_CONVOLUTIONS.get(precision, "rtn"))
    found, others = find(model)
    return ({p.name: of_convolutions if p.conv else choice for p in found}
            | dict.fromkeys((n for n, why in others.items() if why == KEPT), choice))
