"""Reading and rewriting graphs: the vocabulary of the legalisation passes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

FLOAT = ir.DataType.FLOAT
FLOATS = (FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


def name_of(node: ir.Node) -> str:
    """What messages call the node."""
    return node.name or (node.outputs[0].name if node.outputs else None) or node.op_type


def at(node: ir.Node, index: int) -> ir.Value | None:
    """Input ``index`` of the node, None where it is absent."""
    return node.inputs[index] if index < len(node.inputs) else None


def attribute(node: ir.Node, name: str, default: Any = None) -> Any:
    found = node.attributes.get(name)
    return default if found is None else found.value


def is_op(node: ir.Node | None, *op_types: str) -> bool:
    return node is not None and node.domain == "" and node.op_type in op_types


def sizes(value: ir.Value | None) -> tuple[int, ...] | None:
    """The dimensions, if all are numbers."""
    if value is None or value.shape is None or not all(isinstance(d, int) for d in value.shape):
        return None
    return tuple(int(d) for d in value.shape)  # type: ignore[arg-type]


def constant(value: ir.Value | None) -> ir.TensorProtocol | None:
    """The tensor of an initializer that the caller cannot override, or of a Constant node."""
    if value is None or value.is_graph_input():
        return None
    return ir.convenience.get_const_tensor(value)


def array(value: ir.Value | None) -> np.ndarray[Any, Any] | None:
    tensor = constant(value)
    return None if tensor is None else tensor.numpy()


def schema(node: ir.Node, opset: int) -> onnx.defs.OpSchema | None:
    """The definition of one of ONNX's own operators in this opset."""
    try:
        return onnx.defs.get_schema(node.op_type, opset, node.domain)
    except onnx.defs.SchemaError:
        return None


def formal(parameters: Sequence[onnx.defs.OpSchema.FormalParameter], index: int) -> onnx.defs.OpSchema.FormalParameter:
    """The parameter that argument ``index`` is; the last one may be variadic."""
    return parameters[min(index, len(parameters) - 1)]


def new_value(name: str, dtype: ir.DataType | None, shape: Sequence[Any] | ir.Shape | None) -> ir.Value:
    return ir.Value(name=name, type=None if dtype is None else ir.TensorType(dtype),
                    shape=ir.Shape(shape) if shape is not None else None)


def emit(anchor: ir.Node, op_type: str, inputs: Sequence[ir.Value | None], dtype: ir.DataType | None,
         shape: Sequence[Any] | ir.Shape | None, *, name: str, **attributes: Any) -> ir.Value:
    """The output, of this type and shape, of a node put before ``anchor``, whose metadata (its module) it shares."""
    output = new_value(name, dtype, shape)
    node = ir.node(op_type, inputs, attributes, outputs=[output], name=name)
    node.metadata_props.update(anchor.metadata_props)
    anchor.prepend(node)
    return output


def add_constant(graph: ir.Graph, name: str, data: np.ndarray[Any, Any] | np.generic | ir.TensorProtocol) -> ir.Value:
    """An initializer of this name, or the one that has it and the same data already; another name if that one's data differ."""
    while (found := graph.initializers.get(name)) is not None:
        if _is_equal(found.const_value, data):
            return found
        name += "'"
    tensor = ir.tensor(np.asarray(data), name=name) if isinstance(data, np.ndarray | np.generic) else data
    value = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(tensor.shape.numpy()), const_value=tensor)
    graph.register_initializer(value)
    return value


def _is_equal(tensor: ir.TensorProtocol | None, data: np.ndarray[Any, Any] | np.generic | ir.TensorProtocol) -> bool:
    if tensor is None or tensor is data:
        return tensor is not None
    ours = np.asarray(data) if isinstance(data, np.ndarray | np.generic) else data.numpy()
    theirs = tensor.numpy()
    return ours.dtype == theirs.dtype and np.array_equal(ours, theirs)


def ints(graph: ir.Graph, numbers: Sequence[int]) -> ir.Value:
    """A shared 1-D int64 initializer."""
    return add_constant(graph, f"infc.trt.ints[{','.join(map(str, numbers))}]", np.array(numbers, np.int64))


def replace(old: ir.Value, new: ir.Value) -> None:
    """Lets ``new``, which is the output of a node, serve the uses of ``old`` under its name, and removes the node of ``old``."""
    node, name = old.producer(), old.name
    assert node is not None
    ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
    old.name = f"{name}/replaced"
    new.name = name
    if node.graph is not None and not any(o.uses() or o.is_graph_output() for o in node.outputs):
        node.graph.remove(node, safe=True)


def drop_unused(graph: ir.Graph) -> None:
    """Removes nodes and initializers that nothing reads."""
    for node in reversed(list(graph)):
        if not any(o.uses() or o.is_graph_output() for o in node.outputs):
            graph.remove(node, safe=True)
    for name, value in list(graph.initializers.items()):
        if not value.uses() and not value.is_graph_output() and not value.is_graph_input():
            del graph.initializers[name]
