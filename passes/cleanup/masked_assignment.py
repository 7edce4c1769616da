"""What exporters make of an assignment where a mask is true, whose number of elements is known at run time only: a Where."""

from __future__ import annotations

from typing import ClassVar

import onnx_ir as ir

from infc.passes.base import Miss, NodePass
from infc.passes.graph import add_constant, array, at, attribute, constant, emit, owner, producer, replace, same_shape

_SPREADING = ("Reshape", "Expand", "Unsqueeze", "Squeeze", "Identity", "Tile")


class MaskedAssignment(NodePass):
    """ScatterND of one number at the indices that NonZero finds in a mask of the data's shape."""

    name = "masked_assignment"
    roots: ClassVar[frozenset[str]] = frozenset({"ScatterND"})

    def rewrite(self, node: ir.Node) -> str | None:
        data, turned = at(node, 0), producer(at(node, 1), "Transpose")
        found = producer(at(turned, 0), "NonZero") if turned is not None else None
        mask = at(found, 0) if found is not None else None
        if data is None or turned is None or mask is None:
            return None
        if tuple(attribute(turned, "perm", (1, 0))) != (1, 0) or attribute(node, "reduction", "none") != "none":
            raise Miss(node, "what is found is not assigned as it is")
        if mask.dtype != ir.DataType.BOOL or not same_shape(mask, data):
            raise Miss(node, f"{mask.name} is no mask of the shape of {data.name}")
        number = _number(at(node, 2))
        if number is None:
            raise Miss(node, "it assigns more than one constant")
        chosen = emit(node, "Where", [mask, number, data], name=f"{node.name}/where", like=[node.outputs[0]])
        replace(node.outputs[0], chosen.outputs[0])
        return chosen.name


def _number(value: ir.Value | None) -> ir.Value | None:
    """The scalar that was spread over the updates."""
    while (spread := producer(value, *_SPREADING)) is not None:
        value = at(spread, 0)
    data = array(value) if value is not None and constant(value) is not None else None
    if data is None or data.size != 1 or value is None:
        return None
    reader = next(iter(value.uses())).node
    return add_constant(owner(reader), f"{value.name}/number", data.reshape(()))
