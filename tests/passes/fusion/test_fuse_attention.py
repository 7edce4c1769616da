from __future__ import annotations

import numpy as np
import pytest

from infc.passes.base import Pass, PassManager
from infc.passes.cleanup.constant_folding import ConstantFolding
from infc.passes.cleanup.dead_code import DeadCode
from infc.passes.cleanup.reshape_transpose import ReshapeTranspose
from infc.passes.fusion.fuse_attention import FuseAttention
from tests.passes.fusion.attention_forms import (
    APPLY,
    BOOLEAN,
    CAUSAL,
    CONSTANTS,
    EVERY,
    HEADS,
    HIDDEN,
    KEYS,
    PADDED,
    PARAMETERS,
    TAIL,
    model,
)
from tests.passes.support import apply, find, graph, misses, ops

PASSES: tuple[type[Pass], ...] = (ConstantFolding, FuseAttention, ReshapeTranspose, DeadCode)


@pytest.mark.parametrize("form", PADDED)
def test_padding(form: str) -> None:
    m = model(PADDED[form])
    apply(m, *PASSES)
    attention = find(m, "PaddedAttention")
    assert ops(m) == {"PaddedAttention": 1}
    assert [v.name for v in attention.inputs] == ["q", "k", "v", "mask"]
    assert {k: a.value for k, a in attention.attributes.items()} == {"num_heads": 2, "kv_num_heads": 2, "scale": pytest.approx(0.5)}


@pytest.mark.parametrize("dtype", ["int64", "int32", "bool", "float"])
def test_mask_types(dtype: str) -> None:
    m = model(PADDED["where kept"], mask=f"{dtype}[batch,seq] mask")
    apply(m, *PASSES)
    assert ops(m)["PaddedAttention"] == 1


def test_grouped_heads() -> None:
    m = graph(
        "(float[batch,seq,8] q, float[batch,seq,4] k, float[batch,seq,4] v, int64[batch,seq] mask) => (float[batch,seq,8] y) "
        "{ q4 = Reshape(q, heads) k4 = Reshape(k, one_head) v4 = Reshape(v, one_head) qt = Transpose<perm=[0,2,1,3]>(q4) "
        f"kt = Transpose<perm=[0,2,1,3]>(k4) vt = Transpose<perm=[0,2,1,3]>(v4) {BOOLEAN}{EVERY} keep2 = "
        f"And(keep, every) a = Attention(qt, kt, vt, keep2) {TAIL} }}",
        CONSTANTS | {"one_head": np.array([0, 0, 1, 4])},
    )
    apply(m, *PASSES)
    assert find(m, "PaddedAttention").attributes["kv_num_heads"].value == 1


def test_without_a_mask_it_becomes_the_operator() -> None:
    m = graph(
        f"({PARAMETERS}) => (float[batch,seq,8] y) {{ {HEADS}{KEYS} s = MatMul(qt, kd) t = Div(s, size) {APPLY}{TAIL} }}", CONSTANTS
    )
    apply(m, *PASSES)
    assert ops(m) == {"Reshape": 4, "Transpose": 4, "Attention": 1}
    assert find(m, "Attention").attributes["scale"].value == pytest.approx(0.5)


def test_the_operator_without_a_mask_stays() -> None:
    m = graph(f"({PARAMETERS}) => (float[batch,seq,8] y) {{ {HEADS} a = Attention(qt, kt, vt) {TAIL} }}", CONSTANTS)
    assert misses(apply(m, *PASSES)) == []
    assert ops(m)["Attention"] == 1


OTHERS = {
    "causal": (CAUSAL + "b2 = Unsqueeze(causal, axes0) a = Attention(qt, kt, vt, b2)", "depends on 0 graph inputs"),
    "causal and padded": (
        BOOLEAN + CAUSAL + "both = And(keep, causal) a = Attention(qt, kt, vt, both)",
        "not the padding mask of mask",
    ),
    "inverted": (HIDDEN + "e = Not(hide) o = Not(e) a = Attention(qt, kt, vt, o)", "not the padding mask of mask"),
    "mild": (
        "f = Cast<to=1>(mask) g = Sub(one, f) h = Mul(g, mild) bias = Unsqueeze(h, axes) a = Attention(qt, kt, vt, bias)",
        "not the padding mask of mask",
    ),
    "shifted": (
        "f = Cast<to=1>(mask) h = Mul(f, size) bias = Unsqueeze(h, axes) a = Attention(qt, kt, vt, bias)",
        "not the padding mask",
    ),
    "keys and queries": (
        BOOLEAN + "kq = Unsqueeze(f, qaxes) both = And(keep, kq) a = Attention(qt, kt, vt, both)",
        "not the padding mask",
    ),
    "is causal": (BOOLEAN + "a = Attention<is_causal=1>(qt, kt, vt, keep)", "causal or has a softcap"),
    "softcap": (BOOLEAN + "a = Attention<softcap=3.0>(qt, kt, vt, keep)", "causal or has a softcap"),
}


@pytest.mark.parametrize("form", OTHERS)
def test_other_masks_do_not_match(form: str) -> None:
    body, reason = OTHERS[form]
    m = graph(
        f"({PARAMETERS}, int64[batch,seq] mask) => (float[batch,seq,8] y) {{ {HEADS} {body} {TAIL} }}",
        CONSTANTS | {"axes0": np.array([0, 1]), "qaxes": np.array([1, 3])},
    )
    before = ops(m)
    found = PassManager((FuseAttention,)).run(m)
    assert any(reason in r for r in misses(found)), misses(found)
    assert ops(m)["PaddedAttention"] == 0
    assert ops(m)["Attention"] == before["Attention"]


def test_a_mask_of_two_inputs_does_not_match() -> None:
    m = model(
        EVERY + "f = Mul(mask, mask2) g = Cast<to=9>(f) keep = Unsqueeze(g, axes) keep2 = And(keep, every) a = "
        "Attention(qt, kt, vt, keep2)",
        ", int64[batch,seq] mask2",
    )
    assert "depends on 2 graph inputs: mask, mask2" in misses(apply(m, *PASSES))[0]


def test_a_given_bias_does_not_match() -> None:
    m = model("a = Attention(qt, kt, vt, bias)", ", float[batch,1,seq,seq] bias")
    assert "is not [batch, seq]" in misses(apply(m, *PASSES))[0]


def test_scores_used_elsewhere_are_a_near_miss() -> None:
    m = graph(
        f"({PARAMETERS}, int64[batch,seq] mask) => (float[batch,seq,8] y, float[batch,2,seq,seq] s) {{ "
        f"{HEADS} {PADDED['additive']} {TAIL} }}",
        CONSTANTS,
    )
    assert "s is used elsewhere" in misses(apply(m, *PASSES))
    assert ops(m)["Softmax"] == 1


def test_another_softmax_axis_is_not_attention() -> None:
    m = model(PADDED["additive"].replace("axis=-1", "axis=2"))
    assert "the softmax is not over the keys" in misses(apply(m, *PASSES))


def test_cross_attention_does_not_match() -> None:
    m = graph(
        "(float[batch,seq,8] q, float[batch,n,8] k, float[batch,n,8] v, int64[batch,n] key_padding) => (float[batch,seq,8] y) "
        f"{{ {HEADS} {BOOLEAN.replace('(mask)', '(key_padding)')} a = Attention(qt, kt, vt, keep) {TAIL} }}",
        CONSTANTS,
    )
    records = PassManager((FuseAttention,)).run(m)
    assert ops(m)["PaddedAttention"] == 0
    assert misses(records)


def test_biases_and_masks_one_after_another_become_one() -> None:
    m = graph(
        "(float[batch,2,seq,4] q, float[batch,2,4,seq] k, float[batch,2,seq,4] v, float[1,2,seq,seq] near, "
        "bool[batch,1,1,seq] hide) "
        "=> (float[batch,2,seq,4] y) { s = MatMul(q, k) d = Div(s, two) b = Add(near, d) m = Where(hide, low, b) "
        "w = Softmax<axis=-1>(m) y = MatMul(w, v) }",
        {"two": np.float32(2), "low": np.float32(-1e9)},
    )
    PassManager([FuseAttention]).run(m)
    attention = find(m, "Attention")
    assert attention.attributes["scale"].value == 0.5
    bias = attention.inputs[3]
    assert bias is not None
    assert bias.producer().op_type == "Where"  # type: ignore[union-attr]
    assert "Softmax" not in ops(m)
