"""Layer by layer: where two engines, or an engine and its model, part by more than their precision explains.

Against a model each layer is fed what the engine fed it: the graph is cut open at every value that the engine shows, so the error
of a layer is its own and not that of the layers before. Two engines are run on the same inputs; a layer's error is held against
that of the layers it reads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any, Protocol

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from infc.compiler.artifact.layout import DTYPE_SIZES, SPACES
from infc.compiler.artifact.program import Operand, Program
from infc.compiler.reference import OnnxReference

Array = NDArray[Any]
Values = Mapping[str, Sequence[Array]]  # what each layer wrote, by its name

# Relative error of a product of operands that are rounded so, four times what rounding of normal numbers gives.
EXPLAINED = {"f32": 1e-3, "f16": 5e-3, "bf16": 2e-2, "int8": 6e-2, "int8-static": 1e-1, "fp8": 2e-1, "int4": 4e-1}
_CARRIED = 3.0  # times the error of what a layer reads, that its result may have
_MOST_AXES = 4  # orders of axes are tried up to this rank
_ALIKE = 0.9  # relative error above which an array is no layout of another, but something else
_SUFFIX = "/engine"
_ROWS = 4  # from which on a factor for each channel explains little but factors
_MUCH = 0.5  # of an error, that such factors must take away to be believed
_FOUND = EXPLAINED["int8"]  # of what reads a value whose factors were found: they are as exact as it is
_ARENA = SPACES["ARENA"]


class Traced(Protocol):
    """As infc.runtime.Traced."""

    @property
    def name(self) -> str: ...
    @property
    def type(self) -> int: ...
    @property
    def value(self) -> Array: ...


@dataclass(frozen=True)
class Row:
    """One layer. ``error`` is |got - want| / |want| from the inputs to here; ``own`` that of this layer alone, None where it is not
    known; ``explained``: what the precision accounts for; ``inherited``: the largest error of what it reads."""

    layer: str
    precision: str
    error: float
    own: float | None
    explained: float
    inherited: float = 0.0

    @property
    def diverges(self) -> bool:
        """NaN does."""
        if self.own is not None:
            return not self.own <= self.explained
        return not self.error <= self.explained + _CARRIED * self.inherited


def first(rows: Iterable[Row]) -> Row | None:
    """The first layer that diverges."""
    return next((row for row in rows if row.diverges), None)


def error(got: Array, want: Array) -> float:
    """|got - want| / |want|, over all elements; infinite where only ``got`` has NaN or infinity."""
    x, y = got.astype(np.float64).ravel(), want.astype(np.float64).ravel()
    finite = np.isfinite(y)
    if not np.isfinite(x[finite]).all():
        return float("inf")
    apart, size = float(np.linalg.norm(x[finite] - y[finite])), float(np.linalg.norm(y[finite]))
    return apart / size if size else (0.0 if apart == 0 else float("inf"))


def written(traced: Iterable[Traced]) -> dict[str, list[Array]]:
    """The floats that each layer wrote, as float32, and its bytes as they are."""
    found: dict[str, list[Array]] = {}
    for item in traced:
        value = item.value
        dtype = ir.DataType(item.type)
        if dtype.is_floating_point() and dtype.itemsize == value.dtype.itemsize:
            value = value.view(dtype.numpy()).astype(np.float32)
        elif value.dtype not in (np.uint8, np.int8):
            continue
        found.setdefault(item.name, []).append(value)
    return found


def best(candidates: Sequence[Array], want: Array) -> Array | None:
    """The candidate that is ``want`` most nearly, in its shape and order of axes: kernels keep channels innermost. Bytes are taken
    for steps of a scale that is fitted. None if none has as many elements."""
    laid = [layout for c in candidates if c.size == want.size and c.size for layout in _layouts(_floats(c, want), want.shape)]
    return min(laid, key=lambda a: _order(error(a, want)), default=None)


def _order(value: float) -> float:
    return value if np.isfinite(value) else np.finfo(np.float64).max


def _floats(array: Array, want: Array) -> Array:
    """Bytes as the floats that they stand for: of the same mean and spread."""
    if array.dtype.kind == "f":
        return array
    spread = float(array.std())
    scale = float(want.std()) / spread if spread else 1.0
    return ((array - float(array.mean())) * scale + float(want.mean())).astype(np.float32)


def _layouts(array: Array, shape: tuple[int, ...]) -> Iterable[Array]:
    yield array.reshape(shape)
    if 1 < len(shape) <= _MOST_AXES:
        for order in permutations(range(len(shape))):
            yield array.reshape([shape[a] for a in order]).transpose(np.argsort(order))


# --- an engine and its model --------------------------------------------------------------------------------------------------


def unscaled(got: Array, want: Array) -> Array:
    """``got`` with its channels, along the last axis, the second, or both as heads are, at the size that those of ``want`` have, if
    that is all that parts the two: quantisation moves factors from a layer's channels to the weights that read them."""
    best_found = got
    for kept in {(got.ndim - 1,), (1,), (1, got.ndim - 1)} if got.ndim > 1 else ():
        over = tuple(a for a in range(got.ndim) if a not in kept)
        if math.prod(got.shape[a] for a in over) < _ROWS:
            continue
        x, y = got.astype(np.float64), want.astype(np.float64)
        square = (x * x).sum(over, keepdims=True)
        factor = np.divide((x * y).sum(over, keepdims=True), square, out=np.ones_like(square), where=square > 0)
        if (factor > 0).all() and error(fitted := (x * factor).astype(np.float32), want) < _MUCH * error(best_found, want):
            best_found = fitted
    return best_found


def against_graph(values: Values, model: ir.Model, inputs: Mapping[str, Array], precisions: Mapping[str, str],
                  prepare: Callable[[ir.Model], object], balanced: bool = False) -> list[Row]:
    """Rows in the graph's order, for the nodes whose results an engine shows. ``prepare`` gives a graph what it needs to run in
    ONNX Runtime. ``balanced``: channels of the engine's may have factors that others take off again. Raises UsageError E0208 where
    that cannot run it."""
    names = {o.name: node.name or "" for node in model.graph for o in node.outputs if o.name and node.name in values
             and o.dtype is not None and o.dtype.is_floating_point()}
    whole = _run(_exposed(model, list(names)), inputs, prepare)
    undo = unscaled if balanced else lambda got, want: got
    shown = {value: undo(found, _f32(whole[value])) for value, layer in names.items() if value in whole
             and (found := best(values[layer], _f32(whole[value]))) is not None and error(found, _f32(whole[value])) < np.inf}
    alike = {value: array for value, array in shown.items() if error(array, _f32(whole[value])) < _ALIKE}
    fed = {f"{value}{_SUFFIX}": np.asarray(array, whole[value].dtype) for value, array in alike.items()}
    own = _run(_cut_open(_exposed(model, list(shown)), list(alike)), {**inputs, **fed}, prepare)
    rows = []
    for value, array in shown.items():
        layer = names[value]
        precision = precisions.get(layer, "f32")
        rows.append(Row(layer, precision, error(array, _f32(whole[value])), error(array, _f32(own[value])),
                        max(_explained(precision, whole[value]), _FOUND if balanced else 0.0)))
    return rows


def _f32(array: Array) -> Array:
    return array.astype(np.float32)


def _explained(precision: str, value: Array) -> float:
    """Of a layer, which may give its result in a narrower type than it computes in."""
    return max(EXPLAINED.get(precision, EXPLAINED["f32"]), EXPLAINED["f16"] if value.dtype.itemsize < 4 else 0.0)


def _exposed(model: ir.Model, names: Sequence[str]) -> ir.Model:
    copy = model.clone()
    values = {o.name: o for node in copy.graph for o in node.outputs}
    copy.graph.outputs.clear()
    copy.graph.outputs.extend(values[name] for name in names)
    return copy


def _cut_open(model: ir.Model, names: Sequence[str]) -> ir.Model:
    """Nodes that read a value take it from an input of the graph instead, in place."""
    values = {o.name: o for node in model.graph for o in node.outputs}
    for name in names:
        value = values[name]
        given = ir.Value(name=f"{name}{_SUFFIX}", type=value.type, shape=value.shape)
        model.graph.inputs.append(given)
        for user, index in list(value.uses()):
            user.replace_input_with(index, given)
    return model


def _run(model: ir.Model, inputs: Mapping[str, Array], prepare: Callable[[ir.Model], object]) -> dict[str, Array]:
    if not model.graph.outputs:
        return {}
    prepare(model)
    return OnnxReference(model, threads=1).run(inputs)


# --- two engines --------------------------------------------------------------------------------------------------------------


def against_engine(ours: Values, theirs: Values, program: Program, precisions: Mapping[str, str],
                   others: Mapping[str, str]) -> list[Row]:
    """Rows in the order of ``program``, ours, for the layers that both have; ``theirs`` is what is right. ``precisions`` and
    ``others`` are those of ours and theirs."""
    rows: list[Row] = []
    errors: dict[str, float] = {}  # of each layer, or of what it reads
    for layer, sources in _layers(program).items():
        inherited = max((errors[s] for s in sources if s in errors), default=0.0)
        found = [(got, want) for want in theirs.get(layer, ()) if want.dtype.kind == "f"
                 and (got := best(ours.get(layer, ()), want)) is not None]
        if not found:
            errors[layer] = inherited
            continue
        errors[layer] = apart = max(error(got, want) for got, want in found)
        precision = precisions.get(layer, "f32")
        explained = max(EXPLAINED.get(p, EXPLAINED["f32"]) for p in (precision, others.get(layer, "f32")))
        rows.append(Row(layer, precision, apart, None, explained, inherited))
    return rows


def _layers(program: Program) -> dict[str, list[str]]:
    """The layers that each layer reads, in the order of the steps."""
    found: dict[str, list[str]] = {}
    for number, step in enumerate(program.steps):
        sources = found.setdefault(step.name, [])
        for operand in step.inputs:
            writer = _writer(program, operand, number)
            if writer is not None and writer != step.name and writer not in sources:
                sources.append(writer)
    return found


def _writer(program: Program, operand: Operand, before: int) -> str | None:
    """The layer of the last step that wrote where the operand lies."""
    if operand.space != _ARENA:
        return None
    for step in reversed(program.steps[:before]):
        if any(o.space == _ARENA and o.offset < _end(operand) and operand.offset < _end(o) for o in step.outputs):
            return step.name
    return None


def _end(operand: Operand) -> int:
    return operand.offset + max(operand.row_stride, 1) * operand.dims[0] * DTYPE_SIZES[operand.dtype]
