"""Writes with other operators what TensorRT's parser or builder does not take. The rest, opset 23's operators included, stays."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from infc.plugins.tensorrt.legalise.attention import rewrite_attention
from infc.plugins.tensorrt.legalise.graph import (
    FLOAT,
    add_constant,
    array,
    at,
    attribute,
    emit,
    ints,
    is_op,
    name_of,
    replace,
    sizes,
)


def decompose(model: ir.Model, precision: str) -> list[str]:
    """Rewrites the graph in place for an engine that computes in ``precision``; says which attention is not fused."""
    notes: list[str] = []
    narrow = precision != "f32"
    for node in list(model.graph):
        if is_op(node, "Attention"):
            notes += rewrite_attention(node, fused=narrow or node.outputs[0].dtype != FLOAT)
        elif is_op(node, "LayerNormalization") and len(node.outputs) > 1:
            _statistics(node)
        elif is_op(node, "MeanVarianceNormalization"):
            _mean_variance(node)
        elif is_op(node, "CenterCropPad"):
            _crop_or_pad(node)
    return [f"{notes.count(note)} × {note}" for note in dict.fromkeys(notes)]


class _Moments:
    """Mean and variance of ``x`` over some axes, which keep the size 1, computed before ``node``."""

    def __init__(self, node: ir.Node, x: ir.Value, axes: list[int]) -> None:
        assert isinstance(node.graph, ir.Graph)
        assert x.shape is not None
        self.node, self.graph, self.name, self.dtype = node, node.graph, name_of(node), x.dtype
        self.full = tuple(x.shape)
        self.reduced = tuple(1 if i in axes else d for i, d in enumerate(self.full))
        over = ints(self.graph, axes)
        self.mean = self.small("ReduceMean", x, over, keepdims=1)
        self.centred = emit(node, "Sub", [x, self.mean], self.dtype, self.full, name=f"{self.name}/centred")
        square = emit(node, "Mul", [self.centred, self.centred], self.dtype, self.full, name=f"{self.name}/square")
        self.variance = self.small("ReduceMean", square, over, keepdims=1)

    def small(self, op_type: str, *inputs: ir.Value, **attributes: object) -> ir.Value:
        """The output of a node, of the size of the mean."""
        name = f"{self.name}/{op_type}.{inputs[0].name}"
        return emit(self.node, op_type, inputs, self.dtype, self.reduced, name=name, **attributes)

    def number(self, value: float) -> ir.Value:
        return add_constant(self.graph, f"{self.name}/{value}", np.array(value, self.dtype.numpy() if self.dtype else np.float32))


def _statistics(node: ir.Node) -> None:
    """The parser takes LayerNormalization with one output: mean and inverse deviation are computed beside it."""
    x = node.inputs[0]
    assert x is not None
    if any(o.uses() or o.is_graph_output() for o in node.outputs[1:]):
        assert x.shape is not None
        first, rank = attribute(node, "axis", -1), len(x.shape)
        moments = _Moments(node, x, list(range(first % rank, rank)))
        safe = moments.small("Add", moments.variance, moments.number(attribute(node, "epsilon", 1e-5)))
        inverse = moments.small("Reciprocal", moments.small("Sqrt", safe))
        for old, new in zip(node.outputs[1:], (moments.mean, inverse), strict=False):
            replace(old, new)
    node.resize_outputs(1)


def _mean_variance(node: ir.Node) -> None:
    """The parser takes it in float32 only; ONNX defines it so."""
    x = node.inputs[0]
    assert x is not None
    assert x.shape is not None
    moments = _Moments(node, x, [a % len(x.shape) for a in attribute(node, "axes", [0, 2, 3])])
    safe = moments.small("Add", moments.small("Sqrt", moments.variance), moments.number(1e-9))
    replace(node.outputs[0], emit(node, "Div", [moments.centred, safe], x.dtype, x.shape, name=name_of(node)))


def _crop_or_pad(node: ir.Node) -> None:
    """Constant sizes: a Slice where an axis shrinks, a Pad where it grows, both around the middle."""
    x, graph, name = node.inputs[0], node.graph, name_of(node)
    wanted, shape = array(at(node, 1)), sizes(x)
    assert isinstance(graph, ir.Graph)
    assert x is not None
    assert wanted is not None
    assert shape is not None
    axes = [a % len(shape) for a in attribute(node, "axes", range(len(shape)))]
    target = dict(zip(axes, (int(w) for w in wanted), strict=True))
    cropped = [min(n, target.get(i, n)) for i, n in enumerate(shape)]
    begins = [(n - c) // 2 for n, c in zip(shape, cropped, strict=True)]
    ends = [b + c for b, c in zip(begins, cropped, strict=True)]
    inside = emit(node, "Slice", [x, ints(graph, begins), ints(graph, ends)], x.dtype, cropped, name=f"{name}/crop")
    grown = [target.get(i, n) for i, n in enumerate(shape)]
    before = [(g - c) // 2 for g, c in zip(grown, cropped, strict=True)]
    after = [g - c - b for g, c, b in zip(grown, cropped, before, strict=True)]
    replace(node.outputs[0], emit(node, "Pad", [inside, ints(graph, before + after)], x.dtype, grown, name=name))
