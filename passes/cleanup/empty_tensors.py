"""Takes tensors without elements out of a graph whose sizes are known."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from infc.passes.base import Pass, PassResult
from infc.passes.graph import add_constant, dims, is_op, replace
from infc.passes.shapes import Shapes


class EmptyTensors(Pass):
    """A value without elements becomes an initializer, which folds like any other; a Concat loses such operands. Matches name the
    nodes."""

    name = "empty_tensors"

    def run(self, model: ir.Model) -> PassResult:
        graph, matches = model.graph, []
        for value in graph.inputs:
            if _is_empty(value) and value.uses():
                ir.convenience.replace_all_uses_with(value, _constant(graph, value))
                matches.append(value.name or "")
        if not matches and not any(_is_empty(v) for node in graph for v in (*node.inputs, *node.outputs)):
            return PassResult(False)
        Shapes(model)
        for node in graph:
            if node.outputs and all(_is_empty(v) for v in node.outputs):
                for value in node.outputs:
                    if value.uses() or value.is_graph_output():
                        replace(value, _constant(graph, value), rename=False)
                matches.append(node.name or "")
            elif is_op(node, "Concat") and any(_is_empty(v) for v in node.inputs):
                kept = [v for v in node.inputs if not _is_empty(v)]
                node.resize_inputs(len(kept))
                for index, operand in enumerate(kept):
                    node.replace_input_with(index, operand)
                matches.append(node.name or "")
        return PassResult(bool(matches), matches)


def _is_empty(value: ir.Value | None) -> bool:
    return value is not None and value.dtype not in (None, ir.DataType.STRING) and 0 in (dims(value) or ())


def _constant(graph: ir.Graph, value: ir.Value) -> ir.Value:
    shape = tuple(d if isinstance(d, int) else 1 for d in dims(value) or ())
    assert value.dtype is not None
    return add_constant(graph, f"{value.name}/empty", np.zeros(shape, value.dtype.numpy()))
