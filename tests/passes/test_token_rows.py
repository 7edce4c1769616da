"""Graphs of language models: what is computed for chosen rows alone, what keeps a graph from it, and the attention in between."""

from __future__ import annotations

import json

import numpy as np
import onnx_ir as ir
import pytest

from infc.passes.domain import DOMAIN
from infc.passes.pack_tokens import PACKED
from infc.passes.token_rows import TokenRows
from tests.passes.support import Array, normal, session

HEADS, KV, SIZE = 4, 2, 6
TOKENS = 11


def value(name: str, dtype: ir.DataType, *shape: int | str) -> ir.Value:
    return ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape(shape))


def attention(turned: int = 0, **attributes: float) -> ir.Model:
    """One node; ``turned`` elements of a head are rotated in pairs."""
    given = {"num_heads": HEADS, "kv_num_heads": KV, "scale": 0.4, "softcap": 0.0, "window": 0, "layer": 0, "interleaved": 0}
    f32 = ir.DataType.FLOAT
    inputs = [value("q", f32, "tokens", 1, HEADS * SIZE), *(value(n, f32, "tokens", 1, KV * SIZE) for n in "kv")]
    inputs += [value(n, f32, "tokens", 1, turned // 2) for n in ("cos", "sin")] if turned else []
    y = value("y", f32, "tokens", 1, HEADS * SIZE)
    node = ir.node("CachedAttention", inputs, {**given, **attributes}, domain=DOMAIN, outputs=[y], name="attention")
    return ir.Model(ir.Graph(inputs, [y], nodes=[node], opset_imports={"": 23, DOMAIN: 1}, name="g"), ir_version=10)


def rotated(x: Array, cos: Array, sin: Array, interleaved: bool) -> Array:
    """[tokens, heads, d]."""
    half = cos.shape[-1]
    first = np.arange(half) * 2 if interleaved else np.arange(half)
    second = first + (1 if interleaved else half)
    y = x.copy()
    c, s = cos[:, None], sin[:, None]
    y[..., first], y[..., second] = x[..., first] * c - x[..., second] * s, x[..., second] * c + x[..., first] * s
    return y


@pytest.mark.parametrize("turned", [0, 4, SIZE])
@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize(("window", "softcap"), [(0, 0.0), (3, 0.0), (0, 2.0), (1, 1.5)])
def test_what_attention_is(turned: int, interleaved: int, window: int, softcap: float) -> None:
    q, k, v = (normal(TOKENS, 1, n * SIZE, seed=n) for n in (HEADS, KV, KV))
    given = {"q": q, "k": k, "v": v}
    angles = normal(TOKENS, turned // 2) * 4
    if turned:
        given |= {"cos": np.cos(angles)[:, None], "sin": np.sin(angles)[:, None]}
    model = attention(turned, window=window, softcap=softcap, interleaved=interleaved)
    got = session(model).run(None, given)[0]
    rows = [x.reshape(TOKENS, -1, SIZE) for x in (q, k, v)]
    if turned:
        rows[:2] = [rotated(x, np.cos(angles), np.sin(angles), bool(interleaved)) for x in rows[:2]]
    want = np.zeros((TOKENS, HEADS, SIZE), np.float32)
    for i in range(TOKENS):
        seen = range(max(0, i - window + 1) if window else 0, i + 1)
        for h in range(HEADS):
            scores = np.array([rows[0][i, h] @ rows[1][j, h // (HEADS // KV)] * 0.4 for j in seen])
            scores = softcap * np.tanh(scores / softcap) if softcap else scores
            weights = np.exp(scores - scores.max())
            want[i, h] = weights @ rows[2][list(seen), h // (HEADS // KV)] / weights.sum()
    np.testing.assert_allclose(got.reshape(want.shape), want, atol=1e-5)


def chosen(*before: str, reader: bool = False) -> ir.Model:
    """Attention, operators of one operand, and rows of the result; ``reader``: an output of all rows besides."""
    model = attention()
    graph, x = model.graph, model.graph.outputs[0]
    for number, op in enumerate(before):
        node = ir.node(op, [x], name=f"{op}{number}", outputs=[value(f"v{number}", ir.DataType.FLOAT, "tokens", 1, HEADS * SIZE)])
        graph.append(node)
        x = node.outputs[0]
    rows = value("rows", ir.DataType.INT64, "rows")
    graph.inputs.append(rows)
    out = value("out", ir.DataType.FLOAT, "rows", 1, HEADS * SIZE)
    graph.append(ir.node("Gather", [x, rows], {"axis": 0}, outputs=[out], name="choice"))
    graph.outputs[:] = [out, *([x] if reader else [])]
    return model


def run(model: ir.Model) -> list[Array]:
    given = {n: normal(TOKENS, 1, w * SIZE, seed=w) for n, w in (("q", HEADS), ("k", KV), ("v", KV))}
    return session(model).run(None, {**given, "rows": np.array([10, 3])})


def test_rows_are_chosen_before_what_is_about_one_row() -> None:
    model = chosen("Neg", "Softmax", "Abs")
    before = run(model)
    result = TokenRows().run(model)
    assert result.matches == ["choice"]
    assert [n.op_type for n in model.graph] == ["CachedAttention", "Gather", "Neg", "Softmax", "Abs"]
    assert json.loads(model.metadata_props[PACKED]) == {"tokens": ["tokens"], "rows": ["rows"]}
    np.testing.assert_array_equal(run(model)[0], before[0])


def test_what_others_read_stays() -> None:
    model = chosen("Neg", "Abs", reader=True)
    before = run(model)
    TokenRows().run(model)
    assert [n.op_type for n in model.graph] == ["CachedAttention", "Neg", "Abs", "Gather"]
    for a, b in zip(run(model), before, strict=True):
        np.testing.assert_array_equal(a, b)


def test_what_mixes_tokens_keeps_dimensions_exact() -> None:
    model = chosen("Neg")
    node = next(n for n in model.graph if n.op_type == "Neg")
    mixing = ir.node("Softmax", [node.outputs[0]], {"axis": 0}, name="mixes",
                     outputs=[value("m", ir.DataType.FLOAT, "tokens", 1, HEADS * SIZE)])
    node.append(mixing)
    next(n for n in model.graph if n.op_type == "Gather").replace_input_with(0, mixing.outputs[0])
    result = TokenRows().run(model)
    assert not result.modified
    assert [m.node for m in result.near_misses] == ["mixes"]
    assert PACKED not in model.metadata_props
