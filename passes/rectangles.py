"""Puts a graph of constant sizes between rectangles of the caller's: Grow at its inputs, Crop at its outputs."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from infc.passes.domain import DOMAIN
from infc.passes.graph import Dims, dims


def open_rectangles(graph: ir.Graph, inputs: Sequence[Dims], outputs: Sequence[Dims], names: Sequence[str]) -> None:
    """``inputs`` and ``outputs`` are the shapes with the names of dimensions; those in ``names`` become the caller's again."""
    if not names:  # nothing to open; the graph may have no nodes
        return
    first, corner = next(iter(graph)), None
    for value, shape in zip(graph.inputs, inputs, strict=True):
        axes = _axes(shape, names)
        if not axes:
            continue
        assert value.shape is not None
        sizes = value.shape.numpy()
        grown = ir.Value(name=f"{value.name}/grown", type=value.type, shape=ir.Shape(sizes))
        ir.convenience.replace_all_uses_with(value, grown)
        first.prepend(ir.node("Grow", [value], {"shape": sizes[:axes]}, domain=DOMAIN, outputs=[grown],
                              name=f"grow/{value.name}"))
        value.shape = ir.Shape([d if d in names else n for d, n in zip(shape, sizes, strict=True)])
        corner = value if corner is None or axes == len(names) else corner
    for index, (value, shape) in enumerate(zip(list(graph.outputs), outputs, strict=True)):
        axes = _axes(shape, names)
        if not axes:
            continue
        cut = ir.Value(name=value.name, type=value.type,
                       shape=ir.Shape([d if d in names else n for d, n in zip(shape, dims(value) or (), strict=True)]))
        value.name = f"{value.name}/whole"
        graph.append(ir.node("Crop", [value, corner], {"axes": axes}, domain=DOMAIN, outputs=[cut], name=f"crop/{cut.name}"))
        graph.outputs[index] = cut


def _axes(shape: Dims, names: Sequence[str]) -> int:
    """How many leading dimensions it takes to reach all that are the caller's."""
    return max((axis + 1 for axis, d in enumerate(shape) if d in names), default=0)
