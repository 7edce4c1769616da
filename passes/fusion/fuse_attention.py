"""Attention, as ONNX's operator or written out, becomes infc.PaddedAttention when its mask only hides padding, else Attention."""

from __future__ import annotations

from typing import Any, ClassVar

import onnx_ir as ir

from infc.passes.base import Miss, NodePass, PassResult
from infc.passes.domain import DOMAIN
from infc.passes.fusion.attention import Found, Mask, find
from infc.passes.graph import Dims, dims, emit, int_constant, is_op, owner, replace
from infc.passes.masks import MaskProver, hides_padding
from infc.passes.shapes import broadcast


class FuseAttention(NodePass):
    """Looks at Attention nodes without cache, causality or softcap, and at MatMul, scale, masks and biases, Softmax, MatMul. A mask
    is taken for padding only if evaluation proves it; written-out attention with another mask, with a bias or with nothing of
    either becomes ONNX's Attention."""

    name = "fuse_attention"
    roots: ClassVar[frozenset[str]] = frozenset({"Attention", "Softmax"})

    def run(self, model: ir.Model) -> PassResult:
        self._masks = MaskProver(model)
        return super().run(model)

    def rewrite(self, node: ir.Node) -> str | None:
        found = find(node)
        if found is None:
            return None
        if found.mask is not None:
            mask, reason = self._masks.prove(found.mask.value, hides_padding, found.mask.form, found.mask.view)
            if mask is not None:
                return _padded(found, mask)
            if node.op_type == "Attention":
                raise Miss(node, f"the mask {found.mask.value.name} is not known to be padding: {reason}")
        return _operator(found) if node.op_type == "Softmax" else None


def _operator(found: Found) -> str | None:
    root = found.nodes[-1]
    if found.masks:
        _check_scores(found)
    if any(is_op(n, "IsNaN") for n in found.nodes) and found.masks:
        raise Miss(root, "a query without keys gives zero, and its mask is not known to be padding")
    bias = None
    for mask in found.masks:
        bias = _under(root, bias, mask)
    fused = emit(
        root,
        "Attention",
        [found.q, found.keys(), found.v, *([] if bias is None else [bias])],
        {"scale": found.scale},
        name=root.name or "",
        like=root.outputs,
        sources=found.nodes,
    )
    replace(root.outputs[0], fused.outputs[0])
    return fused.name


def _check_scores(found: Found) -> None:
    """Raises Miss unless every mask is known to broadcast to the scores."""
    root, q, k = found.nodes[-1], dims(found.q), found.key_shape()
    if q is None or k is None or len(q) != 4 or len(k) != 4 or q[1] != k[1]:
        raise Miss(root, "query and key are not known to be [batch, heads, seq, size]")
    scores = (*q[:3], k[2])
    for mask in found.masks:
        shape = dims(mask.value)
        if shape is None or broadcast(shape, scores) != scores:
            raise Miss(root, f"the mask {mask.value.name} of shape {shape} is not known to broadcast to {scores}")


def _under(root: ir.Node, bias: ir.Value | None, mask: Mask) -> ir.Value:
    """What Attention adds, or attends, for ``bias`` with ``mask`` applied over it."""
    value = mask.value
    shape = dims(value) if bias is None else broadcast(dims(value) or (), dims(bias) or ())
    name = f"{root.name}/{value.name}"
    if mask.fill is None:
        return value if bias is None else emit(root, "Add", [bias, value], name=name, like=[(bias.dtype, shape)]).outputs[0]
    hides = mask.form != "as it is"
    if bias is None:
        return emit(root, "Not", [value], name=name, like=[(value.dtype, shape)]).outputs[0] if hides else value
    choices = [mask.fill, bias] if hides else [bias, mask.fill]
    return emit(root, "Where", [value, *choices], name=name, like=[(bias.dtype, shape)]).outputs[0]


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
