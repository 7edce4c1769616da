"""Puts a graph into the form that the other passes read: constants are initializers, types are known, float64 is gone."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import ShapeInferencePass

from infc.plugins.tensorrt.legalise.graph import add_constant, array, attribute, constant, is_op, name_of


def infer_types(model: ir.Model) -> None:
    """Fills in types and shapes, where some are unknown."""
    if any(o.dtype is None or o.shape is None for node in model.graph for o in node.outputs if o.name):
        ShapeInferencePass()(model)


def prepare(model: ir.Model) -> list[str]:
    """Rewrites the model in place; says what changed."""
    lift_constants(model.graph)
    _dequantise_biases(model.graph)
    return _narrow(model.graph)


def lift_constants(graph: ir.Graph) -> None:
    """Constant nodes become initializers."""
    for node in list(graph):
        tensor = constant(node.outputs[0]) if is_op(node, "Constant") else None
        if tensor is None or node.outputs[0].is_graph_output():
            continue
        name = node.outputs[0].name
        assert name is not None
        node.outputs[0].name = f"{name}/lifted"
        ir.convenience.replace_all_uses_with(node.outputs[0], add_constant(graph, name, tensor))
        graph.remove(node, safe=True)


def _dequantise_biases(graph: ir.Graph) -> None:
    """Biases in int32, as ONNX Runtime's quantiser stores them, become the floats that they stand for: TensorRT adds those."""
    for node in list(graph):
        stored, scale = (array(v) for v in node.inputs[:2]) if is_op(node, "DequantizeLinear") else (None, None)
        if stored is None or scale is None or stored.dtype != np.int32 or node.outputs[0].is_graph_output():
            continue
        output, name = node.outputs[0], node.outputs[0].name
        assert name is not None
        shape = [-1 if i == attribute(node, "axis", 1) % stored.ndim else 1 for i in range(stored.ndim)] if scale.size > 1 else ()
        output.name = f"{name}/stored"
        numbers = stored.astype(scale.dtype) * scale.reshape(shape)
        ir.convenience.replace_all_uses_with(output, add_constant(graph, name, numbers))
        graph.remove(node, safe=True)


def _narrow(graph: ir.Graph) -> list[str]:
    """float64 becomes float32: TensorRT reads it so anyway, without a word. The border has none, by lint."""
    changed = []
    for value in list(graph.initializers.values()):
        tensor = constant(value)
        if tensor is not None and tensor.dtype == ir.DataType.DOUBLE:
            value.const_value = ir.tensor(tensor.numpy().astype(np.float32), name=value.name)
            value.type = ir.TensorType(ir.DataType.FLOAT)
            changed.append(value.name)
    for node in graph:
        for name in ("to", "dtype", "output_dtype"):
            if attribute(node, name) == ir.DataType.DOUBLE:
                node.attributes[name] = ir.AttrInt64(name, ir.DataType.FLOAT)
        filled = attribute(node, "value")
        if is_op(node, "ConstantOfShape") and filled is not None and filled.dtype == ir.DataType.DOUBLE:
            node.attributes["value"] = ir.AttrTensor("value", ir.tensor(filled.numpy().astype(np.float32)))
        for output in node.outputs:
            if output.dtype == ir.DataType.DOUBLE:
                output.type = ir.TensorType(ir.DataType.FLOAT)
                changed.append(name_of(node))
    return [f"float64 became float32 at {_few(changed)}"] if changed else []


def _few(names: list[str | None]) -> str:
    shown = ", ".join(f"'{n}'" for n in list(dict.fromkeys(names))[:3])
    return f"{shown} and {len(set(names)) - 3} more" if len(set(names)) > 3 else shown
