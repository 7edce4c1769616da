"""The road of an .onnx source: read safely, brought to the passes' opset, its inputs understood without a recipe."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import onnx
import onnx_ir as ir
from onnx_ir.passes import common

from infc.compiler import profiles, refusals
from infc.compiler.artifact.layout import DTYPES
from infc.compiler.errors import UnsupportedError, UsageError
from infc.compiler.interface import Interface, TensorSpec
from infc.compiler.reference import OnnxReference

_CHECKER = "python -m onnx.checker tells more about a damaged file"
_NAMES = {number: name for name, number in DTYPES.items()}
# Inputs of transformers' exports that a caller may leave out, and what they then read as.
_FILLS = {"attention_mask": 1, "token_type_ids": 0}
_FORWARDS = {"Identity", "Cast", "Reshape", "Unsqueeze", "Squeeze", "Flatten"}


def load(path: Path) -> tuple[ir.Model, Interface]:
    """The model at its own opset: weights in memory, nodes named and in order, no initializers among the inputs.

    Raises UsageError E0112 for what is no ONNX model, E0113 for weights outside the file's directory, E0114 for dimensions
    without a name or with one that is no word; UnsupportedError E0401 for operators that are neither ONNX's nor the model's own
    functions, E0411 and E0412 for inputs and outputs that are no tensors of numbers.
    """
    model = _read(path)
    ir.external_data.load_to_model(model)
    model.metadata_props.clear()  # passes leave notes to the compiler there, a file must not
    common.RemoveInitializersFromInputsPass()(model)
    model.graph.sort()
    for number, node in enumerate(model.graph):
        node.name = node.name or f"{node.op_type}_{number}"
    return model, interface(model, path)


def interface(model: ir.Model, path: Path) -> Interface:
    """What a graph takes and gives. Raises UsageError E0112 and E0114, naming the file ``path``, as ``load`` does."""
    inputs = tuple(_spec(v, path, model) for v in model.graph.inputs)
    outputs = tuple(_spec(v, path, None) for v in model.graph.outputs)
    mask = next((t.name for t in inputs if t.name == "attention_mask" and len(t.dims) == 2), None)
    return Interface(inputs, outputs, "onnx", mask)


def files(path: Path) -> list[str]:
    """The file's name and those of the files its weights are in, relative to its directory. Raises as ``load`` does."""
    return [path.name, *sorted({str(PurePosixPath(t.location)) for t in _external(_read(path))})]


def _read(path: Path) -> ir.Model:
    try:
        model = ir.load(path)
    except Exception as error:
        raise UsageError("E0112", f"not an ONNX model: {_cause(error)}", where=str(path), hint=_CHECKER) from error
    if not model.graph.outputs:
        raise UsageError("E0112", "not an ONNX model: it has no outputs", where=str(path), hint=_CHECKER)
    _check_domains(model)
    root = path.parent.resolve()
    for tensor in _external(model):
        location = PurePosixPath(tensor.location)
        target = root.joinpath(*location.parts).resolve()
        if location.is_absolute() or not target.is_relative_to(root):
            raise UsageError("E0113", f"weights of '{tensor.name}' lie outside the model's directory: {location}",
                             where=str(path), hint="put the weights beside the .onnx file and refer to them by a relative name")
        if not target.is_file():
            raise UsageError("E0113", f"weights of '{tensor.name}' are missing: {location}", where=str(path),
                             hint="copy the external data file beside the .onnx file")
        if (tensor.offset or 0) + tensor.nbytes > target.stat().st_size:
            raise UsageError("E0113", f"weights of '{tensor.name}' end beyond their file: {location}", where=str(path),
                             hint="the external data file is truncated; copy it again")
    return model


def reference(path: Path) -> OnnxReference:
    """The file as it is in ONNX Runtime. Raises UsageError E0117 if that rejects it."""
    try:
        return OnnxReference(path)
    except Exception as error:  # ONNX Runtime's exceptions have no common class of their own
        reason = _cause(error).split(" : ")[-1]  # what comes before is the same for all
        raise UsageError("E0117", f"ONNX Runtime, which the engine is compared with, rejects the model: {reason}",
                         where=str(path), hint=_CHECKER) from error


def _cause(error: BaseException) -> str:
    """The first line of what an error began with."""
    while error.__cause__ is not None:
        error = error.__cause__
    return next(iter(str(error).splitlines()), "") or type(error).__name__


def _check_domains(model: ir.Model) -> None:
    own = {(f.domain, f.name) for f in model.functions.values()}
    for node in model.graph.all_nodes():
        if node.domain not in ("", "ai.onnx") and (node.domain, node.op_type) not in own and not _of_onnx(node):
            raise UnsupportedError("E0401", f"{node.domain}::{node.op_type} is not an operator of ONNX",
                                   where=f"node '{node.name}'", hint="export the model with ONNX's own operators")


def _of_onnx(node: ir.Node) -> bool:
    return node.domain.startswith("ai.onnx.") and onnx.defs.has(node.op_type, node.domain)


def _external(model: ir.Model) -> Iterator[ir.ExternalTensor]:
    for graph in model.graphs():
        held = [v.const_value for v in graph.initializers.values()]
        held += [a.as_tensor() for node in graph for a in node.attributes.values()
                 if isinstance(a, ir.Attr) and a.type == ir.AttributeType.TENSOR and not a.is_ref()]
        yield from (t for t in held if isinstance(t, ir.ExternalTensor))


def _spec(value: ir.Value, path: Path, model: ir.Model | None) -> TensorSpec:
    """``model`` is given for inputs: they may be optional and have a range."""
    name = str(value.name)
    refusals.check_type(value)
    if value.shape is None or value.dtype is None or int(value.dtype) not in _NAMES:
        raise UsageError("E0112", f"'{name}' has no shape, or a type infc does not take ({value.dtype})", where=str(path))
    dims = tuple(d if isinstance(d, int) else d.value for d in value.shape)
    if model is not None and any(d is None for d in dims):
        axes = ", ".join(str(i) for i, d in enumerate(dims) if d is None)
        raise UsageError("E0114", f"input '{name}' has dynamic dimensions without a name (axis {axes})", where=str(path),
                         hint="export with named dynamic axes, or fix the sizes: "
                              f"python -m onnxruntime.tools.make_dynamic_shape_fixed --input_name '{name}' --input_shape SIZES")
    for d in dims:
        if model is not None and isinstance(d, str) and not re.fullmatch(profiles.NAME, d):
            raise UsageError("E0114", f"input '{name}' has a dimension named '{d}', which no profile can name", where=str(path),
                             hint=f"fix its size: python -m onnxruntime.tools.make_dynamic_shape_fixed --dim_param '{d}' "
                                  "--dim_value SIZE")
    is_mask = name == "attention_mask" and len(dims) == 2
    limits = (0, 1) if is_mask else index_range(value) if model else None
    return TensorSpec(name, _NAMES[int(value.dtype)], tuple(d if d is not None else f"{name}_{i}" for i, d in enumerate(dims)),
                      _FILLS.get(name) if model else None, limits if value.dtype.is_integer() else None)


def index_range(value: ir.Value) -> tuple[int, int] | None:
    """(0, rows - 1) of the smallest table that the values of an integer input index; None if they index none."""
    rows: list[int] = []
    seen: set[ir.Value] = set()
    pending = [value]
    while pending:
        current = pending.pop()
        if current in seen:
            continue
        seen.add(current)
        for node, position in current.uses():
            if node.op_type in _FORWARDS and position == 0:
                pending.append(node.outputs[0])
            elif node.op_type == "Gather" and position == 1 and _axis(node) == 0:
                table = node.inputs[0]
                if table is not None and table.const_value is not None and isinstance(table.const_value.shape[0], int):
                    rows.append(table.const_value.shape[0])
    return (0, min(rows) - 1) if rows else None


def _axis(node: ir.Node) -> int:
    attribute = node.attributes.get("axis")
    return attribute.as_int() if attribute else 0
