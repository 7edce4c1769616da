"""Attention, as ONNX's operator or written out, becomes infc.PaddedAttention when its mask only hides padding."""

from __future__ import annotations

from typing import Any, ClassVar

import onnx_ir as ir

from infc.passes.base import Miss, NodePass, PassResult
from infc.passes.domain import DOMAIN
from infc.passes.fusion.attention import Found, find
from infc.passes.graph import Dims, dims, emit, int_constant, owner, replace
from infc.passes.masks import MaskProver, hides_padding


class FuseAttention(NodePass):
    """Looks at Attention nodes without cache, causality or softcap, and at MatMul, scale, mask, Softmax, MatMul. Written-out
    attention without a mask becomes ONNX's Attention. A mask is taken for padding only if evaluation proves it."""

    name = "fuse_attention"
    roots: ClassVar[frozenset[str]] = frozenset({"Attention", "Softmax"})

    def run(self, model: ir.Model) -> PassResult:
        self._masks = MaskProver(model)
        return super().run(model)

    def rewrite(self, node: ir.Node) -> str | None:
        found = find(node)
        if found is None:
            return None
        if found.mask is None:
            return _unmasked(found) if node.op_type == "Softmax" else None
        mask, reason = self._masks.prove(found.mask.value, hides_padding, found.mask.form, found.mask.view)
        if mask is None:
            raise Miss(node, f"the mask {found.mask.value.name} is not known to be padding: {reason}")
        return _padded(found, mask)


def _unmasked(found: Found) -> str | None:
    root = found.nodes[-1]
    fused = emit(
        root,
        "Attention",
        [found.q, found.keys(), found.v],
        {"scale": found.scale},
        name=root.name or "",
        like=root.outputs,
        sources=found.nodes,
    )
    replace(root.outputs[0], fused.outputs[0])
    return fused.name


def _padded(found: Found, mask: ir.Value) -> str | None:
    root = found.nodes[-1]
    q, k, v = dims(found.q), found.key_shape(), dims(found.v)
    rectangle = dims(mask)
    if q is None or k is None or v is None or rectangle is None or not (len(q) == len(k) == len(v) == 4):
        raise Miss(root, "query, key and value are not known to be [batch, heads, seq, size]")
    if any((s[0], s[2]) != rectangle for s in (q, k, v)):
        raise Miss(root, f"query {q}, key {k} and value {v} do not have the mask's {rectangle}")
    sizes = [*q[1::2], *k[1::2], *v[1::2]]
    if not all(isinstance(s, int) for s in sizes) or k[1] != v[1]:
        raise Miss(root, f"heads or head sizes are not constant: {sizes}")
    operands: list[ir.Value | None] = [
        _rows(root, x, s, n) for n, x, s in (("q", found.q, q), ("k", found.keys(), k), ("v", found.v, v))
    ]
    heads, width = int(q[1]), int(v[3])  # type: ignore[arg-type]
    attributes: dict[str, Any] = {"num_heads": heads, "kv_num_heads": k[1], "scale": float(found.scale)}
    dtype = found.q.dtype
    fused = emit(
        root,
        "PaddedAttention",
        [*operands, mask],
        attributes,
        domain=DOMAIN,
        name=root.name or "",
        like=[(dtype, (*rectangle, heads * width))],
        sources=found.nodes,
    )
    split = emit(
        root,
        "Reshape",
        [fused.outputs[0], int_constant(owner(root), [0, 0, heads, width])],
        name=f"{root.name}/split",
        like=[(dtype, (*rectangle, heads, width))],
    )
    back = emit(root, "Transpose", [split.outputs[0]], {"perm": [0, 2, 1, 3]}, name=f"{root.name}/heads_first", like=root.outputs)
    replace(root.outputs[0], back.outputs[0])
    return fused.name


def _rows(anchor: ir.Node, value: ir.Value, shape: Dims, which: str) -> ir.Value:
    """``[B,H,S,d]`` as ``[B,S,H*d]``; the pass reshape_transpose cancels this against how it was made."""
    batch, heads, seq, size = shape
    width = heads * size  # type: ignore[operator]
    swapped = emit(
        anchor,
        "Transpose",
        [value],
        {"perm": [0, 2, 1, 3]},
        name=f"{anchor.name}/{which}_rows",
        like=[(value.dtype, (batch, seq, heads, size))],
    )
    joined = emit(
        anchor,
        "Reshape",
        [swapped.outputs[0], int_constant(owner(anchor), [0, 0, int(width)])],
        name=f"{anchor.name}/{which}_joined",
        like=[(value.dtype, (batch, seq, width))],
    )
    return joined.outputs[0]
