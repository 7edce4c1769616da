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
    for node in list(model.graph):
        if is_op(node, "Attention"):
            notes += rewrite_attention(node, fused=precision != "f32")
        elif is_op(node, "LayerNormalization") and len(node.outputs) > 1:
            _statistics(node)
        elif is_op(node, "CenterCropPad"):
            _crop_or_pad(node)
    return [f"{notes.count(note)} × {note}" for note in dict.fromkeys(notes)]


def _statistics(node: ir.Node) -> None:
    """The parser takes LayerNormalization with one output: mean and inverse deviation are computed beside it."""
    x, graph, name = node.inputs[0], node.graph, name_of(node)
    assert x is not None
    assert isinstance(graph, ir.Graph)
    if any(o.uses() or o.is_graph_output() for o in node.outputs[1:]):
        shape = sizes(x)
        assert shape is not None
        first = attribute(node, "axis", -1) % len(shape)
        reduced = (*shape[:first], *(1 for _ in shape[first:]))
        axes = ints(graph, list(range(first, len(shape))))
        epsilon = add_constant(graph, f"{name}/epsilon", np.float32(attribute(node, "epsilon", 1e-5)))
        mean = emit(node, "ReduceMean", [x, axes], FLOAT, reduced, name=f"{name}/mean", keepdims=1)
        centred = emit(node, "Sub", [x, mean], FLOAT, shape, name=f"{name}/centred")
        square = emit(node, "Mul", [centred, centred], FLOAT, shape, name=f"{name}/square")
        variance = emit(node, "ReduceMean", [square, axes], FLOAT, reduced, name=f"{name}/variance", keepdims=1)
        safe = emit(node, "Add", [variance, epsilon], FLOAT, reduced, name=f"{name}/safe")
        deviation = emit(node, "Sqrt", [safe], FLOAT, reduced, name=f"{name}/deviation")
        inverse = emit(node, "Reciprocal", [deviation], FLOAT, reduced, name=f"{name}/inverse")
        for old, new in zip(node.outputs[1:], (mean, inverse), strict=False):
            replace(old, new)
    node.resize_outputs(1)


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
