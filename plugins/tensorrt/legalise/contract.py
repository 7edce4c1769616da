"""What legalise() takes and gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import onnx_ir as ir


@dataclass(frozen=True)
class Request:
    """``precision`` is a key of target.PRECISIONS, ``sms`` the compute capabilities of the engine. ``ranges`` gives the least and
    largest value of activations by name, for int8 and fp8. ``mask`` names the [batch, seq] input that is 0 at padding, ``masked``
    the outputs that begin with these two dimensions (``masks.masked_outputs``). ``sparsity`` is "2:4" if weights must hold that
    pattern. ``dynamic``: dimensions stay named, the engine's profiles size them. ``capacity``: tokens that a language model's cache
    has room for."""

    precision: str = "f32"
    sms: tuple[int, ...] = ()
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    mask: str | None = None
    masked: tuple[str, ...] = ()
    sparsity: str = ""
    dynamic: bool = False
    capacity: int = 0
    log: Callable[[str], None] = lambda line: None


@dataclass(frozen=True)
class SparseWeight:
    """A weight and the 2:4 pattern: ``node`` reads it, ``axis`` is that of K in the constant. ``state`` is "eligible", "dense", or
    "wrong-axis" where the pattern lies along another axis; ``detail`` says more."""

    name: str
    node: str
    axis: int
    state: str
    detail: str


@dataclass
class Legalised:
    """``notes`` says, in sentences, what was changed that changes numbers, or left out. ``state``: inputs that the engine keeps
    between runs, which the model does not have (cache.py)."""

    model: ir.Model
    notes: list[str]
    weights: list[SparseWeight]
    state: tuple[str, ...] = ()
