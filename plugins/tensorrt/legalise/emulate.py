"""A graph in float16 or bfloat16 for ONNX Runtime's CPU, which computes next to nothing in these types: float32, rounded after each
node. Left to itself it computes several nodes in float32 without rounding between them, and an overflow does not show."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from infc.plugins.tensorrt.legalise.graph import FLOAT, constant, new_value

_NARROW = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
_TYPES = ("to", "dtype", "output_dtype")  # attributes that name a type


def emulate(model: ir.Model) -> ir.Model:
    """The model itself, if it has no narrow type; else a copy in which float32 stands for them. Inputs and outputs keep their
    types."""
    values = [*model.graph.inputs, *(o for node in model.graph for o in node.outputs)]
    if not any(value.dtype in _NARROW for value in values):
        return model
    model = model.clone()
    nodes = list(model.graph)
    for value in model.graph.initializers.values():
        tensor = constant(value)
        if tensor is not None and tensor.dtype in _NARROW:
            value.const_value = _wide(tensor, value.name)
            value.type = ir.TensorType(FLOAT)
    for node in nodes:
        _widen_attributes(node)
        for output in node.outputs:
            if output.dtype in _NARROW:
                _round(node, output)
    for value in model.graph.inputs:
        if value.dtype in _NARROW:
            wide = new_value(f"{value.name}/wide", FLOAT, value.shape)
            ir.convenience.replace_all_uses_with(value, wide)
            model.graph.insert_before(nodes[0], _cast(value, wide))
    return model


def _wide(tensor: ir.TensorProtocol, name: str | None) -> ir.TensorProtocol:
    return ir.tensor(tensor.numpy().astype(np.float32), name=name)


def _widen_attributes(node: ir.Node) -> None:
    for name, attribute in list(node.attributes.items()):
        if name in _TYPES and attribute.type == ir.AttributeType.INT and attribute.as_int() in _NARROW:
            node.attributes[name] = ir.AttrInt64(name, FLOAT)
        elif attribute.type == ir.AttributeType.TENSOR and attribute.as_tensor().dtype in _NARROW:
            node.attributes[name] = ir.AttrTensor(name, _wide(attribute.as_tensor(), None))


def _round(node: ir.Node, output: ir.Value) -> None:
    """Lets readers see the output as its type would have kept it; an output of the graph has that type."""
    narrow = new_value(f"{output.name}/narrow", output.dtype, output.shape)
    output.type = ir.TensorType(FLOAT)
    rounded = new_value(f"{output.name}/rounded", FLOAT, output.shape)
    if output.is_graph_output():
        assert isinstance(node.graph, ir.Graph)
        node.graph.outputs[:] = [narrow if value is output else value for value in node.graph.outputs]
        narrow.name, output.name = output.name, f"{output.name}/exact"
    ir.convenience.replace_all_uses_with(output, rounded)
    node.append([_cast(output, narrow), _cast(narrow, rounded)])


def _cast(source: ir.Value, result: ir.Value) -> ir.Node:
    return ir.node("Cast", [source], {"to": result.dtype}, outputs=[result], name=result.name)
