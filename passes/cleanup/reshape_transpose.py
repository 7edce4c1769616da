"""Joins chains of Transpose, and chains of operators that only re-divide dimensions."""

from __future__ import annotations

import onnx_ir as ir

from infc.passes.base import NodePass
from infc.passes.graph import at, attribute, dims, emit, int_constant, known, owner, producer, replace, replaceable, same_shape
from infc.passes.shapes import reshape_target

_RESHAPES = ("Reshape", "Squeeze", "Unsqueeze", "Flatten")


class ReshapeTranspose(NodePass):
    """Transpose of Transpose becomes one, Reshape, Squeeze, Unsqueeze or Flatten of one another becomes one Reshape; what then
    changes nothing goes."""

    name = "reshape_transpose"
    roots = frozenset({"Transpose", *_RESHAPES})

    def rewrite(self, node: ir.Node) -> str | None:
        if node.domain != "":
            return None
        return _transpose(node) if node.op_type == "Transpose" else _reshape(node)


def _transpose(node: ir.Node) -> str | None:
    inner = producer(at(node, 0), "Transpose")
    if inner is None or at(inner, 0) is None:
        return None
    outer_perm, inner_perm = attribute(node, "perm"), attribute(inner, "perm")
    if outer_perm is None or inner_perm is None:
        return None
    source, perm = inner.inputs[0], [inner_perm[i] for i in outer_perm]
    assert source is not None
    if perm == list(range(len(perm))):
        if not replaceable(node.outputs[0], source):
            return None
        replace(node.outputs[0], source, rename=False)
    else:
        joined = emit(node, "Transpose", [source], {"perm": perm}, name=node.name or "", like=node.outputs, sources=(node, inner))
        replace(node.outputs[0], joined.outputs[0])
    return node.name


def _reshape(node: ir.Node) -> str | None:
    inner = producer(at(node, 0), *_RESHAPES)
    source = at(inner, 0) if inner is not None else None
    if inner is None or source is None or not known(dims(node.outputs[0])):
        return None
    if same_shape(source, node.outputs[0]):
        if not replaceable(node.outputs[0], source):
            return None
        replace(node.outputs[0], source, rename=False)
        return node.name
    target = reshape_target(dims(source), dims(node.outputs[0]))
    if target is None:
        return None
    joined = emit(
        node, "Reshape", [source, int_constant(owner(node), target)], name=node.name or "", like=node.outputs, sources=(node, inner)
    )
    replace(node.outputs[0], joined.outputs[0])
    return node.name
