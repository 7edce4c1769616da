"""Attention as exporters write it, in ONNX's text syntax."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from tests.passes.support import graph

F = np.float32
CONSTANTS = {
    "heads": np.array([0, 0, 2, 4]),
    "joined": np.array([0, 0, 8]),
    "size": F(2),
    "scale": F(0.5),
    "one": F(1),
    "low": F(-1e9),
    "mild": F(-10),
    "axes": np.array([1, 2]),
    "row": np.array([1]),
    "zero": np.array(0),
    "step": np.array(1),
    "at0": np.array([0]),
    "izero": np.array([0]),
    "fzero": F(0),
    "quarter": F(0.25),
}
PARAMETERS = "float[batch,seq,8] q, float[batch,seq,8] k, float[batch,seq,8] v"
HEADS = (
    "q4 = Reshape(q, heads) k4 = Reshape(k, heads) v4 = Reshape(v, heads) "
    "qt = Transpose<perm=[0,2,1,3]>(q4) kt = Transpose<perm=[0,2,1,3]>(k4) vt = Transpose<perm=[0,2,1,3]>(v4) "
)
KEYS = "kd = Transpose<perm=[0,1,3,2]>(kt) "
TAIL = " yt = Transpose<perm=[0,2,1,3]>(a) y = Reshape(yt, joined)"
ADDITIVE = "f = Cast<to=1>(mask) g = Sub(one, f) h = Mul(g, low) bias = Unsqueeze(h, axes) "
BOOLEAN = "f = Cast<to=9>(mask) keep = Unsqueeze(f, axes) "
# ONNX Runtime's Attention does not broadcast a mask over queries.
EVERY = "w = Shape<start=1,end=2>(q) n = Squeeze(w) r = Range(zero, n, step) c = Unsqueeze(r, row) every = GreaterOrEqual(c, zero) "
WIDE = EVERY + "z = Mul(c, zero) zf = Cast<to=1>(z) bias2 = Add(bias, zf) "
HIDDEN = "f = Equal(mask, izero) hide = Unsqueeze(f, axes) "
APPLY = " p = Softmax<axis=-1>(t) a = MatMul(p, vt) "
CAUSAL = (
    "w = Shape<start=1,end=2>(mask) n = Squeeze(w) r = Range(zero, n, step) c = Unsqueeze(r, row) b = "
    "Unsqueeze(r, at0) causal = GreaterOrEqual(c, b) "
)


def model(body: str, extra: str = "", mask: str = "int64[batch,seq] mask") -> ir.Model:
    return graph(f"({PARAMETERS}, {mask}{extra}) => (float[batch,seq,8] y) {{ {HEADS} {body} {TAIL} }}", CONSTANTS)


PADDED = {
    "additive": KEYS + ADDITIVE + "s = MatMul(qt, kd) u = Div(s, size) t = Add(u, bias)" + APPLY,
    "mask first": KEYS + ADDITIVE + "s = MatMul(qt, kd) u = Mul(scale, s) t = Add(bias, u)" + APPLY,
    "where kept": KEYS + BOOLEAN + "s = MatMul(qt, kd) u = Mul(s, scale) t = Where(keep, u, low)" + APPLY,
    "where hidden": KEYS + HIDDEN + "s = MatMul(qt, kd) u = Mul(s, scale) t = Where(hide, low, u)" + APPLY,
    "scaled query": KEYS + ADDITIVE + "qs = Div(qt, size) s = MatMul(qs, kd) t = Add(s, bias)" + APPLY,
    "both scaled": KEYS + ADDITIVE + "qs = Mul(qt, quarter) ks = Mul(kd, size) s = MatMul(qs, ks) t = Add(s, bias)" + APPLY,
    "keys at once": "kd = Transpose<perm=[0,2,3,1]>(k4) "
    + ADDITIVE
    + "s = MatMul(qt, kd) u = Div(s, size) t = Add(u, bias)"
    + APPLY,
    "guarded": KEYS + ADDITIVE + "s = MatMul(qt, kd) u = Div(s, size) t = Add(u, bias) p = Softmax<axis=-1>(t) i = IsNaN(p) "
    "g2 = Where(i, fzero, p) a = MatMul(g2, vt)",
    "operator, bool": BOOLEAN + EVERY + "keep2 = And(keep, every) a = Attention<scale=0.5>(qt, kt, vt, keep2)",
    "operator, additive": ADDITIVE + WIDE + "a = Attention(qt, kt, vt, bias2)",
}
