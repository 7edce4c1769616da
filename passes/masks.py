"""Proves that a value is the padding mask of a graph input ``[batch, seq]``, by evaluating how it is made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from infc.passes.evaluate import Array, Unknown, cut, evaluate
from infc.passes.graph import constant, dims, opset

_SIZES = ((2, 5), (3, 7), (1, 4), (4, 2))
_TYPES = (ir.DataType.INT64, ir.DataType.INT32, ir.DataType.BOOL, ir.DataType.FLOAT, ir.DataType.INT8, ir.DataType.UINT8)
_LONGEST = 4096  # of the sequences that are tried
_NO_LENGTH = 1 << 20  # numbers from here on stand for an open end
MASKED = -1e4  # an additive mask is at most this where a key is masked

Judge = Callable[[Array, Array], bool]


def hides_padding(found: Array, mask: Array) -> bool:
    """Whether ``found``, broadcast to ``[B,H,Sq,Sk]``, lets every query see exactly the keys whose mask is not zero."""
    batch, seq = mask.shape
    try:
        full = np.broadcast_to(found, (batch, *found.shape[-3:-2], seq, seq) if found.ndim > 2 else (batch, seq, seq))
    except ValueError:
        return False
    keys = np.broadcast_to(mask.reshape(batch, *(1,) * (full.ndim - 2), seq) != 0, full.shape)
    if found.dtype == np.bool_:
        return bool((full == keys).all())
    return bool((full[keys] == 0).all() and (full[~keys] <= MASKED).all())


def weighs_positions(found: Array, mask: Array) -> bool:
    """Whether ``found``, ``[B,S,1 or N]``, is 1 where the mask is not zero and 0 elsewhere."""
    wanted = (mask != 0)[..., None]
    return found.ndim == 3 and found.shape[:2] == mask.shape and bool((found == wanted).all())


def marks_padding(found: Array, mask: Array) -> bool:
    """Whether ``found``, ``[B,S,1 or N]`` bool, is true where the mask is zero and false elsewhere."""
    return found.ndim == 3 and found.shape[:2] == mask.shape and bool((found == (mask == 0)[..., None]).all())


@dataclass
class _Verdict:
    mask: ir.Value | None
    reason: str


class MaskProver:
    """Remembers verdicts by value, as one mask serves every layer."""

    def __init__(self, model: ir.Model) -> None:
        self._opset = opset(model)
        self._inputs = set(model.graph.inputs)
        self._known: dict[tuple[ir.Value, str], _Verdict] = {}

    def prove(
        self, value: ir.Value, judge: Judge, form: str = "", view: Callable[[Array], Array] = lambda x: x
    ) -> tuple[ir.Value | None, str]:
        """The graph input of which ``view(value)`` satisfies ``judge``, or None and why there is none. ``form`` names judge and
        view."""
        key = (value, f"{judge.__name__} {form}")
        if key not in self._known:
            try:
                mask, reason = self._decide(value, judge, view)
            except Unknown as error:
                mask, reason = None, str(error)
            self._known[key] = _Verdict(mask, reason)
        verdict = self._known[key]
        return verdict.mask, verdict.reason

    def hides_nothing(self, value: ir.Value, view: Callable[[Array], Array] = lambda x: x) -> bool:
        """Whether ``view(value)`` depends on sizes alone and is true or 0 everywhere, as exporters write for a model without a
        mask."""
        try:
            nodes = cut(value, lambda candidate: False)
            names = {d for n in nodes if n.op_type == "Shape" for d in dims(n.inputs[0]) or () if isinstance(d, str)}
            sizes = [dict.fromkeys(names, 1), *({**dict.fromkeys(names, 1), n: s} for n in names for s in (2, 5, _beyond(nodes)))]
            found = [view(evaluate(nodes, value, {}, symbols, self._opset)) for symbols in sizes]
        except Unknown:
            return False
        return all(bool(f.all()) if f.dtype == np.bool_ else not f.any() for f in found)

    def _decide(self, value: ir.Value, judge: Judge, view: Callable[[Array], Array]) -> tuple[ir.Value | None, str]:
        used: set[ir.Value] = set()

        def stop(candidate: ir.Value) -> bool:
            if candidate in self._inputs:
                used.add(candidate)
            return candidate in self._inputs

        nodes = cut(value, stop)
        if len(used) != 1:
            return None, f"it depends on {len(used)} graph inputs: {', '.join(sorted(v.name or '' for v in used)) or 'none'}"
        mask = used.pop()
        shape = dims(mask)
        if shape is None or len(shape) != 2 or mask.dtype not in _TYPES:
            return None, f"{mask.name} is not [batch, seq] of integers, bool or float"
        for sample, symbols in _samples(shape, _beyond(nodes)):
            feed = {mask: sample.astype(mask.dtype.numpy())}
            if not judge(view(evaluate(nodes, value, feed, symbols, self._opset)), sample):
                return None, f"it is not the padding mask of {mask.name}"
        return mask, ""


def _beyond(nodes: list[ir.Node]) -> int:
    """A length past every whole number in the nodes, which may be how far a window of local attention reaches. Raises Unknown if
    that is too long to try."""
    tensors = [t for n in nodes for v in n.inputs if (t := constant(v)) is not None and t.size <= 4 and t.dtype.is_integer()]
    numbers = [abs(int(x)) for t in tensors for x in t.numpy().reshape(-1)]
    longest = max((n for n in numbers if n < _NO_LENGTH), default=0)
    if longest > _LONGEST:
        raise Unknown(f"it is made with {longest}, which may be the reach of a window")
    return 2 + longest


def _samples(shape: tuple[int | str | None, ...], longest: int) -> list[tuple[Array, dict[str, int]]]:
    """Masks with holes, padded on either side and full, never with an empty row, and the sizes they give symbolic dimensions."""
    random = np.random.default_rng(0)
    out = []
    for sizes in (*_SIZES, (1, longest)):
        batch, seq = (d if isinstance(d, int) else size for d, size in zip(shape, sizes, strict=True))
        symbols = {d: size for d, size in zip(shape, (batch, seq), strict=True) if isinstance(d, str)}
        lengths = random.integers(1, seq + 1, batch)[:, None]
        holes = (random.random((batch, seq)) < 0.5).astype(np.int64)
        holes[np.arange(batch), random.integers(0, seq, batch)] = 1
        right, left = (np.arange(seq) < lengths).astype(np.int64), (np.arange(seq) >= seq - lengths).astype(np.int64)
        out += [(m, symbols) for m in (holes, right, left, np.ones((batch, seq), np.int64))]
    return out
