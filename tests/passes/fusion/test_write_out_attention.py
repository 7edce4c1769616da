from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from infc.passes.base import Pass, PassManager
from infc.passes.cleanup.constant_folding import ConstantFolding
from infc.passes.cleanup.dead_code import DeadCode
from infc.passes.fusion.write_out_attention import WriteOutAttention
from infc.passes.graph import dims
from tests.passes.fusion.attention_forms import (
    ADDITIVE,
    APPLY,
    BOOLEAN,
    CAUSAL,
    CONSTANTS,
    HEADS,
    KEYS,
    PADDED,
    PARAMETERS,
    TAIL,
    model,
)
from tests.passes.support import apply, find, graph, misses, ops, unchanged

PASSES: tuple[type[Pass], ...] = (ConstantFolding, WriteOutAttention, DeadCode)


def addend(m: ir.Model) -> ir.Value:
    """What is added to the scores."""
    weights = find(m, "Softmax").inputs[0]
    assert weights is not None
    masked = weights.producer()
    assert masked is not None
    assert masked.op_type == "Add"
    assert masked.inputs[1] is not None
    return masked.inputs[1]


@pytest.mark.parametrize("form", PADDED)
def test_padding_becomes_one_addend(form: str) -> None:
    m = model(PADDED[form])
    apply(m, *PASSES)
    assert dims(addend(m)) == ("batch", 1, 1, "seq")
    assert (ops(m)["Attention"], ops(m)["MatMul"], ops(m)["IsNaN"]) == (0, 2, 0)
    assert ops(m)["Where"] == ops(m)["Cast"] == 1


@pytest.mark.parametrize("dtype", ["int64", "int32", "bool", "float"])
def test_mask_types(dtype: str) -> None:
    m = model(PADDED["where kept"], mask=f"{dtype}[batch,seq] mask")
    apply(m, *PASSES)
    assert ops(m)["Cast"] == (dtype != "bool")
    assert dims(addend(m)) == ("batch", 1, 1, "seq")


def test_without_a_mask() -> None:
    m = graph(f"({PARAMETERS}) => (float[batch,seq,8] y) {{ {HEADS} a = Attention(qt, kt, vt) {TAIL} }}", CONSTANTS)
    apply(m, *PASSES)
    assert (ops(m)["Attention"], ops(m)["MatMul"], ops(m)["Add"]) == (0, 2, 0)


def test_written_out_without_a_mask_stays() -> None:
    m = graph(
        f"({PARAMETERS}) => (float[batch,seq,8] y) {{ {HEADS}{KEYS} s = MatMul(qt, kd) t = Div(s, size) {APPLY}{TAIL} }}", CONSTANTS
    )
    assert unchanged(m, WriteOutAttention) == []


def test_two_layers_share_the_addend() -> None:
    """Each makes its own mask; a second run finds nothing."""
    second = ADDITIVE.replace("f =", "f2 =").replace("(one, f)", "(one, f2)").replace("g =", "g2 =").replace("(g,", "(g2,")
    second = second.replace("h =", "h2 =").replace("(h,", "(h2,").replace("bias =", "bias2 =")
    body = (
        f"{KEYS}{ADDITIVE}{second} s = MatMul(qt, kd) u = Div(s, size) t = Add(u, bias) {APPLY} "
        "s2 = MatMul(a, kd) t2 = Add(s2, bias2) p2 = Softmax<axis=-1>(t2) b = MatMul(p2, vt) "
    )
    m = graph(
        f"({PARAMETERS}, int64[batch,seq] mask) => (float[batch,seq,8] y) {{ {HEADS} {body} {TAIL.replace('(a)', '(b)')} }}",
        CONSTANTS,
    )
    records = apply(m, *PASSES)
    assert len(records[1].matches) == 2
    assert ops(m)["Where"] == 1
    assert not PassManager([WriteOutAttention]).run(m)[0].matches


ALL_SEEN = {
    "true": "n = Shape<start=1,end=2>(q) e = Concat<axis=0>(n, n) t0 = Cast<to=9>(one) keep = Expand(t0, e)",
    "zero": "n = Shape<start=1,end=2>(q) e = Concat<axis=0>(n, n) keep = Expand(fzero, e)",
}


@pytest.mark.parametrize("form", ALL_SEEN)
def test_a_mask_that_hides_nothing_goes(form: str) -> None:
    m = graph(
        f"({PARAMETERS}) => (float[batch,seq,8] y) {{ {HEADS} {ALL_SEEN[form]} a = Attention(qt, kt, vt, keep) {TAIL} }}", CONSTANTS
    )
    apply(m, *PASSES)
    assert (ops(m)["Attention"], ops(m)["Add"]) == (0, 0)


# A key no farther than ``reach`` is seen: true everywhere as long as the sequence is short.
WINDOW = (
    "w = Shape<start=1,end=2>(q) n = Squeeze(w) r = Range(zero, n, step) c = Unsqueeze(r, row) b = Unsqueeze(r, at0) "
    "far = Sub(c, b) far2 = Abs(far) near = LessOrEqual(far2, reach) "
)


@pytest.mark.parametrize("reach", [2, 7, 64, 1000])
def test_local_attention_is_a_mask_at_any_reach(reach: int) -> None:
    text = f"({PARAMETERS}) => (float[batch,seq,8] y) {{ {HEADS} {WINDOW} a = Attention(qt, kt, vt, near) {TAIL} }}"
    m = graph(text, CONSTANTS | {"reach": np.array(reach)})
    assert "depends on 0 graph inputs" in unchanged(m, WriteOutAttention)[0]


@pytest.mark.parametrize("reach", [2, 7, 64, 1000])
def test_local_attention_with_padding_is_not_padding(reach: int) -> None:
    text = (
        f"({PARAMETERS}, int64[batch,seq] mask) => (float[batch,seq,8] y) "
        f"{{ {HEADS} {WINDOW.replace('(q)', '(mask)')} {BOOLEAN} both = And(keep, near) a = Attention(qt, kt, vt, both) {TAIL} }}"
    )
    m = graph(text, CONSTANTS | {"reach": np.array(reach)})
    found = PassManager([WriteOutAttention]).run(m)
    assert "it is not the padding mask of mask" in misses(found)[0]
    assert ops(m)["Attention"] == 1


def test_a_reach_too_long_to_try_is_not_taken_for_padding() -> None:
    text = (
        f"({PARAMETERS}, int64[batch,seq] mask) => (float[batch,seq,8] y) "
        f"{{ {HEADS} {WINDOW.replace('(q)', '(mask)')} {BOOLEAN} both = And(keep, near) a = Attention(qt, kt, vt, both) {TAIL} }}"
    )
    found = PassManager([WriteOutAttention]).run(graph(text, CONSTANTS | {"reach": np.array(100_000)}))
    assert "it is made with 100000, which may be the reach of a window" in misses(found)[0]


STAYS = {
    "causal": ("b2 = Unsqueeze(causal, axes0) a = Attention(qt, kt, vt, b2)", "depends on 0 graph inputs"),
    "is causal": ("a = Attention<is_causal=1>(qt, kt, vt)", "causal or has a softcap"),
    "softcap": ("a = Attention<softcap=3.0>(qt, kt, vt)", "causal or has a softcap"),
    "cache": ("a, pk, pv = Attention(qt, kt, vt, , kt, vt)", "cache"),
}


@pytest.mark.parametrize("form", STAYS)
def test_what_only_the_operator_says_stays(form: str) -> None:
    body, reason = STAYS[form]
    m = graph(
        f"({PARAMETERS}) => (float[batch,seq,8] y) {{ {HEADS} {CAUSAL.replace('(mask)', '(q)')} {body} {TAIL} }}",
        CONSTANTS | {"axes0": np.array([0, 1])},
    )
    found = PassManager([WriteOutAttention]).run(m)
    assert reason in misses(found)[0]
    assert ops(m)["Attention"] == 1


def test_grouped_heads_stay() -> None:
    m = graph(
        "(float[batch,seq,8] q, float[batch,seq,4] k, float[batch,seq,4] v) => (float[batch,seq,8] y) "
        "{ q4 = Reshape(q, heads) k4 = Reshape(k, one_head) v4 = Reshape(v, one_head) qt = Transpose<perm=[0,2,1,3]>(q4) "
        f"kt = Transpose<perm=[0,2,1,3]>(k4) vt = Transpose<perm=[0,2,1,3]>(v4) a = Attention(qt, kt, vt) {TAIL} }}",
        CONSTANTS | {"one_head": np.array([0, 0, 1, 4])},
    )
    assert unchanged(m, WriteOutAttention) == ["2 heads share 1 heads of keys"]


def test_one_query_stays() -> None:
    m = graph(
        "(float[batch,2,1,4] q, float[batch,2,seq,4] k, float[batch,2,seq,4] v) => (float[batch,2,1,4] y) "
        "{ y = Attention(q, k, v) }"
    )
    assert unchanged(m, WriteOutAttention) == []
