from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from infc.plugins.tensorrt.legalise import Request, legalise
from tests.plugins.tensorrt.legalise.support import Array, build, compare, feed, graph, kinds, run

QKV = "float[2, 4, 8, 16] q, float[2, 4, 8, 16] k, float[2, 4, 8, 16] v"
PAST = "float[2, 4, {}, 16] q, float[2, 4, {}, 16] k, float[2, 4, {}, 16] v, float[2, 4, 6, 16] pk, float[2, 4, 6, 16] pv"
DECODE, EXTEND = PAST.format(1, 1, 1), PAST.format(3, 3, 3)
# name: (inputs, outputs, node, attentions kept in f16)
ATTENTIONS = {
    "plain": (QKV, "float[2, 4, 8, 16] y", "y = Attention(q, k, v)", 1),
    "scale": (QKV, "float[2, 4, 8, 16] y", "y = Attention<scale = 0.3>(q, k, v)", 1),
    "bool mask": (f"{QKV}, bool[2, 1, 8, 8] visible", "float[2, 4, 8, 16] y", "y = Attention(q, k, v, visible)", 1),
    "float mask": (f"{QKV}, float[2, 1, 8, 8] bias", "float[2, 4, 8, 16] y", "y = Attention(q, k, v, bias)", 1),
    "causal": (QKV, "float[2, 4, 8, 16] y", "y = Attention<is_causal = 1>(q, k, v)", 1),
    "causal with bool mask": (f"{QKV}, bool[2, 1, 8, 8] visible", "float[2, 4, 8, 16] y",
                              "y = Attention<is_causal = 1>(q, k, v, visible)", 1),
    "causal with float mask": (f"{QKV}, float[8, 8] bias", "float[2, 4, 8, 16] y",
                               "y = Attention<is_causal = 1>(q, k, v, bias)", 1),
    "causal across lengths": ("float[2, 4, 3, 16] q, float[2, 4, 8, 16] k, float[2, 4, 8, 16] v", "float[2, 4, 3, 16] y",
                              "y = Attention<is_causal = 1>(q, k, v)", 1),
    "softcap": (f"{QKV}, bool[2, 1, 8, 8] visible", "float[2, 4, 8, 16] y", "y = Attention<softcap = 2.0>(q, k, v, visible)", 0),
    "softmax precision": (QKV, "float[2, 4, 8, 16] y", "y = Attention<softmax_precision = 1>(q, k, v)", 1),
    "grouped": ("float[2, 8, 8, 16] q, float[2, 2, 8, 16] k, float[2, 2, 8, 16] v", "float[2, 8, 8, 16] y",
                "y = Attention(q, k, v)", 1),
    "flat": ("float[2, 8, 64] q, float[2, 8, 32] k, float[2, 8, 32] v", "float[2, 8, 64] y",
             "y = Attention<q_num_heads = 4, kv_num_heads = 2>(q, k, v)", 1),
    "flat with cache": ("float[2, 1, 64] q, float[2, 1, 32] k, float[2, 1, 32] v, float[2, 2, 6, 16] pk, float[2, 2, 6, 16] pv",
                        "float[2, 1, 64] y, float[2, 2, 7, 16] nk, float[2, 2, 7, 16] nv",
                        "y, nk, nv = Attention<q_num_heads = 4, kv_num_heads = 2, is_causal = 1>(q, k, v, , pk, pv)", 1),
    "decode": (DECODE, "float[2, 4, 1, 16] y, float[2, 4, 7, 16] nk, float[2, 4, 7, 16] nv",
               "y, nk, nv = Attention<is_causal = 1>(q, k, v, , pk, pv)", 1),
    "extend": (EXTEND, "float[2, 4, 3, 16] y, float[2, 4, 9, 16] nk, float[2, 4, 9, 16] nv",
               "y, nk, nv = Attention<is_causal = 1>(q, k, v, , pk, pv)", 1),
    "extend with mask": (f"{EXTEND}, bool[2, 1, 3, 9] visible",
                         "float[2, 4, 3, 16] y, float[2, 4, 9, 16] nk, float[2, 4, 9, 16] nv",
                         "y, nk, nv = Attention<is_causal = 1>(q, k, v, visible, pk, pv)", 1),
    "value size": ("float[2, 4, 8, 16] q, float[2, 4, 8, 16] k, float[2, 4, 8, 32] v", "float[2, 4, 8, 32] y",
                   "y = Attention(q, k, v)", 0),
    "small heads": ("float[2, 4, 8, 8] q, float[2, 4, 8, 8] k, float[2, 4, 8, 8] v", "float[2, 4, 8, 8] y",
                    "y = Attention(q, k, v)", 0),
}


def _model(name: str) -> ir.Model:
    inputs, outputs, node, _ = ATTENTIONS[name]
    return graph(f"({inputs}) => ({outputs}) {{ {node} }}")


@pytest.mark.parametrize("name", ATTENTIONS)
def test_attention_is_the_same_in_f32(name: str) -> None:
    found = compare(_model(name), "f32", 2e-6)
    assert not kinds(found.model)["Attention"]


@pytest.mark.parametrize("name", ATTENTIONS)
def test_attention_is_the_same_in_f16(name: str) -> None:
    found = compare(_model(name), "f16", 4e-3)
    assert kinds(found.model)["Attention"] == ATTENTIONS[name][3]
    assert any("not fused" in n for n in found.notes) == (ATTENTIONS[name][3] == 0)


def test_every_attention_builds(tmp_path: Path) -> None:
    models = {(name, precision): legalise(_model(name), Request(precision, sms=(89,))).model
              for name in ATTENTIONS for precision in ("f32", "f16", "bf16")}
    said = dict(zip(models, build(tmp_path, *models.values()), strict=True))
    assert {k: s for k, s in said.items() if s} == {}


def test_a_query_that_sees_nothing_gives_zeros() -> None:
    model = graph(f"({QKV}, bool[8, 8] visible) => (float[2, 4, 8, 16] y) {{ y = Attention(q, k, v, visible) }}")
    feeds = feed(model)
    feeds["visible"] = np.ones((8, 8), np.bool_)
    feeds["visible"][3] = False
    (found,) = run(legalise(model, Request(sms=(89,))).model, feeds)
    assert (found[:, :, 3] == 0).all()
    assert np.isfinite(found).all()


def test_attention_in_f16_may_have_a_mask_in_f32(tmp_path: Path) -> None:
    half = QKV.replace("float[", "float16[")
    model = graph(f"({half}, float[2, 1, 8, 8] bias) => (float16[2, 4, 8, 16] y) {{ y = Attention(q, k, v, bias) }}")
    found = legalise(model, Request(sms=(89,))).model
    assert kinds(found) == {"Cast": 1, "Attention": 1}
    assert build(tmp_path, found) == [""]


@pytest.mark.parametrize("sizes", [(2, 5, 5, 0), (1, 1, 1, 6), (2, 3, 3, 4)])
@pytest.mark.parametrize("precision", ["f32", "f16"])
def test_named_dimensions(precision: str, sizes: tuple[int, int, int, int]) -> None:
    batch, queries, keys, past = sizes
    text = ("(float[B, S, 64] q, float[B, S, 32] k, float[B, S, 32] v, float[B, 2, P, 16] pk, float[B, 2, P, 16] pv) => "
            "(float[B, S, 64] y, float[B, 2, T, 16] nk, float[B, 2, T, 16] nv) "
            "{ y, nk, nv = Attention<q_num_heads = 4, kv_num_heads = 2, is_causal = 1>(q, k, v, , pk, pv) }")
    model = graph(text)
    found = legalise(model, Request(precision, sms=(89,), dynamic=True)).model
    random = np.random.default_rng(0)
    shapes: dict[str, tuple[int, ...]] = {"q": (batch, queries, 64), "k": (batch, keys, 32), "v": (batch, keys, 32),
                                          "pk": (batch, 2, past, 16), "pv": (batch, 2, past, 16)}
    feeds: dict[str, Array] = {n: random.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
    for wanted, got in zip(run(model, feeds), run(found, feeds), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=0, atol=2e-6 if precision == "f32" else 5e-3)


def test_statistics_of_a_norm_are_computed_beside_it() -> None:
    model = graph("(float[2, 8, 16] x, float[16] s, float[16] b) => (float[2, 8, 16] y, float[2, 8, 1] m, float[2, 8, 1] r) "
                  "{ y, m, r = LayerNormalization(x, s, b) }")
    found = compare(model, "f32", 1e-6)
    assert [len(n.outputs) for n in found.model.graph if n.op_type == "LayerNormalization"] == [1]
    unread = graph("(float[2, 8, 16] x, float[16] s) => (float[2, 8, 16] y) { y, m, r = LayerNormalization(x, s) }")
    assert kinds(compare(unread, "f16", 4e-3).model) == {"LayerNormalization": 1, "Cast": 3}


@pytest.mark.parametrize("shape", [[2, 4], [7, 11], [3, 9], [9, 3], [4, 8]])
def test_crop_or_pad(shape: list[int]) -> None:
    model = graph(f"(float[4, 8] x) => (float[{shape[0]}, {shape[1]}] y) {{ y = CenterCropPad(x, s) }}", {"s": np.array(shape)})
    assert "CenterCropPad" not in kinds(compare(model, "f32", 0).model)
