"""Sums of table look-ups become infc.EmbeddingSum."""

from __future__ import annotations

from typing import ClassVar

import onnx_ir as ir

from infc.passes.base import Miss, NodePass
from infc.passes.domain import DOMAIN
from infc.passes.graph import at, attribute, constant, dims, emit, is_op, known, producer, replace, sole_use
from infc.passes.shapes import broadcast

_IDS = (ir.DataType.INT64, ir.DataType.INT32)
_MOST = 4
_DEEPEST = 8  # Adds in a row; more than _MOST, so that near misses are seen


class FuseEmbeddingSum(NodePass):
    """A tree of Adds whose leaves are 2 to 4 Gathers of rows of constant ``[V,N]`` tables, used nowhere else."""

    name = "fuse_embedding_sum"
    roots: ClassVar[frozenset[str]] = frozenset({"Add"})

    def rewrite(self, node: ir.Node) -> str | None:
        above = sole_use(node.outputs[0])
        if node.domain != "" or (is_op(above, "Add") and above is not None and all(_is_sum(v) for v in above.inputs)):
            return None  # the whole tree is taken at its root
        adds: list[ir.Node] = []
        leaves = _leaves(node, adds)
        gathers = [g for g in map(_gather, leaves) if g is not None]
        if len(gathers) < 2:
            return None
        if len(gathers) < len(leaves):
            odd = next(v for v in leaves if _gather(v) is None)
            raise Miss(node, f"{odd.name} is not a row of a constant table")
        if len(gathers) > _MOST:
            raise Miss(node, f"{len(gathers)} tables are more than {_MOST}")
        for leaf in leaves:
            if sole_use(leaf) is None:
                raise Miss(node, f"{leaf.name} is used elsewhere")
        ids = [dims(g.inputs[1]) for g in gathers]
        width = {(dims(g.inputs[0]) or ())[1] for g in gathers}
        whole = broadcast(*[i for i in ids if i is not None]) if all(known(i) for i in ids) else None
        if len(width) != 1 or whole is None or (*whole, *width) != dims(node.outputs[0]):
            raise Miss(node, f"ids of shapes {ids} do not give {dims(node.outputs[0])}")
        fused = emit(
            node,
            "EmbeddingSum",
            [v for g in gathers for v in (g.inputs[1], g.inputs[0])],
            domain=DOMAIN,
            name=node.name or "",
            like=node.outputs,
            sources=(node, *adds, *gathers),
        )
        replace(node.outputs[0], fused.outputs[0])
        return fused.name


def _gather(value: ir.Value | None) -> ir.Node | None:
    node = producer(value, "Gather")
    if node is None or attribute(node, "axis", 0) != 0 or constant(at(node, 0)) is None:
        return None
    shape, ids = dims(at(node, 0)), at(node, 1)
    return node if shape is not None and len(shape) == 2 and ids is not None and ids.dtype in _IDS else None


def _is_sum(value: ir.Value | None, depth: int = _DEEPEST) -> bool:
    """Whether the value is a sum of look-ups, or one."""
    add = producer(value, "Add")
    if add is None:
        return _gather(value) is not None
    return depth > 0 and all(_is_sum(v, depth - 1) for v in add.inputs)


def _leaves(node: ir.Node, adds: list[ir.Node]) -> list[ir.Value]:
    """The terms of a sum, in the order they are read."""
    out: list[ir.Value] = []
    for value in node.inputs:
        assert value is not None
        inner = producer(value, "Add")
        if inner is not None and sole_use(value) is node and _is_sum(value):
            adds.append(inner)
            out += _leaves(inner, adds)
        else:
            out.append(value)
    return out
