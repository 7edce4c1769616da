"""Divides the channels of a value by constants that the products reading it are multiplied by: the function stays the same.

The division goes into what makes the value: a norm's scale and shift, or the columns of the Linear before it, looked for through
an attention, a gate or a Split. Where nothing takes it, it is a multiplication of its own, in front of the products.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from infc.passes.domain import DOMAIN
from infc.passes.graph import add_constant, at, attribute, constant, dims, emit, ints, over_last_axis, owner, sole_use
from infc.passes.quant.products import Product

Array = np.ndarray[Any, Any]
_NORMS = {"LayerNormalization": (1, 2), "RMSNormalization": (1,), "AddNorm": (2, 3)}  # operands that are divided
_ATTENTIONS = ("PaddedAttention", "VarlenAttention")


@dataclass(frozen=True)
class Place:
    """What can take a division: constants of ``node`` at ``operands``, in their last dimension, ``count`` channels from ``start``.

    ``shared`` ``(groups, repeats, size)``: channels ``[groups, repeats, size]`` of the value come from ``[groups, size]`` of the
    place, so divisors must be equal along ``repeats``."""

    node: ir.Node
    operands: tuple[int, ...]
    start: int
    count: int
    shared: tuple[int, int, int] | None = None

    def tie(self, divisors: Array) -> Array:
        """The divisors as the place can take them, for all channels of the value."""
        if self.shared is None:
            return divisors
        tied = divisors.reshape(self.shared).max(axis=1, keepdims=True)
        return np.broadcast_to(tied, self.shared).reshape(-1)

    def divide(self, divisors: Array) -> None:
        own = divisors if self.shared is None else divisors.reshape(self.shared)[:, 0].reshape(-1)
        for index in self.operands:
            if at(self.node, index) is not None:
                derive(self.node, index, lambda data: _divided(data, own, self.start))


def find(value: ir.Value, readers: Sequence[ir.Node]) -> Place | str:
    """What can take the division of a value that only ``readers`` read; else why nothing can."""
    if value.is_graph_output():
        return f"{value.name} is an output"
    if any(use.node not in readers for use in value.uses()):
        return f"{value.name} is read by others too"
    return _place(value)


def _place(value: ir.Value) -> Place | str:
    node, width = value.producer(), (dims(value) or (None,))[-1]
    if node is None or not isinstance(width, int):
        return f"nothing before {value.name} takes scales"
    if node.op_type in _NORMS and node.outputs[0] is value and over_last_axis(node):
        return _constants(node, _NORMS[node.op_type], width)
    if node.domain == DOMAIN and node.op_type == "Linear":
        if attribute(node, "activation", "") not in ("", "relu") or at(node, 3) is not None:
            return f"{node.name} has an activation or a residual"
        return _constants(node, (1, 2), width)
    if node.domain == "" and node.op_type == "MatMul" and len(dims(at(node, 1)) or ()) == 2:
        return _constants(node, (1,), width)
    return _through(node, value, width)


def _through(node: ir.Node, value: ir.Value, width: int) -> Place | str:
    """A place further up."""
    if node.domain == DOMAIN and node.op_type in _ATTENTIONS:
        heads, kv_heads = attribute(node, "num_heads"), attribute(node, "kv_num_heads")
        inner = _before(at(node, 2), node)
        return inner if isinstance(inner, str) else _repeated(inner, kv_heads, heads // kv_heads, width // heads)
    if node.domain == "" and node.op_type == "Mul":
        for operand in node.inputs:
            found = _before(operand, node) if dims(operand) == dims(value) else ""
            if isinstance(found, Place):
                return found
    if node.domain == "" and node.op_type == "Split" and attribute(node, "axis", 0) in (-1, len(dims(value) or ()) - 1):
        sizes, whole = ints(at(node, 1)), at(node, 0)
        inner = _before(whole, node)
        if sizes is not None and isinstance(inner, Place) and inner.shared is None:
            start = inner.start + sum(sizes[:list(node.outputs).index(value)])
            return Place(inner.node, inner.operands, start, width)
    return f"nothing before {value.name} takes scales"


def _before(value: ir.Value | None, reader: ir.Node) -> Place | str:
    if value is None or sole_use(value) is not reader:
        return "it is read by others too"
    return _place(value)


def _repeated(place: Place, groups: int, repeats: int, size: int) -> Place | str:
    if place.shared is not None or place.count != groups * size:
        return "heads do not fit"
    return Place(place.node, place.operands, place.start, place.count, (groups, repeats, size) if repeats > 1 else None)


def _constants(node: ir.Node, operands: tuple[int, ...], width: int) -> Place | str:
    present = [at(node, i) for i in operands if at(node, i) is not None]
    if any(constant(v) is None or (dims(v) or (0,))[-1] != width for v in present):
        return f"{node.name} has operands that are no constants of {width}"
    return Place(node, operands, 0, width)


def _divided(data: Array, divisors: Array, start: int) -> Array:
    out = np.array(data, np.float32)
    out[..., start:start + divisors.size] /= divisors
    return out


def derive(node: ir.Node, index: int, function: Callable[[Array], Array], shape: Sequence[int] | None = None) -> None:
    """Gives the node a constant of its own, computed from the one it has whenever it is read, so that no copy is kept."""
    value = at(node, index)
    assert value is not None
    tensor = value.const_value
    assert tensor is not None
    name = f"{node.name}/operand{index}"
    graph = owner(node)
    while name in graph.initializers:
        name += "'"
    lazy = ir.LazyTensor(lambda: ir.tensor(np.ascontiguousarray(function(tensor.numpy()))), dtype=ir.DataType.FLOAT,
                         shape=ir.Shape(tensor.shape.numpy() if shape is None else shape), name=name, cache=False)
    node.replace_input_with(index, add_constant(graph, name, lazy))
    drop(value)


def drop(value: ir.Value | None) -> None:
    """Forgets a constant that nothing reads any more."""
    if value is None or value.uses() or value.is_graph_output() or not isinstance(value.graph, ir.Graph):
        return
    value.graph.initializers.pop(value.name or "", None)


def multiply(value: ir.Value, factors: Array, readers: Sequence[Product]) -> ir.Value:
    """``value`` by ``factors`` ``[C]``, which ``readers`` read instead: a node of its own."""
    anchor = readers[0].node
    name = f"{value.name}/scaled"
    number = add_constant(owner(anchor), f"{name}/factors", factors.astype(np.float32))
    node = emit(anchor, "Mul", [value, number], name=name, like=[value])
    for reader in readers:
        reader.node.replace_input_with(0, node.outputs[0])
    return node.outputs[0]


def scale_rows(product: Product, factors: Array) -> None:
    """Multiplies row k of the product's matrix by ``factors[k]``."""
    column = factors.astype(np.float32)[:, None] if product.k_axis == 0 else factors.astype(np.float32)[None, :]
    derive(product.node, 1, lambda data: np.asarray(data, np.float32) * column)


def normalised(factors: Array) -> Array:
    """With a geometric mean of 1."""
    logs = np.log(np.maximum(factors, 1e-12))
    return np.exp(logs - logs.mean()).astype(np.float32) if math.isfinite(float(logs.mean())) else np.ones_like(factors)
