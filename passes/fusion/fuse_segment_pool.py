"""Mean over the positions that a padding mask keeps becomes infc.SegmentPool."""

from __future__ import annotations

from typing import ClassVar

import onnx_ir as ir

from infc.passes.base import Miss, NodePass, PassResult
from infc.passes.domain import DOMAIN
from infc.passes.fusion.fuse_l2_normalize import lower_limit
from infc.passes.graph import at, attribute, dims, emit, producer, reduced_axes, replace
from infc.passes.masks import MaskProver, weighs_positions


class FuseSegmentPool(NodePass):
    """``Σ x·m / max(Σ m, epsilon)`` over axis 1 of x ``[batch,seq,N]``, where m is proven to be 1 where a graph input is not
    zero, else 0."""

    name = "fuse_segment_pool"
    roots: ClassVar[frozenset[str]] = frozenset({"Div"})

    def run(self, model: ir.Model) -> PassResult:
        self._masks = MaskProver(model)
        return super().run(model)

    def rewrite(self, node: ir.Node) -> str | None:
        total = producer(at(node, 0), "ReduceSum")
        product = producer(at(total, 0), "Mul") if total is not None else None
        limit = producer(at(node, 1), "Clip", "Max")
        counted, epsilon = (lower_limit(limit) or (None, 0.0)) if limit is not None else (at(node, 1), 0.0)
        count = producer(counted, "ReduceSum")
        if total is None or product is None or count is None:
            return None
        weights = at(count, 0)
        if weights not in product.inputs:
            return None
        x = product.inputs[1] if product.inputs[0] is weights else product.inputs[0]
        shape = dims(x)
        if x is None or weights is None or shape is None or len(shape) != 3 or dims(product.outputs[0]) != shape:
            raise Miss(node, f"what is pooled has the shape {shape}, not [batch, seq, N]")
        for reduction in (total, count):
            if reduced_axes(reduction) != [1] or attribute(reduction, "keepdims", 1):
                raise Miss(reduction, "the sum is not over axis 1 alone, or keeps it")
        mask, reason = self._masks.prove(weights, weighs_positions)
        if mask is None:
            raise Miss(node, f"{weights.name} is no mask to pool by: {reason}")
        if dims(mask) != shape[:2]:
            raise Miss(node, f"the mask {mask.name} has the shape {dims(mask)}, the values {shape}")
        fused = emit(
            node,
            "SegmentPool",
            [x, mask],
            {"kind": "mean", "epsilon": epsilon},
            domain=DOMAIN,
            name=node.name or "",
            like=node.outputs,
            sources=[n for n in (node, limit, total, count, product) if n is not None],
        )
        replace(node.outputs[0], fused.outputs[0])
        return fused.name
