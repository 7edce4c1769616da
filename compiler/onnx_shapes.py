"""What passes infer of the graph of a file: shapes that it does not tell, and what inputs may be that are indices."""

from __future__ import annotations

import math

import onnx_ir as ir

from infc.compiler.pipeline import CLEANUP
from infc.passes.base import PassManager
from infc.passes.graph import attribute, dims
from infc.passes.shapes import infer_anew as infer_anew  # the file's reader infers with it

# Operators whose inputs are indices: (domain, operator) -> input -> the input that it indexes. Of those of ONNX -1 is the last.
_TABLES = {**{("", op): {1: 0} for op in ("Gather", "GatherElements", "GatherND", "Scatter", "ScatterElements", "ScatterND")},
           **{("", op): {4: 0} for op in ("GRU", "LSTM", "RNN")},  # lengths
           ("com.microsoft", "EmbedLayerNormalization"): {0: 2, 1: 4, 8: 3},
           ("infc", "EmbeddingSum"): {0: 1, 2: 3, 4: 5, 6: 7}}  # of graphs that infc export wrote
_FORWARDS = {"Identity", "Cast", "Reshape", "Unsqueeze", "Squeeze", "Flatten"}


def infer_outputs(model: ir.Model) -> None:
    """Types and shapes of outputs that ONNX's inference does not tell: as they are once functions and loops are written out. Of a
    file in which passes stumble, as where it gives an output another type, they stay unknown."""
    if all(v.dtype is not None and v.shape is not None for v in model.graph.outputs):
        return
    copy = model.clone()
    try:
        PassManager(CLEANUP).run(copy)
    except Exception:  # whoever reads the file says what is not known
        return
    for value, inferred in zip(model.graph.outputs, copy.graph.outputs, strict=True):
        value.type = value.type if value.dtype is not None else inferred.type
        value.shape = value.shape if value.shape is not None else inferred.shape


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
            if node.graph is not value.graph:  # a body, which may not run
                continue
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
    other = known(node.inputs[1 - position]) if len(node.inputs) == 2 else None
    if other is None or other.size != 1 or node.op_type not in ("Add", "Sub", "Mul"):
        return None
    number = int(other.numpy().reshape(()))
    if node.op_type == "Mul":
        return (factor * number, summand * number) if number > 0 else None
    if node.op_type == "Sub":
        return (factor, summand - number) if position == 0 else None
    return factor, summand + number


def known(value: ir.Value | None) -> ir.TensorProtocol | None:
    """A constant, also of a Constant node."""
    return None if value is None else ir.convenience.get_const_tensor(value)


def _indexed(node: ir.Node, position: int) -> tuple[int, int] | None:
    """What a node that takes indices at this input takes there; None if it takes none, or the size of their table is not known."""
    place = _TABLES.get((node.domain, node.op_type), {}).get(position)
    table = node.inputs[place] if place is not None and place < len(node.inputs) else None
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
