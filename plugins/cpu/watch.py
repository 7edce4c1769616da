"""Where a program's quantised layers can be held against the ranges of calibration: at the steps that quantise what they read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from infc.compiler.artifact.watch import Place
from infc.compiler.target import Watched
from infc.plugins.cpu.access import is_row_local, roles
from infc.plugins.cpu.values import Buffer, Ref, Step

_PRODUCTS = ("gemm_i8", "gemm_grouped", "conv_i8", "depthwise_i8")
_QUANTISERS = ("quantize", "quantize_rows")
_ENDS = (0.5, 254.5)  # a byte at the end of its range may have lost what lay beyond
_OPEN = (-1.0, 256.0)
_CROWDED = 0.01  # of calibration's values at an end: there the function before ends, such as Relu, and it tells nothing


def places(steps: Sequence[Step], watched: Mapping[str, Watched], program: int, first: int) -> list[tuple[Place, float]]:
    """Of one program, each with the part of calibration's values that it would have counted. ``watched`` by layer, whose order
    numbers them. Steps before ``first`` are not looked at.

    A layer is watched where its input is still f32, else in the bytes that the product before it wrote. Layers that read the same
    are counted once, for the first of them.
    """
    numbers = {name: number for number, name in enumerate(watched)}
    writers: dict[Buffer, int] = {}
    found: dict[int, tuple[Place, float]] = {}
    seen: set[Buffer] = set()
    for number, step in enumerate(steps):
        if step.op in _PRODUCTS and step.name in watched and step.inputs[0].buffer not in seen:
            seen.add(step.inputs[0].buffer)
            writer = writers.get(step.inputs[0].buffer, -1)
            at = writer if writer >= 0 and steps[writer].op in _QUANTISERS else number
            limits = _limits(steps[at], watched[step.name])
            if limits is not None and at >= first:
                low, high, share = limits
                found.setdefault(at, (Place(program, at, numbers[step.name], 0, _by_row(steps[at]), low, high), share))
        for ref in step.outputs:
            writers[ref.buffer] = number
    return list(found.values())


def _limits(step: Step, about: Watched) -> tuple[float, float, float] | None:
    """What is beyond in the step's own unit, and the part of calibration's values that was; None where nothing can be told."""
    if step.op in _QUANTISERS and _readable(step, "f32", ("ARENA", "INPUT")):
        return about.low - about.margin, about.high + about.margin, about.beyond
    if step.op in _QUANTISERS or not _readable(step, "u8", ("ARENA",)):
        return None
    (low, lower), (high, upper) = ((_OPEN[side], 0.0) if share > _CROWDED else (_ENDS[side], share)
                                   for side, share in enumerate((about.lower, about.upper)))
    return None if (low, high) == _OPEN else (low, high, lower + upper)


def _readable(step: Step, dtype: str, spaces: tuple[str, ...]) -> bool:
    ref: Ref = step.inputs[0]
    return ref.dtype == dtype and ref.buffer.space in spaces and not ref.packing


def _by_row(step: Step) -> bool:
    ref = step.inputs[0]
    role = roles(step.op, step.words)[0][0]
    return is_row_local(step.op, step.words, step.rows, role, ref.dims, ref.row_stride)
