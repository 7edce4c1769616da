"""Rotary positions in front of infc.CachedAttention move into it: the angles become its last two inputs."""

from __future__ import annotations

from typing import ClassVar

import onnx_ir as ir

from infc.passes.base import Miss, NodePass
from infc.passes.domain import DOMAIN
from infc.passes.fusion.rope import Rope, angles, find
from infc.passes.graph import at, dims, emit, int_constant, is_op, owner, replace, same_shape


class FuseRope(NodePass):
    """Queries and keys turned by the same angles, in one of the forms of ``rope.find``."""

    name = "fuse_rope"
    roots: ClassVar[frozenset[str]] = frozenset({"CachedAttention"})

    def rewrite(self, node: ir.Node) -> str | None:
        if not is_op(node, "CachedAttention", domain=DOMAIN) or at(node, 3) is not None:
            return None
        q, k = find(at(node, 0)), find(at(node, 1))
        if q is None and k is None:
            return None
        if q is None or k is None:
            raise Miss(node, "of queries and keys only one is rotated in a way that is known")
        if (q.cos, q.sin, q.interleaved) != (k.cos, k.sin, k.interleaved):
            raise Miss(node, "queries and keys are rotated by different angles")
        turns = angles(q, node)
        if turns is None:
            raise Miss(node, "the two halves of a head may be rotated by different angles")
        inputs = [_flat(node, q, 0), _flat(node, k, 1), node.inputs[2], *turns]
        attributes = {n: a.value for n, a in node.attributes.items()} | {"interleaved": int(q.interleaved)}
        fused = emit(node, "CachedAttention", inputs, attributes, domain=DOMAIN, name=node.name or "", like=node.outputs,
                     sources=(node, *q.nodes, *k.nodes))
        replace(node.outputs[0], fused.outputs[0])
        return fused.name


def _flat(node: ir.Node, rope: Rope, index: int) -> ir.Value:
    """What was rotated, as [tokens, 1, heads * d]."""
    shape = dims(node.inputs[index])
    if shape is None or not isinstance(shape[-1], int) or len(shape) != 3:
        raise Miss(node, f"the shape {shape} of what is rotated")
    if same_shape(rope.x, node.inputs[index]):
        return rope.x
    target = int_constant(owner(node), [-1, *shape[1:]])  # type: ignore[list-item]
    made = emit(node, "Reshape", [rope.x, target], name=f"{node.name}/{'qk'[index]}", like=[node.inputs[index]])  # type: ignore[list-item]
    return made.outputs[0]
