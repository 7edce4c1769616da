"""A graph in bfloat16 for ONNX Runtime's CPU, which computes nothing in that type: float32, rounded after each node."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from infc.plugins.tensorrt.legalise.graph import FLOAT, constant, new_value

BFLOAT16 = ir.DataType.BFLOAT16


def emulate(model: ir.Model) -> ir.Model:
    """The model itself, if it has no bfloat16; else a copy in which float32 stands for it. Inputs and outputs keep their types, of
    which none is bfloat16."""
    if not any(o.dtype == BFLOAT16 for node in model.graph for o in node.outputs):
        return model
    model = model.clone()
    for value in model.graph.initializers.values():
        tensor = constant(value)
        if tensor is not None and tensor.dtype == BFLOAT16:
            value.const_value = ir.tensor(tensor.numpy().astype(np.float32), name=value.name)
            value.type = ir.TensorType(FLOAT)
    for node in list(model.graph):
        if node.op_type == "Cast" and node.attributes["to"].as_int() == BFLOAT16:
            node.attributes["to"] = ir.AttrInt64("to", FLOAT)
        for output in node.outputs:
            if output.dtype == BFLOAT16:
                _round(node, output)
    return model


def _round(node: ir.Node, output: ir.Value) -> None:
    """Lets readers see the output as bfloat16 would have kept it."""
    output.type = ir.TensorType(FLOAT)
    narrow = new_value(f"{output.name}/narrow", BFLOAT16, output.shape)
    rounded = new_value(f"{output.name}/rounded", FLOAT, output.shape)
    ir.convenience.replace_all_uses_with(output, rounded)
    casts = [ir.node("Cast", [source], {"to": to}, outputs=[value], name=value.name)
             for source, to, value in ((output, BFLOAT16, narrow), (narrow, FLOAT, rounded))]
    node.append(casts)
