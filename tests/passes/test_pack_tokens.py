from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from infc.passes.base import Pass
from infc.passes.cleanup.constant_folding import ConstantFolding
from infc.passes.cleanup.dead_code import DeadCode
from infc.passes.cleanup.identities import Identities
from infc.passes.cleanup.reshape_transpose import ReshapeTranspose
from infc.passes.fusion.fuse_attention import FuseAttention
from infc.passes.fusion.fuse_embedding_sum import FuseEmbeddingSum
from infc.passes.fusion.fuse_linear import FuseLinear
from infc.passes.fusion.fuse_segment_pool import FuseSegmentPool
from infc.passes.graph import dims
from infc.passes.pack_tokens import PACKED, PackTokens
from tests.passes.support import MASK, apply, feed, find, graph, misses, normal, ops, session

F = np.float32
PASSES: tuple[type[Pass], ...] = (
    ConstantFolding,
    Identities,
    FuseLinear,
    FuseAttention,
    ReshapeTranspose,
    FuseEmbeddingSum,
    FuseSegmentPool,
    DeadCode,
    PackTokens,
)
C = {
    "word": normal(10, 8),
    "place": normal(40, 8, seed=1),
    "w": normal(8, 8, seed=2),
    "g": normal(8, seed=3),
    "b": normal(8, seed=4),
    "row": normal(1, 1, 8),
    "heads": np.array([0, 0, 2, 4]),
    "join": np.array([0, 0, 8]),
    "axes": np.array([1, 2]),
    "axes0": np.array([0, 1]),
    "zero": np.array([0]),
    "one": np.array([1]),
    "two": np.array([2]),
    "three": np.array([3]),
    "last": np.array([-1]),
    "s0": np.array(0),
    "s1": np.array(1),
    "low": F(-1e9),
    "ids": np.arange(40)[None],
    "odd": np.arange(1, 41)[None],
    "half": np.array([4]),
    "halves": np.array([4, 4]),
    "perrow": normal(1, 7, 8),
    "table": normal(1, 40, 8, seed=9),
    "step": F(0.01),
    "point": np.array(0, np.int8),
    "seven": np.linspace(0.01, 0.02, 7, dtype=np.float32),
    "sevens": np.zeros(7, np.int8),
}
IN = "(int64[batch,seq] ids_in, int64[batch,seq] mask"
KEEP = "mb = Cast<to=9>(mask) keep = Unsqueeze(mb, axes) "
ATTEND = (
    "q = Reshape({x}, heads) qt = Transpose<perm=[0,2,1,3]>(q) kt = Transpose<perm=[0,2,3,1]>(q) sc = "
    "MatMul(qt, kt) sm = Where(keep, sc, low) "
    "so = Softmax<axis=-1>(sm) a4 = MatMul(so, qt) at = Transpose<perm=[0,2,1,3]>(a4) a = Reshape(at, join) "
)
HEAD = KEEP + "x = Gather(word, ids_in) " + ATTEND.format(x="x")


def model(tail: str, out: str = "float[batch,seq,8] y", head: str = HEAD, extra: str = "") -> ir.Model:
    return graph(f"{IN}{extra}) => ({out}) {{ {head} {tail} }}", C)


ROWS = {
    "unary": "y = Tanh(a)",
    "binary": "y = Mul(a, x)",
    "mish": "y = Mish(a)",
    "sum of three": "y = Sum(a, x, b)",
    "prelu": "y = PRelu(a, g)",
    "row constant": "y = Add(a, b)",
    "leading ones": "y = Add(row, a)",
    "quantised": "aq = QuantizeLinear(a, step, point) ad = DequantizeLinear(aq, step, point) y = MatMul(ad, w)",
    "norm": "y = LayerNormalization(a, g, b)",
    "positive axis": "y = LayerNormalization<axis=2>(a, g, b)",
    "rms": "y = RMSNormalization(a, g)",
    "softmax": "y = Softmax<axis=2>(a)",
    "linear": "y = MatMul(a, w)",
    "residual": "m = MatMul(a, w) y = Add(m, x)",
    "heads": "h = Reshape(a, heads) t = Transpose<perm=[0,1,3,2]>(h) f = Reshape(t, join) y = Neg(f)",
    "split": "u, v = Split<axis=-1>(a, halves) y = Concat<axis=2>(v, u)",
    "slice": "u = Slice(a, zero, half, two) y = Concat<axis=-1>(u, u)",
    "reduce": "r = ReduceMean<keepdims=1>(a, last) y = Sub(a, r)",
    "axes": "u = Unsqueeze(a, last) v = Tanh(u) y = Squeeze(v, three)",
    "gather features": "p = Gather<axis=2>(a, s1) u = Unsqueeze(p, last) y = Mul(a, u)",
    "where": "k = Greater(a, x) y = Where(k, a, x)",
    "mask as a factor": "m0 = Cast<to=1>(mask) m1 = Unsqueeze(m0, last) y = Mul(a, m1)",
    "second attention": (
        "r = Reshape(a, heads) rt = Transpose<perm=[0,2,1,3]>(r) kt2 = Transpose<perm=[0,2,3,1]>(r) sc2 = MatMul(rt, kt2) "
        "sm2 = Where(keep, sc2, low) so2 = Softmax<axis=-1>(sm2) b4 = MatMul(so2, rt) bt = Transpose<perm=[0,2,1,3]>(b4) "
        "y = Reshape(bt, join)"
    ),
}


@pytest.mark.parametrize("rows", ROWS)
def test_row_by_row(rows: str) -> None:
    m = model(ROWS[rows])
    records = apply(m, *PASSES, padded=["y"])
    assert misses(records) == []
    assert records[-1].matches == ["mask"]
    assert m.metadata_props[PACKED] == '{"tokens": ["batch", "seq"]}'
    assert ops(m)["PackTokens"] == ops(m)["UnpackRows"] == 1
    assert find(m, "PackTokens").attributes["keep_first"].value == 0
    packed = [v for n in m.graph for v in n.outputs if (dims(v) or ("",))[0] == "tokens"]
    assert len(packed) > 3
    assert all(None not in (dims(v) or (None,)) for n in m.graph for v in n.outputs)
    data = feed(m)
    y = session(m).run(["y"], data)[0]
    assert not y[MASK == 0].any(), "rows that are not computed are zero"


POSITIONS = {
    "slice of 0, 1, 2": "at0 = Shape<start=1,end=2>(mask) p = Slice(ids, zero, at0, one) e = Gather(place, p) x = Add(wo, e)",
    "slice of others": "at0 = Shape<start=1,end=2>(mask) p = Slice(odd, zero, at0, one) e = Gather(place, p) x = Add(wo, e)",
    "range": "at0 = Shape<start=1,end=2>(mask) n = Squeeze(at0) p = Range(s0, n, s1) e = Gather(place, p) x = Add(wo, e)",
    "range in a row": "at0 = Shape<start=1,end=2>(mask) n = Squeeze(at0) p = Range(s0, n, s1) pu = Unsqueeze(p, zero) e = "
    "Gather(place, pu) "
    "x = Add(wo, e)",
    "expanded": "sh = Shape(mask) at0 = Shape<start=1,end=2>(mask) p = Slice(ids, zero, at0, one) pe = Expand(p, sh) "
    "e = Gather(place, pe) "
    "x = Add(wo, e)",
    "table": "at0 = Shape<start=1,end=2>(mask) e = Slice(table, zero, at0, one) x = Add(wo, e)",
    "counted": "c = CumSum(mask, s1) k = Mul(c, mask) e = Gather(place, k) x = Add(wo, e)",
    "arithmetic": "at0 = Shape<start=1,end=2>(mask) p = Slice(ids, zero, at0, one) p2 = Add(p, two) e = Gather(place, "
    "p2) x = Add(wo, e)",
}


@pytest.mark.parametrize("position", POSITIONS)
def test_positions(position: str) -> None:
    m = model(f"wo = Gather(word, ids_in) {POSITIONS[position]} {ATTEND.format(x='x')} y = Tanh(a)", head=KEEP)
    assert misses(apply(m, *PASSES, padded=["y"])) == []
    assert ops(m)["PackTokens"] == 1
    if position in ("slice of 0, 1, 2", "range", "range in a row"):
        total = find(m, "EmbeddingSum")
        assert total.inputs[2] is find(m, "PackTokens").outputs[1], "positions are the column itself"


FIRST = {
    "gather": "y = Gather<axis=1>(a, s0)",
    "slice": "f = Slice(a, zero, one, one) y = Squeeze(f, one)",
    "gather, axis kept": "f = Gather<axis=1>(a, zero) y = Squeeze(f, one)",
}


@pytest.mark.parametrize("first", FIRST)
def test_first_position(first: str) -> None:
    """Which is computed even in the sequence of MASK that begins with padding."""
    m = model(FIRST[first], out="float[batch,8] y")
    assert misses(apply(m, *PASSES)) == []
    assert find(m, "PackTokens").attributes["keep_first"].value == 1
    assert find(m, "SegmentReduce").attributes["kind"].value == "first"
    assert ops(m)["UnpackRows"] == 0


POOL = (
    "mc = Cast<to=1>(mask) mu = Unsqueeze(mc, last) pr = Mul(a, mu) s = ReduceSum<keepdims=0>(pr, one) c "
    "= ReduceSum<keepdims=0>(mu, one) "
    "p = Div(s, c) y = Tanh(p)"
)


def test_pooling_and_first_position_of_one_graph() -> None:
    m = model(POOL + " z = Gather<axis=1>(a, s0)", out="float[batch,8] y, float[batch,8] z")
    apply(m, *PASSES)
    assert ops(m)["SegmentReduce"] == 2


def test_a_sum_over_the_mask_stays_outside() -> None:
    m = model(
        "n0 = ReduceSum<keepdims=1>(mask, one) n = Cast<to=1>(n0) f = Gather<axis=1>(a, s0) y = Div(f, n)", out="float[batch,8] y"
    )
    assert misses(apply(m, *PASSES)) == []
    assert ops(m)["ReduceSum"] == 1


def test_an_input_that_is_used_packed_and_whole() -> None:
    m = model("y = Tanh(a) z = Neg(mask)", out="float[batch,seq,8] y, int64[batch,seq] z")
    apply(m, *PASSES, padded=["y"])
    assert ops(m)["Neg"] == 1


REFUSED = {
    "mean over everything": ("y = ReduceMean<keepdims=0>(a, one)", "float[batch,8] y", "reduces over batch or seq"),
    "another position": ("y = Gather<axis=1>(a, s1)", "float[batch,8] y", "other than 0 are selected"),
    "last position": ("f = Slice(a, last, big, one) y = Squeeze(f, one)", "float[batch,8] y", "other than 0 are selected"),
    "transpose": ("y = Transpose<perm=[1,0,2]>(a)", "float[seq,batch,8] y", "moves batch or seq"),
    "softmax over seq": ("y = Softmax<axis=1>(a)", "float[batch,seq,8] y", "not over the last axis"),
    "quantised by position": (
        "aq = QuantizeLinear<axis=1>(a, seven, sevens) y = DequantizeLinear<axis=1>(aq, seven, sevens)",
        "float[batch,seq,8] y",
        "more than one scale",
    ),
    "running sum": ("y = CumSum(a, s1)", "float[batch,seq,8] y", "CumSum may mix the rows of"),
    "unmasked attention": (
        "q3 = Reshape(a, heads) q4 = Transpose<perm=[0,2,1,3]>(q3) y = Attention(q4, q4, q4)",
        "float[batch,2,seq,4] y",
        "moves batch or seq",
    ),
    "product of rows": ("t = Transpose<perm=[0,2,1]>(x) y = MatMul(a, t)", "float[batch,seq,seq] y", ""),
    "concat along seq": ("y = Concat<axis=1>(a, x)", "float[batch,n,8] y", "along batch or seq"),
    "after a constant of rows": ("u = Add(a, row) y = Softmax<axis=1>(u)", "float[batch,seq,8] y", "not over the last axis"),
    "per position constant": ("y = Add(a, perrow)", "float[batch,seq,8] y", "does not broadcast over rows"),
    "per sequence value": (
        "r = ReduceSum<keepdims=1>(mask, one) f = Cast<to=1>(r) u = Unsqueeze(f, last) y = Mul(a, u)",
        "float[batch,seq,8] y",
        "does not broadcast over rows",
    ),
    "flattened": ("y = Reshape(a, flat)", "float[m,8] y", "does not lead with batch and seq"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    tail, out, reason = REFUSED[case]
    m = graph(f"{IN}) => ({out}) {{ {HEAD} {tail} }}", C | {"big": np.array([1 << 62]), "flat": np.array([-1, 8])})
    given = set(m.graph.initializers)
    records = apply(m, *PASSES)
    assert records[-1].matches == []
    (found,) = records[-1].near_misses
    assert reason in found.reason, found
    assert "PackTokens" not in ops(m)
    assert ops(m)["PaddedAttention"] == 1
    assert all(v.uses() for name, v in m.graph.initializers.items() if name not in given)
    assert PACKED not in m.metadata_props
    assert all(v.uses() or v.is_graph_output() for n in m.graph for v in n.outputs)
    assert all(use.node.graph is m.graph for v in m.graph.inputs for use in v.uses()), "no use by a node that was given up"


def test_two_masks_are_refused() -> None:
    second = ROWS["second attention"].replace("keep", "keep2")
    m = model(f"nb = Cast<to=9>(mask2) keep2 = Unsqueeze(nb, axes) {second}", extra=", int64[batch,seq] mask2")
    assert "several masks: mask, mask2" in misses(apply(m, *PASSES))[0]


def test_static_shapes_are_refused() -> None:
    m = graph(f"(int64[3,7] ids_in, int64[3,7] mask) => (float[3,7,8] y) {{ {HEAD} y = Tanh(a) }}", C)
    assert "not two symbolic dimensions" in misses(apply(m, *PASSES))[-1]


def test_without_a_mask_there_is_nothing_to_pack() -> None:
    m = graph("(int64[batch,seq] ids_in) => (float[batch,seq,8] y) { x = Gather(word, ids_in) y = Tanh(x) }", C)
    records = apply(m, *PASSES)
    assert (records[-1].matches, records[-1].near_misses) == ([], [])
