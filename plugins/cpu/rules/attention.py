"""Attention in its forms: ONNX's own, with a padding mask, and on packed rows."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from infc.plugins.cpu.lower import Lowering, rule, word
from infc.plugins.cpu.rules.elementwise import binary, scalar, select
from infc.plugins.cpu.rules.movement import expand, reshape
from infc.plugins.cpu.types import cast
from infc.plugins.cpu.values import Ref, Tensor, product


def attention(lo: Lowering, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float, causal: bool) -> Tensor:
    """softmax(scale * q kᵀ + bias) v for q [B, heads, q_len, head_dim], k and v with heads of their own.

    ``bias`` [B, heads, q_len, kv_len] is added (f32) or says what is attended (bool). Returns [B, heads, q_len, v_dim].
    """
    batch, heads, q_len, head_dim = lo.want(q, "f32").dims
    kv_heads, kv_len, v_dim = k.dims[1], k.dims[2], v.dims[3]
    if heads % kv_heads or k.dims[3] != head_dim or v.dims[1] != kv_heads or k.dims[0] != batch:
        raise lo.unsupported(f"queries {list(q.dims)} against keys {list(k.dims)} and values {list(v.dims)}")
    for tensor in (q, k, v):
        if tensor.symbol:
            raise lo.unsupported("a batch that varies at run time; attention on packed rows takes that")
    refs = [_rows(lo, t) for t in (q, k, v)]
    strides = (0, 0, 0)
    if bias is not None:
        lo.want(bias, "f32", "bool")
        wide = lo.readable(expand(bias, (batch, heads, q_len, kv_len), ()))
        if (kv_len > 1 and wide.strides[3] != 1) or min(wide.strides) < 0:
            wide = lo.copied(wide)
        strides = (wide.strides[0], wide.strides[1], wide.strides[2])
        span = 1 + sum((d - 1) * s for d, s in zip(wide.dims, wide.strides, strict=True))
        refs.append(Ref(wide.buffer, wide.dtype, (span,), wide.offset, 1))
    rows = batch * q_len
    y = lo.new("f32", (batch, q_len, heads, v_dim))
    words = (heads, kv_heads, head_dim, v_dim, word(scale), int(causal), 0, -1, batch, q_len, kv_len, int(bias is not None),
             *strides)
    lo.emit("attention", refs, [y.ref((rows, heads * v_dim))], words, rows, cols=heads)
    return y.view((batch, heads, q_len, v_dim), [y.strides[i] for i in (0, 2, 1, 3)])


def _rows(lo: Lowering, t: Tensor) -> Ref:
    """[B, heads, len, dim] as rows [B*len, heads*dim]."""
    t = t.view([t.dims[i] for i in (0, 2, 1, 3)], [t.strides[i] for i in (0, 2, 1, 3)])
    return lo.matrix(t, 2, strided=True)[0]


def _heads(lo: Lowering, t: Tensor, heads: int) -> Tensor:
    """[B, len, heads*dim] as [B, heads, len, dim]."""
    if not heads or t.dims[2] % heads:
        raise lo.unsupported(f"{t.dims[2]} columns for {heads} heads")
    t = reshape(lo, t, (*t.dims[:2], heads, t.dims[2] // heads), (*t.symbols, None))
    return t.view([t.dims[i] for i in (0, 2, 1, 3)], [t.strides[i] for i in (0, 2, 1, 3)])


@rule("Attention")
def _attention(lo: Lowering, node: ir.Node) -> Tensor:
    q, k, v, mask = lo.input(0), lo.input(1), lo.input(2), lo.optional(3)
    for index in range(4, len(node.inputs)):
        if lo.optional(index) is not None:
            raise lo.unsupported("a key and value cache")
    if lo.attribute("softcap", 0.0):
        raise lo.unsupported("softcap")
    flat = len(q.dims) == 3
    if flat:
        q_heads, kv_heads = lo.attribute("q_num_heads", 0), lo.attribute("kv_num_heads", 0)
        q, k, v = _heads(lo, q, q_heads), _heads(lo, k, kv_heads), _heads(lo, v, kv_heads)
    causal = bool(lo.attribute("is_causal", 0))
    q_len, kv_len = q.dims[2], k.dims[2]
    if causal and q_len != kv_len:  # ONNX aligns the triangle with the upper left corner
        triangle = np.tril(np.ones((q_len, kv_len), bool))
        if mask is None or mask.dtype == "bool":
            mask = lo.constant(triangle) if mask is None else binary(lo, mask, lo.constant(triangle), "and")
        else:
            mask = select(lo, lo.constant(triangle), mask, scalar(lo, -np.inf))
        causal = False
    if mask is not None and (mask.dims or (1,))[-1] not in (1, kv_len):
        raise lo.unsupported(f"a mask of {mask.dims[-1]} for {kv_len} keys")
    scale = lo.attribute("scale")
    y = attention(lo, q, k, v, mask, 1 / math.sqrt(q.dims[3]) if scale is None else scale, causal)
    if not flat:
        return y
    natural = y.view([y.dims[i] for i in (0, 2, 1, 3)], [y.strides[i] for i in (0, 2, 1, 3)])
    return reshape(lo, natural, (natural.dims[0], natural.dims[1], product(natural.dims[2:])), ())


@rule("PaddedAttention", domain="infc")
def _padded_attention(lo: Lowering, node: ir.Node) -> Tensor:
    q, k, v, mask = (lo.input(i) for i in range(4))
    heads = lo.attribute("num_heads")
    kv_heads = lo.attribute("kv_num_heads", heads)
    mask = cast(lo, mask, "bool")
    mask = mask.view((mask.dims[0], 1, 1, mask.dims[1]), (mask.strides[0], 0, 0, mask.strides[1]))
    dim = q.dims[2] // heads
    y = attention(lo, _heads(lo, q, heads), _heads(lo, k, kv_heads), _heads(lo, v, kv_heads), mask,
                  _scale(lo, dim), False)
    natural = y.view([y.dims[i] for i in (0, 2, 1, 3)], [y.strides[i] for i in (0, 2, 1, 3)])
    return reshape(lo, natural, (*q.dims[:2], heads * natural.dims[3]), ())


@rule("VarlenAttention", domain="infc")
def _varlen_attention(lo: Lowering, node: ir.Node) -> Tensor:
    q, k, v, offsets, key_start = (lo.input(i) for i in range(5))
    heads = lo.attribute("num_heads")
    kv_heads = lo.attribute("kv_num_heads", heads)
    refs = []
    for tensor in (q, k, v):
        ref, rows, _ = lo.matrix(lo.want(tensor, "f32"), strided=True)
        refs.append(ref)
    head_dim, v_dim = q.dims[1] // heads, v.dims[1] // kv_heads
    batch = key_start.dims[0]
    batch_symbol = lo.symbol_index(key_start.symbol)
    y = lo.new("f32", (q.dims[0], heads * v_dim), (q.symbol, None))
    words = (heads, kv_heads, head_dim, v_dim, word(_scale(lo, head_dim)), 0, 1, batch_symbol, batch, 0, 0, 0, 0, 0, 0)
    lo.emit("attention", [*refs, offsets.ref(offsets.dims), key_start.ref(key_start.dims)], [y.ref(y.dims)], words, rows, q.symbol,
            cols=heads)
    return y


def _scale(lo: Lowering, dim: int) -> float:
    scale = lo.attribute("scale")
    return 1 / math.sqrt(dim) if not scale else float(scale)

