"""Attention over a cache: rows of tokens, each of a sequence that the run's caller knows."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from infc.plugins.cpu.lower import Lowering, rule, word
from infc.plugins.cpu.rules.movement import expand, reshape
from infc.plugins.cpu.values import Ref, Tensor


@rule("CachedAttention", domain="infc")
def _cached_attention(lo: Lowering, node: ir.Node) -> Tensor:
    q, k, v, cos, sin = (lo.optional(i) for i in range(5))
    if q is None or k is None or v is None or (cos is None) != (sin is None):
        raise lo.unsupported("queries, keys and values, and either both or none of cosines and sines are needed")
    heads, kv_heads, layer = lo.attribute("num_heads"), lo.attribute("kv_num_heads"), lo.attribute("layer")
    lo.attribute("window"), lo.attribute("cache")  # which STATE has
    interleaved, scale, softcap = lo.attribute("interleaved", 0), lo.attribute("scale"), lo.attribute("softcap", 0.0)
    k_dim, v_dim = k.dims[-1] // kv_heads, v.dims[-1] // kv_heads
    inputs, rows = _rows(lo, (q, k, v))
    if cos is not None and sin is not None:
        inputs += _angles(lo, (cos, sin), rows, q.symbol)
    turned = lo.new("f32", (rows, heads * k_dim), (q.symbol, None))
    lo.emit("cache_write", inputs, [turned.ref(turned.dims)],
            (layer, heads, kv_heads, k_dim, v_dim, int(cos is not None), int(bool(interleaved))), rows, q.symbol)
    y = lo.new("f32", (rows, heads * v_dim), (q.symbol, None))
    lo.emit("cache_attention", [turned.ref(turned.dims)], [y.ref(y.dims)],
            (layer, heads, kv_heads, k_dim, v_dim, word(scale), word(softcap)), rows, q.symbol, cols=rows * heads)
    return reshape(lo, y, (*q.dims[:-1], heads * v_dim), (*q.symbols[:-1], None))


def _rows(lo: Lowering, tensors: Sequence[Tensor]) -> tuple[list[Ref], int]:
    found = [lo.matrix(lo.want(t, "f32"), strided=True) for t in tensors]
    if len({rows for _, rows, _ in found}) != 1:
        raise lo.unsupported(f"queries, keys and values of {[rows for _, rows, _ in found]} rows")
    return [ref for ref, _, _ in found], found[0][1]


def _angles(lo: Lowering, angles: Sequence[Tensor], rows: int, symbol: str | None) -> list[Ref]:
    """A row of them for each token."""
    refs = []
    for t in angles:
        if t.symbol != symbol or t.dims[0] != rows:
            t = lo.dense(expand(reshape(lo, t, (1, t.dims[-1]), ()), (rows, t.dims[-1]), (symbol, None)))
        refs.append(lo.matrix(lo.want(t, "f32"), strided=True)[0])
    return refs
