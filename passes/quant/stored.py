"""Weights that are stored in fewer bits: DequantizeLinear or DequantizeBlocks of constants, or Cast of one in a narrower float."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from infc.passes.domain import DOMAIN
from infc.passes.graph import add_constant, at, attribute, constant, dims, emit, owner, producer

Array = np.ndarray[Any, Any]
_NARROW = (ir.DataType.BFLOAT16, ir.DataType.FLOAT16, ir.DataType.FLOAT8E4M3FN)
_STORED = (ir.DataType.INT8, ir.DataType.UINT8, ir.DataType.INT4, ir.DataType.UINT4, ir.DataType.FLOAT8E4M3FN)


@dataclass(frozen=True)
class Weight:
    """``data`` as stored; ``scale`` and ``zero`` are None of a Cast. Scales are one number, one for each index along ``axis``, or,
    with ``block``, one for so many neighbours along ``axis``. ``fine`` zeros count sixteenths."""

    data: ir.Value
    scale: ir.Value | None = None
    zero: ir.Value | None = None
    fine: bool = False
    axis: int = 0
    block: int = 0

    @property
    def one_scale(self) -> bool:
        return self.scale is not None and not self.block and (dims(self.scale) or ()) in ((), (1,))

    @property
    def parts(self) -> list[ir.Value]:
        return [v for v in (self.data, self.scale, self.zero) if v is not None]


def read(value: ir.Value | None) -> Weight | None:
    """The weight that an f32 value is dequantised from; None of others."""
    if value is None or value.dtype != ir.DataType.FLOAT:
        return None
    cast = producer(value, "Cast")
    if cast is not None:
        data = at(cast, 0)
        return Weight(data) if data is not None and constant(data) is not None and data.dtype in _NARROW else None
    node = producer(value, "DequantizeLinear") or producer(value, "DequantizeBlocks", domain=DOMAIN)
    if node is None or any(v is not None and constant(v) is None for v in node.inputs):
        return None
    data, scale = node.inputs[0], node.inputs[1]
    if data is None or scale is None or data.dtype not in _STORED or scale.dtype != ir.DataType.FLOAT:
        return None
    rank = len(dims(data) or ())
    return Weight(data, scale, at(node, 2), node.domain == DOMAIN, attribute(node, "axis", 1) % max(rank, 1),
                  attribute(node, "block_size", 0))


def is_weight(value: ir.Value | None) -> bool:
    """Whether it is a constant, or read from stored ones."""
    return constant(value) is not None or read(value) is not None


def transposed(value: ir.Value, anchor: ir.Node) -> ir.Value:
    """A stored matrix ``[N, K]`` as ``[K, N]``, with its own numbers."""
    weight = read(value)
    assert weight is not None

    def part(v: ir.Value | None) -> ir.Value | None:
        return _transposed(v) if v is not None and weight.block and len(dims(v) or ()) == 2 else v

    turned = Weight(_transposed(weight.data), part(weight.scale), part(weight.zero), weight.fine, 1 - weight.axis, weight.block)
    return write(turned, anchor, f"{value.name}/transposed", (dims(value) or ())[::-1])


def write(weight: Weight, anchor: ir.Node, name: str, shape: Sequence[Any]) -> ir.Value:
    """The f32 value read from a weight, by a node before ``anchor``."""
    like: list[ir.Value | tuple[ir.DataType | None, Any]] = [(ir.DataType.FLOAT, tuple(shape))]
    if weight.scale is None:
        return emit(anchor, "Cast", [weight.data], {"to": int(ir.DataType.FLOAT)}, name=name, like=like).outputs[0]
    attributes = {"axis": weight.axis, **({"block_size": weight.block} if weight.block else {})}
    if weight.fine:
        return emit(anchor, "DequantizeBlocks", weight.parts, attributes, domain=DOMAIN, name=name, like=like).outputs[0]
    return emit(anchor, "DequantizeLinear", weight.parts, attributes, name=name, like=like).outputs[0]


def _transposed(value: ir.Value) -> ir.Value:
    """Computed when it is first read."""
    tensor, graph = value.const_value, value.graph
    assert tensor is not None
    assert isinstance(graph, ir.Graph)
    dtype, name = tensor.dtype, f"{value.name}/transposed"
    lazy = ir.LazyTensor(lambda: ir.tensor(np.ascontiguousarray(tensor.numpy().T), dtype=dtype), dtype=dtype,
                         shape=ir.Shape(tensor.shape.numpy()[::-1]), name=name, cache=True)
    return add_constant(graph, name, lazy)


def joinable(weights: Sequence[Weight]) -> bool:
    """Whether matrices ``[K, N]`` can be one, side by side."""
    first = weights[0]
    return all(w.data.dtype == first.data.dtype and w.block == first.block and (w.zero is None) == (first.zero is None)
               and w.fine == first.fine
               and (w.scale is None) == (first.scale is None) and (w.one_scale or w.axis == (0 if w.block else 1)
                                                                    or w.scale is None) for w in weights)


def join(weights: Sequence[Weight], anchor: ir.Node, name: str) -> ir.Value:
    """Matrices ``[K, N]`` side by side; they are ``joinable``."""
    graph, first = owner(anchor), weights[0]
    widths = [int((dims(w.data) or ())[1]) for w in weights]  # type: ignore[arg-type]
    data = _side_by_side(graph, f"{name}/stored", [w.data for w in weights], None)

    def part(what: str) -> ir.Value | None:
        parts = [getattr(w, what) for w in weights]
        return None if parts[0] is None else _side_by_side(graph, f"{name}/{what}", parts, None if first.block else widths)

    joined = Weight(data, part("scale"), part("zero"), first.fine, 0 if first.block else 1, first.block)
    return write(joined, anchor, name, ((dims(first.data) or ())[0], sum(widths)))


def _side_by_side(graph: ir.Graph, name: str, parts: Sequence[ir.Value | None], widths: Sequence[int] | None) -> ir.Value:
    """Constants joined along their last axis; vectors ``[N]`` or single numbers are spread to ``widths``."""
    tensors = [v.const_value for v in parts if v is not None]
    present = [t for t in tensors if t is not None]
    dtype = present[0].dtype
    shape = [sum(widths)] if widths else [*present[0].shape.numpy()[:-1], sum(t.shape.numpy()[-1] for t in present)]

    def joined() -> ir.TensorProtocol:
        arrays = [t.numpy() for t in present]
        if widths:
            arrays = [np.broadcast_to(a.reshape(-1), (w,)) for a, w in zip(arrays, widths, strict=True)]
        return ir.tensor(np.concatenate(arrays, axis=-1), dtype=dtype)

    return add_constant(graph, name, ir.LazyTensor(joined, dtype=dtype, shape=ir.Shape(shape), name=name, cache=True))
