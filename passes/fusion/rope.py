"""Rotary positions as exporters write them: ONNX's operator, or the halves of a head put together again.

Source: Su and others, RoFormer, https://arxiv.org/abs/2104.09864
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from infc.passes.graph import at, attribute, dims, producer

_MOVES = ("Reshape", "Squeeze", "Unsqueeze", "Transpose", "Identity")


@dataclass(frozen=True)
class Rope:
    """``x`` [..., d] was rotated by the angles ``cos`` and ``sin`` [tokens, 1, R], into ``nodes``' last output."""

    x: ir.Value
    cos: ir.Value
    sin: ir.Value
    interleaved: bool
    nodes: tuple[ir.Node, ...]


def find(value: ir.Value | None) -> Rope | None:
    """The rotation that made the value, whose elements were but given other dimensions since."""
    value = unmoved(value)
    node = producer(value, "RotaryEmbedding")
    if node is not None:
        return _operator(node)
    return None


def unmoved(value: ir.Value | None) -> ir.Value | None:
    """The first value that has the same elements in the same order."""
    while (node := producer(value, *_MOVES)) is not None:
        if node.op_type == "Transpose" and not _keeps_order(node):
            break
        value = node.inputs[0]
    return value


def _keeps_order(node: ir.Node) -> bool:
    """Whether a Transpose moves nothing but dimensions of one."""
    shape, perm = dims(at(node, 0)), attribute(node, "perm")
    if shape is None or perm is None:
        return False
    moved = [axis for axis in perm if shape[axis] != 1]
    return moved == sorted(moved)


def _operator(node: ir.Node) -> Rope | None:
    """ONNX's, with a row of angles for each token."""
    x, cos, sin = (at(node, i) for i in range(3))
    shape = dims(x)
    if x is None or cos is None or sin is None or at(node, 3) is not None or shape is None or len(shape) != 4 or shape[2] != 1:
        return None
    return Rope(x, cos, sin, bool(attribute(node, "interleaved", 0)), (node,))
