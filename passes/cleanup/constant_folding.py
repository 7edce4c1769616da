"""Folds what is constant, and makes shape arithmetic constant where only batch-like dimensions are symbolic."""

from __future__ import annotations

import math
import warnings

import numpy as np
import onnx_ir as ir
from onnxscript.optimizer import fold_constants

from infc.passes.base import Pass, PassResult
from infc.passes.evaluate import evaluate
from infc.passes.graph import add_constant, at, constant, dims, emit, erase, int_constant, ints, is_op, opset, replace
from infc.passes.shapes import Shapes, reshape_target
from infc.passes.subgraphs import bodies

_ROUNDS = 8
_LARGEST = 1 << 20  # elements of a folded tensor that is larger than what it is made from
_NOTE = "pkg.onnxscript.optimizer.folded_from"
_KEPT = {"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"}


class ConstantFolding(Pass):
    """Infers shapes, folds constants by ONNX's reference operators, and gives Reshape and Expand constant operands: a chain of
    Shape, Gather and Concat before a Reshape becomes ``[0, 0, heads, size]`` when its symbolic entries copy dimensions of the
    input. Sizes that stay symbolic are taken from the graph inputs."""

    name = "constant_folding"

    def run(self, model: ir.Model) -> PassResult:
        matches: list[str] = []
        for _ in range(_ROUNDS):
            before = len(matches)
            shapes = Shapes(model)
            sizes = {d: (v, i) for v in reversed(model.graph.inputs) for i, d in enumerate(dims(v) or ()) if isinstance(d, str)}
            for node in list(model.graph.all_nodes()):
                if node.graph is None or bodies(node):
                    continue
                if (_fold_contents(node, shapes, model.graph) or _fix_target(node, model.graph) or _name_type(node)
                        or _fold_norm(node, model) or _take_from_input(node, shapes, sizes)):
                    matches.append(node.name or "")
            names = {n.name for n in model.graph}
            with np.errstate(all="ignore"), warnings.catch_warnings():  # infinities and NaN are what an operator makes of its input
                warnings.simplefilter("ignore")
                folded = fold_constants(model, should_fold=_should_fold, output_size_limit=1 << 62).modified
            if folded:
                matches += sorted((names - {n.name for n in model.graph}) - {None}, key=str)  # type: ignore[arg-type]
            if len(matches) == before:
                break
        for value in model.graph.initializers.values():
            value.metadata_props.pop(_NOTE, None)
        return PassResult(bool(matches), matches)


def _fold_norm(node: ir.Node, model: ir.Model) -> bool:
    """A norm of constants, such as of a table of distances, which onnxscript leaves for its optional outputs."""
    value = node.outputs[0]
    if not is_op(node, "LayerNormalization", "RMSNormalization") or any(constant(v) is None for v in node.inputs if v is not None):
        return False
    if value.is_graph_output() or any(v.uses() or v.is_graph_output() for v in node.outputs[1:]):
        return False
    data = evaluate([node], value, {}, {}, opset(model))
    replace(value, add_constant(model.graph, f"{value.name}/folded", data), rename=False)
    return True


def _should_fold(node: ir.Node) -> bool | None:
    for value in node.inputs:  # drops the note of all that was folded into it, which grows from node to node
        if value is not None:
            value.meta.pop(_NOTE, None)
            value.metadata_props.pop(_NOTE, None)
    if node.op_type in _KEPT:
        return None
    shape = dims(node.outputs[0])
    size = math.prod(d if isinstance(d, int) else _LARGEST + 1 for d in ((None,) if shape is None else shape))
    return size <= max(_LARGEST, *(v.const_value.size for v in node.inputs if v is not None and v.const_value is not None), 0)


def _fold_contents(node: ir.Node, shapes: Shapes, root: ir.Graph) -> bool:
    """Replaces integer tensors all of whose elements are known."""
    folded = [value for value in list(node.outputs) if _fold_value(value, shapes, root)]
    return bool(folded)


def _fold_value(value: ir.Value, shapes: Shapes, root: ir.Graph) -> bool:
    contents, shape = shapes.contents.get(value), dims(value)
    if contents is None or shape is None or value.is_graph_output() or value.dtype not in (ir.DataType.INT64, ir.DataType.INT32):
        return False
    if not value.uses() or any(not isinstance(d, int) for d in (*contents, *shape)):
        return False
    data = np.array(contents, value.dtype.numpy()).reshape(shape)  # type: ignore[arg-type]
    replace(value, add_constant(root, f"{value.name}/folded", data), rename=False)
    return True


def _take_from_input(node: ir.Node, shapes: Shapes, sizes: dict[str, tuple[ir.Value, int]]) -> bool:
    """Takes a symbolic size from a graph input instead of from the shape of a value computed on the way."""
    value = node.outputs[0]
    contents, shape = shapes.contents.get(value), dims(value)
    if (
        not is_op(node, "Shape", "Gather", "Slice")
        or contents is None
        or len(contents) != 1
        or contents[0] not in sizes
        or shape is None
    ):
        return False
    source, axis = sizes[str(contents[0])]
    if node.inputs[0] is source or value.is_graph_output() or not value.uses() or value.dtype != ir.DataType.INT64:
        return False
    size = emit(node, "Shape", [source], {"start": axis, "end": axis + 1}, name=f"{node.name}/size", like=[(value.dtype, (1,))])
    if not shape:
        size = emit(node, "Squeeze", [size.outputs[0]], name=f"{node.name}/scalar", like=[(value.dtype, ())])
    replace(value, size.outputs[0], rename=False)
    return True


def _name_type(node: ir.Node) -> bool:
    """Makes a Cast of a CastLike. The folding of onnxscript does so too, but forgets attributes."""
    like = at(node, 1)
    if node.op_type != "CastLike" or node.domain != "" or like is None or like.dtype is None:
        return False
    value = node.outputs[0]
    attributes = {"to": int(like.dtype), **{name: a.value for name, a in node.attributes.items()}}
    made = emit(node, "Cast", [at(node, 0)], attributes, name=node.name or "", like=[(like.dtype, dims(value))])
    replace(value, made.outputs[0])
    return True


def _fix_target(node: ir.Node, root: ir.Graph) -> bool:
    """Gives a Reshape or Expand a constant target."""
    if node.op_type not in ("Reshape", "Expand") or node.domain != "" or ints(at(node, 1)) is not None:
        return False
    wanted = dims(node.outputs[0])
    if node.op_type == "Reshape":
        target = reshape_target(dims(at(node, 0)), wanted)
    else:
        target = (
            [d for d in wanted or (None,) if isinstance(d, int)] if all(isinstance(d, int) for d in wanted or (None,)) else None
        )
    old = at(node, 1)
    if target is None or old is None or node.graph is None:
        return False
    node.replace_input_with(1, int_constant(root, target))
    node.attributes.pop("allowzero", None)
    if (maker := old.producer()) is not None:
        erase(maker)
    return True
