"""Finds attention: ONNX's operator, or MatMul, scale, mask, Softmax, MatMul."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from infc.passes.base import Miss
from infc.passes.evaluate import Array
from infc.passes.graph import Dims, at, attribute, dims, emit, is_op, other, scalar, sole_use, split_constant


@dataclass
class Mask:
    """``view(value)`` is what is added to the scores, or true where a key takes part."""

    value: ir.Value
    form: str = "as it is"
    view: Callable[[Array], Array] = lambda x: x
    fill: ir.Value | None = None  # what hidden scores become, where they are replaced


@dataclass
class Found:
    """q ``[B,H,S,d]``, k ``[B,Hk,S,d]`` and v ``[B,Hk,S,dv]`` in, ``[B,H,S,dv]`` out, made by ``nodes``, the root last."""

    q: ir.Value
    k: ir.Value
    v: ir.Value
    scale: float
    masks: list[Mask]
    nodes: list[ir.Node]
    keys_last: bool = False  # k is [B,Hk,d,S]

    @property
    def mask(self) -> Mask | None:
        """The only mask. Masks and biases that apply one after another are in ``masks``, the innermost first."""
        return self.masks[0] if len(self.masks) == 1 else None

    def key_shape(self) -> Dims | None:
        """The shape of k as ``[B,Hk,S,d]``."""
        shape = dims(self.k)
        return (*shape[:2], shape[3], shape[2]) if self.keys_last and shape is not None and len(shape) == 4 else shape

    def keys(self) -> ir.Value:
        """k as ``[B,Hk,S,d]``."""
        if not self.keys_last:
            return self.k
        root = self.nodes[-1]
        return emit(
            root, "Transpose", [self.k], {"perm": [0, 1, 3, 2]}, name=f"{root.name}/keys", like=[(self.k.dtype, self.key_shape())]
        ).outputs[0]


def find(node: ir.Node) -> Found | None:
    """The attention at an Attention or Softmax node, None where there is none. Raises Miss for one with a cache, causality or a
    softcap, or whose parts are read elsewhere."""
    if node.domain != "":
        return None
    return _operator(node) if node.op_type == "Attention" else _written_out(node)


def _operator(node: ir.Node) -> Found | None:
    q, k, v = (at(node, i) for i in range(3))
    shape = dims(q)
    if q is None or k is None or v is None or shape is None or len(shape) != 4:
        raise Miss(node, "query, key and value are not known to be [batch, heads, seq, size]")
    if any(at(node, i) is not None for i in range(4, len(node.inputs))) or any(
        o.uses() or o.is_graph_output() for o in node.outputs[1:]
    ):
        raise Miss(node, "it has a cache or gives its scores")
    if attribute(node, "is_causal", 0) or attribute(node, "softcap", 0.0):
        raise Miss(node, "it is causal or has a softcap")
    scale = attribute(node, "scale")
    if scale is None:
        if not isinstance(shape[3], int):
            raise Miss(node, "the head size is unknown")
        scale = 1 / math.sqrt(shape[3])
    mask = at(node, 3)
    return Found(q, k, v, scale, [] if mask is None else [Mask(mask)], [node])


def _written_out(softmax: ir.Node) -> Found | None:
    rank = len(dims(at(softmax, 0)) or ())
    scores = at(softmax, 0)
    result = _apply_to_values(softmax)
    if rank != 4 or scores is None or result is None:
        return None
    root, above, nodes = result
    if attribute(softmax, "axis", -1) not in (-1, 3):
        raise Miss(softmax, "the softmax is not over the keys")
    nodes = [softmax, *nodes]
    masks, scores = _masks_of(scores, nodes)
    scale, product = _unscaled(scores, nodes)
    if not is_op(product.producer(), "MatMul"):
        return None
    matmul = product.producer()
    assert matmul is not None
    q, kt, v = matmul.inputs[0], matmul.inputs[1], above
    assert q is not None
    assert kt is not None
    nodes.append(matmul)
    for n in nodes:
        if n is not root and sole_use(n.outputs[0]) is None and not is_op(n, "Softmax"):
            raise Miss(softmax, f"{n.outputs[0].name} is used elsewhere")
    q_scale, q = _unscaled(q, nodes)
    k_scale, kt = _unscaled(kt, nodes)
    return Found(q, kt, v, scale * q_scale * k_scale, masks, [*reversed(nodes), root], keys_last=True)


def _apply_to_values(softmax: ir.Node) -> tuple[ir.Node, ir.Value, list[ir.Node]] | None:
    """(the MatMul with the values, the values, nodes between) after a softmax. What turns the NaN of a row without keys to zero
    is skipped: PaddedAttention gives zero there."""
    weights, between = softmax.outputs[0], []
    guard = next((n for n in weights.consumers() if is_op(n, "IsNaN")), None)
    if guard is not None:
        chosen = sole_use(guard.outputs[0])
        if not is_op(chosen, "Where") or chosen is None or scalar(at(chosen, 1)) != 0 or at(chosen, 2) is not weights:
            return None
        between, weights = [guard, chosen], chosen.outputs[0]
    root = sole_use(weights)
    if not is_op(root, "MatMul") or root is None or root.inputs[0] is not weights or root.inputs[1] is None:
        return None
    return root, root.inputs[1], between


def _masks_of(scores: ir.Value, nodes: list[ir.Node]) -> tuple[list[Mask], ir.Value]:
    """The masks and biases, the innermost first, and the scores under them."""
    masks: list[Mask] = []
    while (found := _mask_of(scores)) is not None:
        node, mask, scores = found
        nodes.append(node)
        masks.insert(0, mask)
    return masks, scores


def _mask_of(scores: ir.Value) -> tuple[ir.Node, Mask, ir.Value] | None:
    """The node that masks these scores, the mask, and the scores under it."""
    node = scores.producer()
    if is_op(node, "Add") and node is not None:
        for value in node.inputs:
            if value is not None and _leads_to_matmul(value):
                mask = other(node, value)
                assert mask is not None
                return node, Mask(mask), value
    if is_op(node, "Where") and node is not None:
        condition, a, b = node.inputs
        for kept, fill, negated in ((a, b, False), (b, a, True)):
            low = scalar(fill)
            if kept is not None and condition is not None and low is not None and low <= -1e4 and _leads_to_matmul(kept):
                if negated:
                    return node, Mask(condition, "hidden where true", np.logical_not, fill), kept
                return node, Mask(condition, fill=fill), kept
    return None


def _leads_to_matmul(value: ir.Value) -> bool:
    while (found := _mask_of(value)) is not None:
        value = found[2]
    return is_op(_unscaled(value, [])[1].producer(), "MatMul")


def _unscaled(value: ir.Value, nodes: list[ir.Node]) -> tuple[float, ir.Value]:
    """Takes a constant factor off a value."""
    node = value.producer()
    if not is_op(node, "Mul", "Div") or node is None:
        return 1.0, value
    sides = split_constant(node)
    factor = scalar(sides[1]) if sides is not None else None
    if sides is None or not factor or (node.op_type == "Div" and node.inputs[1] is not sides[1]):
        return 1.0, value
    nodes.append(node)
    return (factor if node.op_type == "Mul" else 1 / factor), sides[0]
