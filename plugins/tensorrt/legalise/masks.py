"""Padding gives zeros, as on the CPU: what a model computes there means nothing, and both targets should agree on it."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from infc.compiler.artifact.io import IoSpec
from infc.plugins.tensorrt.legalise.graph import add_constant, ints, new_value


def masked_outputs(interface: IoSpec, mask: str | None) -> tuple[str, ...]:
    """The outputs whose first dimensions are the mask's [batch, seq]: by their names, as sizes may agree by chance."""
    dims = next((t.dims for t in interface.inputs if t.name == mask), None)
    if dims is None or not any(isinstance(d, str) for d in dims):
        return ()
    return tuple(t.name for t in interface.outputs if t.dims[: len(dims)] == dims)


def zero_padding(model: ir.Model, mask: str | None, names: tuple[str, ...]) -> None:
    """Makes each of the outputs ``names`` zero where the mask, an input, is zero."""
    graph = model.graph
    found = next((v for v in graph.inputs if v.name == mask), None)
    if found is None or not names:
        return
    kept: dict[int, ir.Value] = {}
    for i, output in enumerate(graph.outputs):
        if output.name not in names or output.shape is None or output.dtype is None:
            continue
        rank = len(output.shape)
        if rank not in kept:
            kept[rank] = _as_condition(graph, found, rank)
        name = output.name
        assert name is not None
        zero = add_constant(graph, f"infc.trt.zero.{output.dtype.name}", np.zeros((), output.dtype.numpy()))
        masked = new_value(name, output.dtype, output.shape)
        output.name = f"{name}/unmasked"
        graph.append(ir.node("Where", [kept[rank], output, zero], outputs=[masked], name=f"{name}/zero_padding"))
        graph.outputs[i] = masked


def _as_condition(graph: ir.Graph, mask: ir.Value, rank: int) -> ir.Value:
    """The mask as booleans [batch, seq, 1, …]."""
    assert mask.shape is not None
    condition = new_value(f"{mask.name}/kept.{rank}", ir.DataType.BOOL, mask.shape)
    graph.append(ir.node("Cast", [mask], {"to": ir.DataType.BOOL}, outputs=[condition], name=condition.name))
    if rank == len(mask.shape):
        return condition
    shape = [*mask.shape, *(1 for _ in range(rank - len(mask.shape)))]
    wide = new_value(f"{mask.name}/kept.{rank}.wide", ir.DataType.BOOL, shape)
    axes = ints(graph, list(range(len(mask.shape), rank)))
    graph.append(ir.node("Unsqueeze", [condition, axes], outputs=[wide], name=wide.name))
    return wide
