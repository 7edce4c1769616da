"""Rotary positions as exporters write them: ONNX's operator, or the halves of a head put together again; of all of a head or of its
first elements.

Source: Su and others, RoFormer, https://arxiv.org/abs/2104.09864
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import onnx_ir as ir

from infc.passes.graph import Dims, at, attribute, constant, dims, emit, ints, other, over_last_axis, producer

_MOVES = ("Reshape", "Squeeze", "Unsqueeze", "Transpose", "Identity")
_KEPT = ("Cos", "Sin", "Cast")  # operators that make an angle of each half of what they read


@dataclass(frozen=True)
class Rope:
    """``x`` [..., d] was rotated by the angles ``cos`` and ``sin``, [tokens, 1, R], or [..., 2R] with each one twice if
    ``doubled``."""

    x: ir.Value
    cos: ir.Value
    sin: ir.Value
    interleaved: bool
    doubled: bool
    nodes: tuple[ir.Node, ...]


def find(value: ir.Value | None) -> Rope | None:
    """The rotation that made the value, whose elements were but given other dimensions since."""
    value = unmoved(value)
    joined = producer(value, "Concat")
    if joined is not None and len(joined.inputs) == 2 and over_last_axis(joined):
        return _partial(joined)
    return _whole(value)


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


def _whole(value: ir.Value | None) -> Rope | None:
    node = producer(value, "RotaryEmbedding", "Add")
    if node is None:
        return None
    return _operator(node) if node.op_type == "RotaryEmbedding" else _written_out(node)


def _operator(node: ir.Node) -> Rope | None:
    """ONNX's, with a row of angles for each token."""
    x, cos, sin = (at(node, i) for i in range(3))
    shape = dims(x)
    if x is None or cos is None or sin is None or at(node, 3) is not None or shape is None or len(shape) != 4 or shape[2] != 1:
        return None
    return Rope(x, cos, sin, bool(attribute(node, "interleaved", 0)), False, (node,))


def _written_out(node: ir.Node) -> Rope | None:
    """x * cos + [-second half, first half] * sin."""
    products = [producer(v, "Mul") for v in node.inputs]
    for plain, turned in (products, products[::-1]):
        if plain is None or turned is None:
            continue
        for half in turned.inputs:
            x = _turned(half)
            if x is not None and x in plain.inputs and half is not None:
                cos, sin = other(plain, x), other(turned, half)
                if cos is not None and sin is not None:
                    return Rope(x, cos, sin, False, True, (plain, turned, node))
    return None


def _turned(value: ir.Value | None) -> ir.Value | None:
    """x of [-second half of x, first half of x]."""
    joined = producer(value, "Concat")
    if joined is None or len(joined.inputs) != 2 or not over_last_axis(joined):
        return None
    negated = producer(joined.inputs[0], "Neg")
    second, first = part(at(negated, 0) if negated is not None else None), part(joined.inputs[1])
    if first is None or second is None or first[0] is not second[0]:
        return None
    size = (dims(first[0]) or (None,))[-1]
    halves = isinstance(size, int) and first[1:] == (0, size // 2) and second[1:] == (size // 2, size)
    return first[0] if halves else None


def part(value: ir.Value | None) -> tuple[ir.Value, int, int] | None:
    """(x, start, end) of x[..., start:end], made by Slice or Split."""
    node = producer(value, "Slice", "Split")
    x = at(node, 0) if node is not None else None
    size, rank = (dims(x) or (None,))[-1], len(dims(x) or ())
    if node is None or x is None or value is None or not isinstance(size, int):
        return None
    if node.op_type == "Split":
        if not over_last_axis(node, 0):
            return None
        widths = [(dims(v) or (None,))[-1] for v in node.outputs]
        if not all(isinstance(w, int) for w in widths):
            return None
        start = sum(w for w in widths[: node.outputs.index(value)] if isinstance(w, int))
        return x, start, start + int((dims(value) or (0,))[-1])  # type: ignore[arg-type]
    starts, ends, axes = (ints(at(node, i)) for i in (1, 2, 3))
    steps = ints(at(node, 4)) if at(node, 4) is not None else [1]
    if starts is None or ends is None or axes is None or len(axes) != 1 or axes[0] % rank != rank - 1 or steps != [1]:
        return None
    start, end = (min(i if i >= 0 else i + size, size) for i in (starts[0], ends[0]))
    return x, start, end


def _partial(joined: ir.Node) -> Rope | None:
    """The first elements of each head are rotated, the rest stays."""
    rope, rest = _whole(joined.inputs[0]), part(joined.inputs[1])
    first = part(rope.x) if rope is not None else None
    if rope is None or first is None or rest is None or first[0] is not rest[0]:
        return None
    size = (dims(rest[0]) or (None,))[-1]
    if first[1] != 0 or first[2] != rest[1] or rest[2] != size:
        return None
    return replace(rope, x=first[0], nodes=(*rope.nodes, joined))


def angles(rope: Rope, anchor: ir.Node) -> tuple[ir.Value, ir.Value] | None:
    """Cosines and sines [tokens, 1, R]; None where the halves are not known to be the same."""
    if not rope.doubled:
        return rope.cos, rope.sin
    if not (_is_double(rope.cos) and _is_double(rope.sin)):
        return None
    return _half(rope.cos, anchor), _half(rope.sin, anchor)


def _is_double(value: ir.Value | None) -> bool:
    """Whether it is made, element by element, of [f, f]."""
    value = unmoved(value)
    node = producer(value, "Concat", "Mul", "Div", *_KEPT)
    if node is None:
        return False
    if node.op_type == "Concat":
        return over_last_axis(node) and len(node.inputs) == 2 and node.inputs[0] is node.inputs[1] and len(dims(value) or ()) == 3
    return _scale(node) is not None if node.op_type in ("Mul", "Div") else _is_double(node.inputs[0])


def _scale(node: ir.Node) -> ir.Value | None:
    """What a product or quotient with one number scales."""
    for x, factor in (node.inputs, node.inputs[::-1])[: 1 if node.op_type == "Div" else 2]:
        tensor = constant(factor)
        if tensor is not None and tensor.size == 1 and _is_double(x):
            return x
    return None


def _half(value: ir.Value | None, anchor: ir.Node) -> ir.Value:
    """What ``_is_double`` found, made of f."""
    value = unmoved(value)
    node = producer(value, "Concat", "Mul", "Div", *_KEPT)
    assert node is not None
    if node.op_type == "Concat":
        assert node.inputs[0] is not None
        return node.inputs[0]
    scaled = _scale(node) if node.op_type in ("Mul", "Div") else node.inputs[0]
    made = _half(scaled, anchor)
    inputs = [made if v is scaled else v for v in node.inputs]
    shape: Dims = dims(made) or ()
    copy = emit(anchor, node.op_type, inputs, {k: a.value for k, a in node.attributes.items()}, name=f"{anchor.name}/{node.name}",
                like=[(node.outputs[0].dtype, shape)], sources=[node])
    return copy.outputs[0]
