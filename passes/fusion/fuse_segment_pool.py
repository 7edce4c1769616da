"""Mean or maximum over the positions that a padding mask keeps becomes infc.SegmentPool."""

from __future__ import annotations

from typing import ClassVar

import onnx_ir as ir

from infc.passes.base import Miss, NodePass, PassResult
from infc.passes.domain import DOMAIN
from infc.passes.fusion.fuse_l2_normalize import lower_limit
from infc.passes.graph import at, attribute, dims, emit, producer, reduced_axes, replace, scalar
from infc.passes.masks import Judge, MaskProver, marks_padding, weighs_positions

_LOW = -1e9  # what stands for padding is at most this, so that it is never the maximum


class FuseSegmentPool(NodePass):
    """``Σ x·m / max(Σ m, epsilon)`` over axis 1 of x ``[batch,seq,N]``, where m is proven to be 1 where a graph input is not
    zero, else 0; and the maximum over axis 1 of x with a number at most -1e9 in the place of padding."""

    name = "fuse_segment_pool"
    roots: ClassVar[frozenset[str]] = frozenset({"Div", "ReduceMax"})

    def run(self, model: ir.Model) -> PassResult:
        self._masks = MaskProver(model)
        return super().run(model)

    def rewrite(self, node: ir.Node) -> str | None:
        return self._maximum(node) if node.op_type == "ReduceMax" else self._mean(node)

    def _mean(self, node: ir.Node) -> str | None:
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
        for reduction in (total, count):
            if reduced_axes(reduction) != [1] or attribute(reduction, "keepdims", 1):
                raise Miss(reduction, "the sum is not over axis 1 alone, or keeps it")
        sources = [n for n in (node, limit, total, count, product) if n is not None]
        return self._pool(node, product, x, weights, weighs_positions, {"kind": "mean", "epsilon": epsilon}, sources)

    def _maximum(self, node: ir.Node) -> str | None:
        chosen = producer(at(node, 0), "Where")
        for x, padding, judge in ((1, 2, weighs_positions), (2, 1, marks_padding)):
            low = scalar(at(chosen, padding)) if chosen is not None else None
            if chosen is not None and low is not None and low <= _LOW:
                if reduced_axes(node) != [1] or attribute(node, "keepdims", 1):
                    raise Miss(node, "the maximum is not over axis 1 alone, or keeps it")
                kind = {"kind": "max", "epsilon": 0.0}
                return self._pool(node, chosen, at(chosen, x), at(chosen, 0), judge, kind, [node, chosen])
        return None

    def _pool(
        self,
        node: ir.Node,
        weighed: ir.Node,
        x: ir.Value | None,
        weights: ir.Value | None,
        judge: Judge,
        attributes: dict[str, object],
        sources: list[ir.Node],
    ) -> str | None:
        """SegmentPool in the place of ``node``; ``weighed`` applies ``weights`` to x."""
        shape = dims(x)
        if x is None or weights is None or shape is None or len(shape) != 3 or dims(weighed.outputs[0]) != shape:
            raise Miss(node, f"what is pooled has the shape {shape}, not [batch, seq, N]")
        mask, reason = self._masks.prove(weights, judge)
        if mask is None:
            raise Miss(node, f"{weights.name} is no mask to pool by: {reason}")
        if dims(mask) != shape[:2]:
            raise Miss(node, f"the mask {mask.name} has the shape {dims(mask)}, the values {shape}")
        fused = emit(
            node,
            "SegmentPool",
            [x, mask],
            attributes,
            domain=DOMAIN,
            name=node.name or "",
            like=node.outputs,
            sources=sources,
        )
        replace(node.outputs[0], fused.outputs[0])
        return fused.name
