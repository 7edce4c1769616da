"""The road of an .onnx source: read safely, brought to the passes' opset, its inputs understood without a recipe."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import onnx_ir as ir

from infc.compiler.artifact.layout import DTYPES
from infc.compiler.errors import ExportError, UsageError
from infc.compiler.interface import Interface, TensorSpec

OPSET = 23
_NAMES = {number: name for name, number in DTYPES.items()}
# Inputs of transformers' exports that a caller may leave out, and what they then read as.
_FILLS = {"attention_mask": 1, "token_type_ids": 0}
_FORWARDS = {"Identity", "Cast", "Reshape", "Unsqueeze", "Squeeze", "Flatten"}


def load(path: Path) -> tuple[ir.Model, Interface]:
    """Raises UsageError E0112 for what is no ONNX model, E0113 for weights outside the file's directory, E0114 for dimensions
    without a name; ExportError E0306 for an opset that cannot be converted."""
    model = _convert(_read(path), path)
    inputs = tuple(_spec(v, path, model) for v in model.graph.inputs if v.name not in model.graph.initializers)
    outputs = tuple(_spec(v, path, None) for v in model.graph.outputs)
    mask = next((t.name for t in inputs if t.name == "attention_mask" and len(t.dims) == 2), None)
    return model, Interface(inputs, outputs, "onnx", mask)


def files(path: Path) -> list[str]:
    """The file's name and those of the files its weights are in, relative to its directory. Raises as ``load`` does."""
    return [path.name, *sorted({str(PurePosixPath(t.location)) for t in _external(_read(path))})]


def _read(path: Path) -> ir.Model:
    try:
        model = ir.load(path)
    except Exception as error:
        raise UsageError("E0112", f"not an ONNX model: {str(error).splitlines()[0] if str(error) else type(error).__name__}",
                         where=str(path), hint="python -m onnx.checker tells more about a damaged file") from error
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
    return model


def _external(model: ir.Model) -> Iterator[ir.ExternalTensor]:
    for graph in model.graphs():
        held = [v.const_value for v in graph.initializers.values()]
        held += [a.as_tensor() for node in graph for a in node.attributes.values()
                 if isinstance(a, ir.Attr) and a.type == ir.AttributeType.TENSOR and not a.is_ref()]
        yield from (t for t in held if isinstance(t, ir.ExternalTensor))


def _convert(model: ir.Model, path: Path) -> ir.Model:
    version = model.opset_imports.get("", OPSET)
    if version == OPSET:
        return model
    import onnxscript.version_converter as converter

    converter.convert_version(model, OPSET, fallback=True)
    if model.opset_imports.get("") != OPSET:
        raise ExportError("E0306", f"opset {version} cannot be converted to {OPSET}", where=str(path),
                          hint="export the model again with a newer opset")
    return model


def _spec(value: ir.Value, path: Path, model: ir.Model | None) -> TensorSpec:
    """``model`` is given for inputs: they may be optional and have a range."""
    name = str(value.name)
    if value.shape is None or value.dtype is None or int(value.dtype) not in _NAMES:
        raise UsageError("E0112", f"'{name}' has no shape, or a type infc does not take ({value.dtype})", where=str(path))
    dims = tuple(d if isinstance(d, int) else d.value for d in value.shape)
    if model is not None and any(d is None for d in dims):
        axes = ", ".join(str(i) for i, d in enumerate(dims) if d is None)
        raise UsageError("E0114", f"input '{name}' has dynamic dimensions without a name (axis {axes})", where=str(path),
                         hint="name them: python -m onnxruntime.tools.make_dynamic_shape_fixed, or export with dynamic_axes names")
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
