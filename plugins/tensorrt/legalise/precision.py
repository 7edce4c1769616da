"""Lowers a float32 graph to float16 or bfloat16. TensorRT's networks are strongly typed: the graph's types are the engine's.

Graph inputs and outputs keep their type, with a Cast at the border. What ONNX's definition of an operator does not allow, and the
nodes of ``islands``, stay float32 between Casts. Operators that are defined to compute statistics in float32 (LayerNormalization,
RMSNormalization: stash_type) are simply given the narrow type. Scales of Q/DQ are data: they stay what they are.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir

from infc.plugins.tensorrt.legalise.graph import (
    FLOAT,
    FLOATS,
    add_constant,
    attribute,
    constant,
    drop_unused,
    emit,
    formal,
    is_op,
    new_value,
    schema,
)
from infc.plugins.tensorrt.legalise.islands import islands

SHORT = {FLOAT: "f32", ir.DataType.FLOAT16: "f16", ir.DataType.BFLOAT16: "bf16"}
_LIKE = ("EyeLike", "RandomNormalLike", "RandomUniformLike")  # their output has the input's type, unless another is given
_NUMPY: dict[ir.DataType, Any] = {ir.DataType.FLOAT16: np.float16, ir.DataType.BFLOAT16: ml_dtypes.bfloat16}
_LARGEST = {ir.DataType.FLOAT16: 65504.0, ir.DataType.BFLOAT16: float.fromhex("0x1.fep127")}


def lower(model: ir.Model, wanted: ir.DataType) -> list[str]:
    """Rewrites the graph in place; says what does not fit the type and what stayed in float32."""
    values = {v for node in model.graph for v in (*node.inputs, *node.outputs) if v is not None}
    if any(v.dtype in FLOATS and v.dtype != FLOAT for v in values):
        return [f"the graph has 16-bit types of its own and keeps them: nothing else was lowered to {SHORT[wanted]}"]
    kept = islands(model.graph, wanted)
    lowering = Lowering(model, wanted)
    for node in list(model.graph):
        lowering.visit(node, node in kept)
    lowering.border()
    drop_unused(model.graph)
    lowering.restore_names()
    if kept:
        kinds = ", ".join(sorted({n.op_type for n in kept}))
        lowering.notes.append(f"{len(kept)} nodes stay in f32, where {SHORT[wanted]} would lose the result: {kinds}")
    return lowering.notes


class Lowering:
    """One walk over the nodes, in their order. ``_same`` maps a value and a type to the value's twin in that type."""

    def __init__(self, model: ir.Model, wanted: ir.DataType) -> None:
        self.graph, self.wanted = model.graph, wanted
        self.opset = model.opset_imports.get("", 0)
        self.notes: list[str] = []
        self._same: dict[tuple[ir.Value, ir.DataType], ir.Value] = {}

    def visit(self, node: ir.Node, kept: bool) -> None:
        """Gives the node's float inputs and outputs the narrow type, where it is allowed."""
        if is_op(node, "Cast"):
            self._visit_cast(node, FLOAT if kept else self.wanted)
        elif is_op(node, "QuantizeLinear", "DequantizeLinear"):
            self._visit_qdq(node)
        elif is_op(node, *_LIKE) and attribute(node, "dtype") is None:
            self._retype(node, 0, FLOAT)
        elif (definition := schema(node, self.opset)) is None:  # a custom operator: its author chose its types
            for i in range(len(node.inputs)):
                self._retype(node, i, FLOAT)
        else:
            inputs = [formal(definition.inputs, i).type_str for i in range(len(node.inputs))]
            outputs = [formal(definition.outputs, i).type_str for i in range(len(node.outputs))]
            allowed = {c.type_param_str for c in definition.type_constraints
                       if not kept and f"tensor({self.wanted.name.lower()})" in c.allowed_type_strs}
            for i, parameter in enumerate(inputs):
                self._retype(node, i, self.wanted if parameter in allowed else FLOAT)
            for output, parameter in zip(node.outputs, outputs, strict=True):
                if output.dtype == FLOAT and parameter in allowed and parameter in inputs:
                    output.type = ir.TensorType(self.wanted)

    def border(self) -> None:
        """Casts the graph's outputs back to float32, under their names."""
        for i, value in enumerate(self.graph.outputs):
            if value.dtype != self.wanted:
                continue
            name = value.name
            assert name is not None
            value.name = f"{name}/{SHORT[self.wanted]}"
            output = new_value(name, FLOAT, value.shape)
            self.graph.append(ir.node("Cast", [value], {"to": FLOAT}, outputs=[output], name=f"{name}/to_f32"))
            self.graph.outputs[i] = output

    def restore_names(self) -> None:
        """A weight that is left in the narrow type only has its own name again."""
        for (value, _), twin in self._same.items():
            name = value.name
            if name is not None and twin.is_initializer() and name not in self.graph.initializers:
                twin.name = name
                assert twin.const_value is not None
                twin.const_value.name = name

    def _retype(self, node: ir.Node, index: int, dtype: ir.DataType) -> None:
        value = node.inputs[index]
        if value is not None and value.dtype in (FLOAT, self.wanted) and value.dtype != dtype:
            node.replace_input_with(index, self._as_type(value, dtype, node))

    def _visit_cast(self, node: ir.Node, dtype: ir.DataType) -> None:
        """A Cast to float32 becomes one to ``dtype``, or goes."""
        if attribute(node, "to") != FLOAT:
            return
        source, output = node.inputs[0], node.outputs[0]
        assert source is not None
        if source.dtype in (FLOAT, self.wanted) and not output.is_graph_output():
            output.type = ir.TensorType(source.dtype)
            ir.convenience.replace_all_uses_with(output, source)
        else:
            node.attributes["to"] = ir.AttrInt64("to", dtype)
            output.type = ir.TensorType(dtype)

    def _visit_qdq(self, node: ir.Node) -> None:
        """Q/DQ stay in float32, scales and all: the builder moves the Casts. Blocked weights are multiplied in the type of their
        scales."""
        if is_op(node, "DequantizeLinear") and attribute(node, "block_size", 0):
            self._retype(node, 1, self.wanted)
            node.outputs[0].type = ir.TensorType(self.wanted)
        else:
            self._retype(node, 0, FLOAT)

    def _as_type(self, value: ir.Value, dtype: ir.DataType, anchor: ir.Node) -> ir.Value:
        """The value in another type: made once, before its first reader."""
        if (value, dtype) not in self._same:
            name = f"{value.name}/{SHORT[dtype]}"
            tensor = constant(value)
            if tensor is not None:
                twin = add_constant(self.graph, name, ir.tensor(self._fit(tensor.numpy(), dtype, value), name=name))
            else:
                twin = emit(anchor, "Cast", [value], dtype, value.shape, name=name, to=dtype)
                assert value.dtype is not None
                self._same[twin, value.dtype] = value
            self._same[value, dtype] = twin
        return self._same[value, dtype]

    def _fit(self, data: np.ndarray[Any, Any], dtype: ir.DataType, value: ir.Value) -> np.ndarray[Any, Any]:
        """The numbers in the type; finite ones stay finite."""
        limit = _LARGEST[dtype]
        beyond = np.isfinite(data) & (np.abs(data) > limit)
        if beyond.any():
            self.notes.append(f"'{value.name}': {int(beyond.sum())} of {data.size} numbers are beyond {SHORT[dtype]}'s {limit:g} "
                              "and became that")
            data = np.where(beyond, np.sign(data) * limit, data)
        return np.asarray(data.astype(_NUMPY[dtype]))
