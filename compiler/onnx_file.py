"""The road of an .onnx source: its inputs are understood without a recipe."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path, PurePosixPath

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common

from infc.compiler import onnx_reader, onnx_shapes, profiles, refusals, residence
from infc.compiler.artifact.layout import DTYPES
from infc.compiler.errors import UsageError
from infc.compiler.interface import Interface, TensorSpec
from infc.compiler.isolated import Died, Fault, IsolatedReference
from infc.compiler.reference import OnnxDefinition, Other

_NAMES = {number: name for name, number in DTYPES.items()}
# Inputs of transformers' exports that a caller may leave out, and what they then read as.
_FILLS = {"attention_mask": 1, "token_type_ids": 0}
_BEHIND = ("NOT_IMPLEMENTED", "is under development", "Unsupported model IR version", "Could not find an implementation",
           "No Op registered for")
_MOVES = {"Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Slice", "Concat"}


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
        onnx_shapes.infer_outputs(model)
        onnx_reader.check_inferred(model, path)
    if any(v.dtype is not None and v.dtype.is_integer() for v in model.graph.inputs):
        onnx_shapes.infer_anew(model)  # of tables that such inputs may index
    return model, interface(model, path)


def interface(model: ir.Model, path: Path) -> Interface:
    """What a graph takes and gives. Raises UsageError E0112, naming the file ``path``, as ``load`` does."""
    inputs = tuple(_spec(v, path, True) for v in model.graph.inputs)
    outputs = tuple(_spec(v, path, False) for v in model.graph.outputs)
    mask = next((t.name for t in inputs if t.name == "attention_mask" and len(t.dims) == 2), None)
    return Interface(inputs, outputs, "onnx", mask, rounding=_rounding(model), steps=_steps(model))


def _rounding(model: ir.Model) -> float:
    """The relative step of the coarsest 16-bit floats among weights, inputs and outputs."""
    steps = {ir.DataType.FLOAT16: 2.0**-10, ir.DataType.BFLOAT16: 2.0**-7}
    values = (*model.graph.initializers.values(), *model.graph.inputs, *model.graph.outputs)
    return max((steps.get(v.dtype, 0.0) for v in values if v.dtype is not None), default=0.0)


def _steps(model: ir.Model) -> dict[str, float]:
    """The largest scale of each output whose last operator is a DequantizeLinear of a type that results are rounded to."""
    found = {}
    for output in model.graph.outputs:
        node = output.producer()
        while node is not None and node.op_type in _MOVES and node.inputs and node.inputs[0] is not None:
            node = node.inputs[0].producer()
        if node is None or node.op_type != "DequantizeLinear" or len(node.inputs) < 2:
            continue
        if any(v and v.dtype == ir.DataType.INT32 for v in node.inputs):
            continue
        scale = onnx_shapes.known(node.inputs[1])
        if scale is not None and scale.size and scale.dtype.is_floating_point():
            found[str(output.name)] = float(np.abs(scale.numpy().astype(np.float32)).max())
    return found


def others(path: Path, model: ir.Model) -> tuple[Other, ...]:
    """Others that know what the file computes. ONNX's own evaluator decides where ONNX says nothing: of floats that no integer is
    near to, and of results of no numbers. Of a Resize it differs from ONNX Runtime and PyTorch where scales make no whole size."""
    large = residence.is_large(model)
    plain = Other("ONNX Runtime without its optimisations", lambda: IsolatedReference(path, large=large, optimise=False).run)
    if large:
        return (plain,)
    resizes = [f"node '{n.name}' (Resize)" for n in model.graph.all_nodes() if n.op_type == "Resize"]
    undefined = any(_gives_integers(n) for n in model.graph.all_nodes()) or any(0 in (v.shape or ()) for v in model.graph.inputs)
    disputed = None if undefined and not resizes else ", ".join(resizes)
    return plain, Other("ONNX's own evaluator", lambda: OnnxDefinition(path, saturate=True).run, disputed)


def _gives_integers(node: ir.Node) -> bool:
    return node.op_type in ("Cast", "CastLike") and (node.outputs[0].dtype is None or node.outputs[0].dtype.is_integer())


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
                         hint="export the model with shapes" + (", or set one: python -m onnxruntime.tools.make_dynamic_shape_fixed"
                              f" --input_name '{name}' --input_shape SIZES" if is_input else ""))
    dims = tuple(d if isinstance(d, int) else d.value for d in value.shape)
    is_mask = name == "attention_mask" and len(dims) == 2
    limits = (0, 1) if is_mask else onnx_shapes.index_range(value) if is_input else None
    return TensorSpec(name, _NAMES[int(value.dtype)], tuple(d if d is not None else f"{name}_{i}" for i, d in enumerate(dims)),
                      _FILLS.get(name) if is_input else None, limits if value.dtype.is_integer() else None)
