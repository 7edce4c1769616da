"""LayerNormalization in its written-out forms becomes ONNX's operator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from infc.passes.base import Miss, NodePass
from infc.passes.fusion.fuse_l2_normalize import square_of
from infc.passes.graph import (
    add_constant,
    at,
    attribute,
    constant,
    dims,
    emit,
    is_op,
    other,
    owner,
    producer,
    reduced_axes,
    replace,
    scalar,
    sole_use,
    split_constant,
)


@dataclass
class Norm:
    """A decomposed norm: ``value`` is the result so far, made by ``nodes``, last one last."""

    x: ir.Value
    epsilon: float
    value: ir.Value
    nodes: list[ir.Node]
    gamma: ir.Value | None = None
    beta: ir.Value | None = None


class FuseLayerNorm(NodePass):
    """``(x - mean) / sqrt(var + epsilon) · gamma + beta`` over the last axis: the square a Pow or Mul, the division a Div or
    the product with a Reciprocal; and TensorFlow's ``x · s + (beta - mean · s)`` with ``s = gamma / sqrt(var + epsilon)``.
    Gamma and beta may be absent."""

    name = "fuse_layer_norm"
    roots: ClassVar[frozenset[str]] = frozenset({"Sqrt"})

    def rewrite(self, node: ir.Node) -> str | None:
        found = deviation(node)
        if found is None:
            return None
        squared, epsilon, nodes = found
        centred = producer(squared, "Sub")
        mean = producer(at(centred, 1), "ReduceMean") if centred is not None else None
        if centred is None or mean is None or at(mean, 0) is not at(centred, 0):
            return None
        if not _over_last(mean):
            raise Miss(mean, "the mean is not over the last axis, kept as 1")
        x = centred.inputs[0]
        assert x is not None
        norm = divided(node, centred.outputs[0], x, epsilon, [mean, centred, *nodes]) or _tensorflow(
            node, x, mean, epsilon, [centred, *nodes]
        )
        if norm is None:
            raise Miss(node, "the deviation does not divide what it was computed from")
        for value in (mean.outputs[0], centred.outputs[0], node.outputs[0]):
            if value.is_graph_output() or any(u.node not in norm.nodes for u in value.uses()):
                raise Miss(node, f"{value.name} is used elsewhere")
        return build(norm, "LayerNormalization")


def build(norm: Norm, op_type: str) -> str | None:
    root = norm.nodes[-1]
    gamma = norm.gamma
    if gamma is None:
        width = (dims(norm.x) or (None,))[-1]
        dtype = norm.x.dtype
        if not isinstance(width, int) or dtype is None:
            raise Miss(root, "the width of the last axis is unknown")
        gamma = add_constant(owner(root), f"infc.ones[{width}]{dtype.name}", np.ones(width, dtype.numpy()))
    inputs = [norm.x, gamma] if norm.beta is None else [norm.x, gamma, norm.beta]
    fused = emit(
        root, op_type, inputs, {"axis": -1, "epsilon": norm.epsilon}, name=root.name or "", like=root.outputs, sources=norm.nodes
    )
    replace(norm.value, fused.outputs[0])
    return fused.name


def _over_last(node: ir.Node) -> bool:
    return reduced_axes(node) == [len(dims(at(node, 0)) or ()) - 1] and bool(attribute(node, "keepdims", 1))


def deviation(root: ir.Node) -> tuple[ir.Value, float, list[ir.Node]] | None:
    """(d, epsilon, nodes) of ``sqrt(mean(d²) + epsilon)`` over the last axis."""
    add = producer(at(root, 0), "Add")
    sides = split_constant(add) if add is not None else None
    mean = producer(sides[0], "ReduceMean") if sides is not None else None
    if add is None or sides is None or mean is None:
        return None
    epsilon = scalar(sides[1])
    square = producer(at(mean, 0), "Mul", "Pow")
    squared = at(square, 0) if square is not None else None
    if epsilon is None or squared is None or square_of(at(mean, 0), squared) is None or square is None:
        return None
    if not _over_last(mean):
        raise Miss(mean, "the mean of squares is not over the last axis, kept as 1")
    return squared, epsilon, [square, mean, add, root]


def divided(root: ir.Node, numerator: ir.Value, x: ir.Value, epsilon: float, nodes: list[ir.Node]) -> Norm | None:
    """Follows ``numerator / sqrt`` on to the scale and the shift."""
    for use in root.outputs[0].uses():
        if is_op(use.node, "Div") and use.idx == 1 and at(use.node, 0) is numerator:
            return _scaled(Norm(x, epsilon, use.node.outputs[0], [*nodes, use.node]))
        if is_op(use.node, "Reciprocal") or (is_op(use.node, "Div") and scalar(at(use.node, 0)) == 1):
            product = sole_use(use.node.outputs[0])
            if is_op(product, "Mul") and product is not None and other(product, use.node.outputs[0]) is numerator:
                return _scaled(Norm(x, epsilon, product.outputs[0], [*nodes, use.node, product]))
    return None


def _row(value: ir.Value | None, norm: Norm) -> bool:
    """Whether the value is a constant ``[N]`` as wide as x."""
    shape = dims(value)
    return constant(value) is not None and shape is not None and len(shape) == 1 and shape[0] == (dims(norm.x) or (None,))[-1]


def _scaled(norm: Norm) -> Norm:
    for op_type in ("Mul", "Add"):
        node = sole_use(norm.value)
        operand = other(node, norm.value) if is_op(node, op_type) and node is not None else None
        if node is None or operand is None or not _row(operand, norm):
            continue
        norm.nodes.append(node)
        norm.value = node.outputs[0]
        if op_type == "Mul":
            norm.gamma = operand
        else:
            norm.beta = operand
    return norm


def _tensorflow(root: ir.Node, x: ir.Value, mean: ir.Node, epsilon: float, nodes: list[ir.Node]) -> Norm | None:
    inverse = sole_use(root.outputs[0])
    if inverse is None or not (is_op(inverse, "Reciprocal") or (is_op(inverse, "Div") and scalar(at(inverse, 0)) == 1)):
        return None
    scale = sole_use(inverse.outputs[0])
    sides = split_constant(scale) if is_op(scale, "Mul") and scale is not None else None
    if scale is None or sides is None:
        return None
    factor, gamma = scale.outputs[0], sides[1]
    products = {p.outputs[0]: other(p, factor) for p in factor.consumers() if is_op(p, "Mul")}
    scaled = next((p for p, operand in products.items() if operand is x), None)
    shift = next((p for p, operand in products.items() if operand is mean.outputs[0]), None)
    if len(products) != 2 or scaled is None or shift is None:
        return None
    rest, total = sole_use(shift), sole_use(scaled)
    if (
        rest is None
        or total is None
        or not is_op(rest, "Sub")
        or rest.inputs[1] is not shift
        or not is_op(total, "Add")
        or other(total, scaled) is not rest.outputs[0]
    ):
        return None
    makers = [v.producer() for v in (scaled, shift)]
    norm = Norm(
        x,
        epsilon,
        total.outputs[0],
        [mean, *nodes, inverse, scale, *(m for m in makers if m is not None), rest, total],
        gamma,
        rest.inputs[0],
    )
    return norm if _row(gamma, norm) and _row(norm.beta, norm) else None
