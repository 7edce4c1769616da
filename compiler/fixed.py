"""Inputs that get their value when a model is built: ``--set sr=16000``."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir

from infc.compiler.errors import InfcError, UnsupportedError, UsageError
from infc.compiler.export import Exported
from infc.compiler.interface import Interface, TensorSpec
from infc.compiler.options import unknown
from infc.compiler.reference import Run
from infc.compiler.values import MOST_FIXED, Fixed

_SIZES_ALONE = ("Constant", "Shape", "Size")  # no values of inputs go through them
_CHOOSE = {"If": (0,)}
_MEASURE = {"Loop": (0, 1), "TopK": (1,), "Range": (0, 1, 2), "Tile": (1,), "Reshape": (1,), "Expand": (1,), "OneHot": (1,),
            "ConstantOfShape": (0,), "Slice": (1, 2, 3, 4), "Pad": (1, 3), "Resize": (2, 3), "Split": (1,)}  # inputs that are sizes
_COMPARES = ("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual")


def fix(exported: Exported, given: Mapping[str, Fixed]) -> Exported:
    """The model without the inputs that are ``given``: they are constants of its graph, in place, and the reference gets them too.

    Raises UsageError E0016 for a name that no input has and E0211 for a value that is not of the input's type and shape.
    """
    if not given:
        return exported
    interface = exported.interface
    names = [t.name for t in interface.inputs]
    for name in given:
        if name not in names:
            raise unknown("input", name, names, where="--set")
    arrays = {name: _array(interface.input(name), value) for name, value in given.items()}
    sizes = _sizes(interface, arrays)
    graph = exported.model.graph
    for value in [v for v in graph.inputs if v.name in arrays]:
        array = arrays[str(value.name)]
        graph.inputs.remove(value)
        value.shape, value.const_value = ir.Shape(array.shape), ir.tensor(array, name=value.name)
        graph.register_initializer(value)
    for value in (*graph.inputs, *graph.outputs, *(v for node in graph.all_nodes() for v in node.outputs)):
        value.shape = value.shape.evaluate(sizes) if value.shape is not None and sizes else value.shape
    inputs, outputs = ([replace(t, dims=tuple(sizes.get(str(d), d) for d in t.dims)) for t in side if t.name not in arrays]
                       for side in (interface.inputs, interface.outputs))
    mask = None if interface.mask in arrays else interface.mask
    left = replace(interface, inputs=tuple(inputs), outputs=tuple(outputs), mask=mask)
    return replace(exported, interface=left, reference=_given(exported.reference, arrays),
                   others=tuple(replace(other, load=_given_later(other.load, arrays)) for other in exported.others))


def _given(run: Run, arrays: Mapping[str, np.ndarray[Any, Any]]) -> Run:
    return lambda values: run({**values, **arrays})


def _given_later(opened: Callable[[], Run], arrays: Mapping[str, np.ndarray[Any, Any]]) -> Callable[[], Run]:
    return lambda: _given(opened(), arrays)


def _array(spec: TensorSpec, value: Fixed) -> np.ndarray[Any, Any]:
    """The value in the input's type and shape; one number is enough for a shape of one element."""
    wanted = f"{spec.dtype}{list(spec.dims)}"
    if len(spec.dims) > 1 and any(d != 1 for d in spec.dims):
        raise _unfit(spec, value, f"it is {wanted}, which is more than a row of numbers")
    if spec.element != spec.numpy:
        raise _unfit(spec, value, f"it is {wanted}, and values of that type cannot be set")
    found = np.asarray(value)
    if found.dtype.kind not in {"b": "b", "i": "i", "u": "i", "f": "if"}[spec.numpy.kind]:
        raise _unfit(spec, value, f"it is {wanted}")
    with np.errstate(over="ignore"):
        cast = found.astype(spec.numpy)
    if not np.isfinite(cast).all() or (spec.numpy.kind in "iu" and (cast != found).any()):
        raise _unfit(spec, value, f"it is {wanted}, which cannot hold that")
    if found.ndim == 0 and all(d == 1 for d in spec.dims):
        cast = cast.reshape((1,) * len(spec.dims))
    if cast.ndim != len(spec.dims) or any(isinstance(d, int) and d != n for d, n in zip(spec.dims, cast.shape, strict=True)):
        raise _unfit(spec, value, f"it is {wanted}")
    return np.asarray(cast)


def _unfit(spec: TensorSpec, value: Fixed, why: str) -> UsageError:
    example = {"b": "true", "f": "0.5"}.get(spec.numpy.kind, "1")
    rows = isinstance(value, list) or (len(spec.dims) == 1 and spec.dims[0] != 1)
    return UsageError("E0211", f"input '{spec.name}' cannot be {value!r:.80}: {why}", where=f"--set {spec.name}=…",
                      hint=f"write --set {spec.name}={f'[{example},{example}]' if rows and spec.dims else example}")


def _sizes(interface: Interface, arrays: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, int]:
    """The named dimensions that the values give a size. Raises UsageError E0211 where two values differ."""
    sizes: dict[str, int] = {}
    for name, array in arrays.items():
        for d, size in zip(interface.input(name).dims, array.shape, strict=True):
            if isinstance(d, str) and sizes.setdefault(d, size) != size:
                raise UsageError("E0211", f"dimension '{d}' of input '{name}' is {size}, another value makes it {sizes[d]}",
                                 where="--set", hint="give values of one length")
    return sizes


@contextmanager
def advice(exported: Exported, command: str) -> Iterator[None]:
    """Where a build fails and an input alone decides an If, or where sizes cannot be told (E0405) and an input alone gives some,
    the error says so, and how to fix that input: the ``command`` with a --set for it."""
    choices, sizes = list(_deciding(exported.model, _CHOOSE)), list(_deciding(exported.model, _MEASURE))
    try:
        yield
    except InfcError as error:
        found = dict([*choices, *sizes] if error.code == "INFC-E0405" else choices)
        if found and (isinstance(error, UnsupportedError) or error.code == "INFC-E0208"):
            words = " ".join(f"--set {name}={value}" for name, value in found.items())
            inputs = ", ".join(f"'{name}'" for name in found)
            verb, it = ("decides", "it") if len(found) == 1 else ("decide", "them")
            error.hint = f"input {inputs} {verb} what the model computes; give {it} a value: {command} {words}"
        raise


def _deciding(model: ir.Model, places: Mapping[str, Sequence[int]]) -> Iterator[tuple[str, str]]:
    """Inputs that alone decide what operators read at ``places`` and can be set, each with a value that a comparison on the way
    names, or VALUE."""
    inputs = set(model.graph.inputs)
    found: set[ir.Value] = set()
    for node in model.graph.all_nodes():
        for place in places.get(node.op_type, ()) if node.domain == "" else ():
            read, compared = _origins(node.inputs[place] if place < len(node.inputs) else None)
            for value in sorted(read - found, key=lambda v: str(v.name)) if read <= inputs else ():
                if _settable(value):
                    found.add(value)
                    yield str(value.name), compared


def _origins(value: ir.Value | None) -> tuple[set[ir.Value], str]:
    """What the value is made of that is no constant, and a number that it is compared with."""
    leaves: set[ir.Value] = set()
    compared, seen, pending = "VALUE", set(), [value]
    while pending:
        current = pending.pop()
        if current is None or current in seen or current.const_value is not None:
            continue
        seen.add(current)
        node = current.producer()
        if node is None:
            leaves.add(current)
            continue
        if node.op_type in _SIZES_ALONE:
            continue
        number = next((n for v in node.inputs if (n := _number(v)) is not None), None)
        if node.op_type in _COMPARES and number is not None:
            compared = str(number)
        pending += node.inputs
    return leaves, compared


def _number(value: ir.Value | None) -> Any:
    tensor = None if value is None else ir.convenience.get_const_tensor(value)
    return tensor.numpy().reshape(-1)[0].item() if tensor is not None and tensor.size == 1 else None


def _settable(value: ir.Value) -> bool:
    sizes = [None] if value.shape is None else list(value.shape)
    return all(isinstance(d, int) for d in sizes) and math.prod(d for d in sizes if isinstance(d, int)) <= MOST_FIXED
