"""The road of an .onnx source: its inputs are understood without a recipe."""

from __future__ import annotations

import contextlib
import math
import re
from pathlib import Path, PurePosixPath

import onnx_ir as ir
from onnx_ir.passes import common

from infc.compiler import onnx_reader, profiles, refusals, residence
from infc.compiler.artifact.layout import DTYPES
from infc.compiler.errors import UsageError
from infc.compiler.interface import Interface, TensorSpec
from infc.compiler.isolated import Died, Fault, IsolatedReference
from infc.compiler.pipeline import CLEANUP
from infc.compiler.reference import OnnxDefinition
from infc.passes.base import PassManager
from infc.passes.graph import attribute, dims
from infc.passes.shapes import infer_anew

_NAMES = {number: name for name, number in DTYPES.items()}
# Inputs of transformers' exports that a caller may leave out, and what they then read as.
_FILLS = {"attention_mask": 1, "token_type_ids": 0}
_BEHIND = ("NOT_IMPLEMENTED", "is under development", "Unsupported model IR version", "Could not find an implementation",
           "No Op registered for")
# Operators whose inputs are indices: (domain, operator) -> input -> the input that it indexes. Of those of ONNX -1 is the last.
_TABLES = {**{("", op): {1: 0} for op in ("Gather", "GatherElements", "GatherND", "Scatter", "ScatterElements", "ScatterND")},
           **{("", op): {4: 0} for op in ("GRU", "LSTM", "RNN")},  # lengths
           ("com.microsoft", "EmbedLayerNormalization"): {0: 2, 1: 4, 8: 3},
           ("infc", "EmbeddingSum"): {0: 1, 2: 3, 4: 5, 6: 7}}  # of graphs that infc export wrote
_FORWARDS = {"Identity", "Cast", "Reshape", "Unsqueeze", "Squeeze", "Flatten"}


def load(path: Path) -> tuple[ir.Model, Interface]:
    """The model at its own opset: weights in memory, nodes named and in order, no initializers among the inputs, every dimension of
    an input a size or a name that a profile can give.

    Raises as ``onnx_reader.read`` does; UsageError E0112 for inputs and outputs whose type or rank cannot be told; UnsupportedError
    E0411 and E0412 for those that are no tensors of numbers.
    """
    model = onnx_reader.read(path)
    onnx_reader.load_weights(model, path)
    model.metadata_props.clear()  # passes leave notes to the compiler there, a file must not
    common.RemoveInitializersFromInputsPass()(model)
    _name_nodes(model)
    _name_values(model)
    _name_dimensions(model)
    _own_outputs(model)
    if any(v.dtype is None or v.shape is None for v in model.graph.outputs):
        common.ShapeInferencePass()(model)
        _infer_outputs(model)
    if any(v.dtype is not None and v.dtype.is_integer() for v in model.graph.inputs):
        infer_anew(model)  # of tables that such inputs may index
    return model, interface(model, path)


def interface(model: ir.Model, path: Path) -> Interface:
    """What a graph takes and gives. Raises UsageError E0112, naming the file ``path``, as ``load`` does."""
    inputs = tuple(_spec(v, path, True) for v in model.graph.inputs)
    outputs = tuple(_spec(v, path, False) for v in model.graph.outputs)
    mask = next((t.name for t in inputs if t.name == "attention_mask" and len(t.dims) == 2), None)
    return Interface(inputs, outputs, "onnx", mask, rounding=_rounding(model))


def _rounding(model: ir.Model) -> float:
    """The relative step of the coarsest 16-bit floats among weights, inputs and outputs."""
    steps = {ir.DataType.FLOAT16: 2.0**-10, ir.DataType.BFLOAT16: 2.0**-7}
    values = (*model.graph.initializers.values(), *model.graph.inputs, *model.graph.outputs)
    return max((steps.get(v.dtype, 0.0) for v in values if v.dtype is not None), default=0.0)


def files(path: Path) -> list[str]:
    """The file's name and those of the files its weights are in, relative to its directory. Raises as ``load`` does."""
    return [path.name, *sorted({str(PurePosixPath(t.location)) for t in onnx_reader.external(onnx_reader.read(path))})]


def reference(path: Path, model: ir.Model) -> IsolatedReference | OnnxDefinition:
    """The file as it is in ONNX Runtime; or ``model``, as it was loaded, if names or sparse weights are all that is in the way; or
    the file in ONNX's own evaluator, where ONNX Runtime has not caught up with ONNX. Raises UsageError E0117 if all reject it."""
    try:
        return IsolatedReference(path, large=residence.is_large(model))
    except Died as error:
        raise _rejected(str(error), path) from error
    except Fault as error:
        with contextlib.suppress(Exception):  # written again it may fail in more ways
            return IsolatedReference(model)
        if any(text in str(error) for text in _BEHIND):
            with contextlib.suppress(Exception):
                return OnnxDefinition(path)
        raise _rejected(onnx_reader.cause(error).split(" : ")[-1], path) from error  # what comes before is the same for all


def _rejected(why: str, path: Path) -> UsageError:
    return UsageError("E0117", f"ONNX Runtime, which the engine is compared with, rejects the model: {why}", where=str(path),
                      hint=onnx_reader.CHECKER)


def _name_nodes(model: ir.Model) -> None:
    """Every node a name of its own."""
    taken: set[str] = set()
    for graph in model.graphs():
        for number, node in enumerate(graph):
            node.name = _unused(node.name or f"{node.op_type}_{number}", taken)


def _name_values(model: ir.Model) -> None:
    """Every value a name of its own, also where branches have one of the same name. Those of the outer graph are kept."""
    taken: set[str] = set()
    for graph in model.graphs():
        for value in (*graph.inputs, *graph.initializers.values(), *(v for node in graph for v in node.outputs)):
            if value.name in taken:
                value.name = _unused(value.name, taken)
            taken.add(value.name or "")


def _name_dimensions(model: ir.Model) -> None:
    """Gives dimensions of inputs that have no name, or none that a profile can give, one made of the input's; -1 is such a one."""
    known = {str(d.value) for v in model.graph.inputs if v.shape is not None for d in v.shape if not isinstance(d, int)}
    renamed: dict[str, str] = {}
    for value in model.graph.inputs:
        if value.shape is None:
            continue
        dims: list[int | str] = []
        for axis, d in enumerate(value.shape):
            old = d if isinstance(d, int) else d.value
            if isinstance(old, str) and not re.fullmatch(profiles.NAME, old):
                if old not in renamed:
                    renamed[old] = _unused(_word(old), known)
                old = renamed[old]
            elif old is None or (isinstance(old, int) and old < 0):
                old = _unused(_word(f"{value.name}_{axis}"), known)
            dims.append(old)
        value.shape = ir.Shape(dims)
    for value in (*model.graph.outputs, *(v for graph in model.graphs() for node in graph for v in node.outputs)):
        if value.shape is not None:
            value.shape = ir.Shape([d if isinstance(d, int) else _known_name(renamed.get(str(d.value), d.value))
                                    for d in value.shape])


def _known_name(text: str | None) -> str | None:
    """None for a formula: the passes infer what it would say, and files may hold ones that take for ever or are wrong."""
    return text if text is not None and re.fullmatch(profiles.NAME, text) else None


def _word(text: str) -> str:
    word = re.sub(r"\W+", "_", text).strip("_")
    return word if re.fullmatch(profiles.NAME, word) else f"dim_{word}".rstrip("_")


def _unused(name: str, known: set[str]) -> str:
    """The name, or one made of it, that is not among those known; it is now."""
    unique, count = name, 1
    while unique in known:
        count = count + 1 if count < 10 else max(count + 1, len(known))  # a file may have one name a hundred thousand times
        unique = f"{name}_{count}"
    known.add(unique)
    return unique


def _infer_outputs(model: ir.Model) -> None:
    """Types and shapes of outputs that ONNX's inference does not tell: as they are once functions and loops are written out."""
    if all(v.dtype is not None and v.shape is not None for v in model.graph.outputs):
        return
    copy = model.clone()
    PassManager(CLEANUP).run(copy)
    for value, inferred in zip(model.graph.outputs, copy.graph.outputs, strict=True):
        value.dtype = value.dtype or inferred.dtype
        value.shape = value.shape if value.shape is not None else inferred.shape


def _own_outputs(model: ir.Model) -> None:
    """Each output once."""
    once = dict.fromkeys(model.graph.outputs)
    if len(once) < len(model.graph.outputs):
        model.graph.outputs.clear()
        model.graph.outputs.extend(once)


def _spec(value: ir.Value, path: Path, is_input: bool) -> TensorSpec:
    """``is_input``: it may be optional and have a range."""
    name, side = str(value.name), "input" if is_input else "output"
    refusals.check_type(value)
    if value.dtype is None or int(value.dtype) not in _NAMES:
        raise UsageError("E0112", f"{side} '{name}' has a type that infc does not take ({value.dtype})", where=str(path),
                         hint="export the model with another type")
    if value.shape is None:
        raise UsageError("E0112", f"the number of dimensions of {side} '{name}' is not known", where=str(path),
                         hint="export the model with shapes, or set one: python -m onnxruntime.tools.make_dynamic_shape_fixed "
                              f"--input_name '{name}' --input_shape SIZES")
    dims = tuple(d if isinstance(d, int) else d.value for d in value.shape)
    is_mask = name == "attention_mask" and len(dims) == 2
    limits = (0, 1) if is_mask else index_range(value) if is_input else None
    return TensorSpec(name, _NAMES[int(value.dtype)], tuple(d if d is not None else f"{name}_{i}" for i, d in enumerate(dims)),
                      _FILLS.get(name) if is_input else None, limits if value.dtype.is_integer() else None)


def index_range(value: ir.Value) -> tuple[int, int] | None:
    """The least and the largest that the values of an integer input may be, as all that they index has it; None if they index
    nothing of a known size."""
    found: list[tuple[float, float]] = []
    seen: set[ir.Value] = set()
    pending = [(value, 1, 0)]  # what is made of it: factor, summand
    while pending:
        current, factor, summand = pending.pop()
        if current in seen:
            continue
        seen.add(current)
        for node, position in current.uses():
            if (forward := _forwarded(node, position, factor, summand)) is not None:
                pending.append((node.outputs[0], *forward))
            if (limits := _indexed(node, position)) is not None:
                found.append(((limits[0] - summand) / factor, (limits[1] - summand) / factor))
    low, high = max((f[0] for f in found), default=0.0), min((f[1] for f in found), default=-1.0)
    return (math.ceil(low), math.floor(high)) if math.ceil(low) <= math.floor(high) else None


def _forwarded(node: ir.Node, position: int, factor: int, summand: int) -> tuple[int, int] | None:
    """Factor and summand of the node's output; None if it is no such function of this input, or goes down with it."""
    if node.domain != "" or not node.outputs or node.outputs[0].dtype is None or not node.outputs[0].dtype.is_integer():
        return None
    if node.op_type in _FORWARDS:
        return (factor, summand) if position == 0 else None
    other = ir.convenience.get_const_tensor(node.inputs[1 - position]) if len(node.inputs) == 2 else None
    if other is None or other.size != 1 or node.op_type not in ("Add", "Sub", "Mul"):
        return None
    number = int(other.numpy().reshape(()))
    if node.op_type == "Mul":
        return (factor * number, summand * number) if number > 0 else None
    if node.op_type == "Sub":
        return (factor, summand - number) if position == 0 else None
    return factor, summand + number


def _indexed(node: ir.Node, position: int) -> tuple[int, int] | None:
    """What a node that takes indices at this input takes there; None if it takes none, or the size of their table is not known."""
    place = _TABLES.get((node.domain, node.op_type), {}).get(position)
    table = node.inputs[place] if place is not None else None
    shape = dims(table)
    if not shape:
        return None
    sizes = {shape[_axis(node) % len(shape)]}
    if node.op_type in ("GatherND", "ScatterND"):
        first, indices = attribute(node, "batch_dims", 0), dims(node.inputs[1])
        sizes = set(shape[first : first + last]) if indices and isinstance(last := indices[-1], int) else {None}
    size = next(iter(sizes)) if len(sizes) == 1 else None
    if not isinstance(size, int) or size == 0:
        return None
    if node.op_type in ("GRU", "LSTM", "RNN"):
        return 0, size
    return (-size, size - 1) if node.domain == "" else (0, size - 1)


def _axis(node: ir.Node) -> int:
    """That of the table which is indexed."""
    return int(attribute(node, "layout" if node.op_type in ("GRU", "LSTM", "RNN") else "axis", 0))
