"""Removes nodes that do not change their input."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from infc.passes.base import NodePass
from infc.passes.graph import array, at, attribute, constant, dims, erase, ints, is_op, known, replace, replaceable, same_shape
from infc.passes.shapes import broadcast

_BROADCASTING = ("Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "Where", "And", "Or", "Equal", "Less", "Greater")


def _same_result(node: ir.Node) -> bool:
    """A move of data whose result has the input's shape."""
    return same_shape(at(node, 0), node.outputs[0])


def _cast(node: ir.Node) -> bool:
    source = at(node, 0)
    return source is not None and source.dtype is not None and source.dtype == attribute(node, "to")


def _transpose(node: ir.Node) -> bool:
    perm = attribute(node, "perm")
    return perm is not None and list(perm) == list(range(len(perm)))


def _slice(node: ir.Node) -> bool:
    steps = ints(at(node, 4)) if at(node, 4) is not None else [1]
    return steps is not None and all(s == 1 for s in steps) and _same_result(node)


def _dropout(node: ir.Node) -> bool:
    training = array(at(node, 2)) if at(node, 2) is not None else np.array(False)
    return training is not None and not training.any() and not any(v.uses() or v.is_graph_output() for v in node.outputs[1:])


def _single(node: ir.Node) -> bool:
    return len(node.inputs) == 1


def _only_row(node: ir.Node) -> bool:
    """A choice along a dimension of one."""
    shape, axis = dims(at(node, 0)), attribute(node, "axis", 0)
    return bool(shape) and shape[axis] == 1 and _same_result(node)  # type: ignore[index]


_UNCHANGED: dict[str, Callable[[ir.Node], bool]] = {
    "Identity": lambda node: True,
    "Dropout": _dropout,
    "Cast": _cast,
    "Reshape": _same_result,
    "Expand": _same_result,
    "Slice": _slice,
    "Transpose": _transpose,
    "Gather": _only_row,
    **dict.fromkeys(("Concat", "Sum", "Max", "Min", "Mean"), _single),
}
_INDICES = (ir.DataType.INT64, ir.DataType.INT32)
_NEUTRAL = {"Add": 0, "Sub": 0, "Mul": 1, "Div": 1, "Or": 0, "And": 1}


class Identities(NodePass):
    """Identity, Dropout, and Cast, Reshape, Expand, Slice, Transpose, Concat and arithmetic that change nothing. An Expand goes
    too when the operators that read it broadcast by themselves, a Cast between integers before a look-up."""

    name = "identities"
    roots = frozenset({*_UNCHANGED, *_NEUTRAL})

    def rewrite(self, node: ir.Node) -> str | None:
        if node.domain != "":
            return None
        kept = self._kept(node)
        if kept is not None and replaceable(node.outputs[0], kept):
            replace(node.outputs[0], kept, rename=False)
            return node.name
        bypassed = (node.op_type == "Expand" and _bypass(node)) or (node.op_type == "Cast" and _as_indices(node))
        return node.name if bypassed else None

    def _kept(self, node: ir.Node) -> ir.Value | None:
        """The input that the node passes on."""
        unchanged = _UNCHANGED.get(node.op_type)
        if unchanged is not None and unchanged(node):
            return at(node, 0)
        neutral = _NEUTRAL.get(node.op_type)
        if neutral is None or len(node.inputs) != 2:
            return None
        for kept, constant_side in ((0, 1), (1, 0)) if node.op_type not in ("Sub", "Div") else ((0, 1),):
            tensor = constant(node.inputs[constant_side])
            if (
                tensor is not None
                and tensor.size <= 4096
                and same_shape(node.inputs[kept], node.outputs[0])
                and (tensor.numpy() == neutral).all()
            ):
                return node.inputs[kept]
        return None


def _as_indices(node: ir.Node) -> bool:
    """Lets look-ups read whole numbers before a Cast to another width, whose numbers are rows of a table in both; True when one
    did."""
    source = at(node, 0)
    if source is None or source.dtype not in _INDICES or attribute(node, "to") not in _INDICES:
        return False
    readers = [use for use in node.outputs[0].uses() if is_op(use.node, "Gather") and use.idx == 1]
    for use in readers:
        use.node.replace_input_with(use.idx, source)
    if readers:
        erase(node)
    return bool(readers)


def _bypass(node: ir.Node) -> bool:
    """Lets readers that broadcast read the Expand's input; True when one did."""
    source, result = at(node, 0), node.outputs[0]
    if source is None or not known(dims(source)):
        return False
    done = False
    for use in list(result.uses()):
        reader = use.node
        if not is_op(reader, *_BROADCASTING):
            continue
        shapes = [dims(source if v is result else v) for v in reader.inputs]
        present = [s for s in shapes if s is not None]
        if known(dims(reader.outputs[0])) and len(present) == len(shapes) and broadcast(*present) == dims(reader.outputs[0]):
            reader.replace_input_with(use.idx, source)
            done = True
    erase(node)
    return done
