"""What is proven to pad computes the same of the caller's part when zeros are added; what meets its padding is refused."""

from __future__ import annotations

import json

import numpy as np
import onnx_ir as ir
import pytest

from infc.passes.base import PassManager, PassRecord
from infc.passes.cleanup.constant_folding import ConstantFolding
from infc.passes.graph import dims
from infc.passes.prove_padding import PADDED, ProvePadding
from infc.passes.quant import forms
from infc.passes.quant.plan import default_plan
from infc.passes.quant.quantise import quantise
from infc.passes.quant.statistics import Statistics, ValueStatistics
from infc.passes.rectangles import open_rectangles
from tests.passes.support import graph, misses, normal, ops, session

C = {
    "word": normal(10, 8),
    "place": normal(40, 8, seed=1),
    "w": normal(8, 8, seed=2),
    "g": normal(8, seed=3),
    "near": normal(8, 4, seed=5),
    "heads": np.array([0, 0, 2, 4]),
    "join": np.array([0, 0, 8]),
    "merged": np.array([-1, 8]),
    "axes": np.array([1, 2]),
    "zero": np.array([0]),
    "one": np.array([1]),
    "two": np.array([2]),
    "s0": np.array(0),
    "s1": np.array(1),
    "f0": np.float32(0),
    "low": np.float32(-3e38),
    "weak": np.float32(-5),
    "three": np.array(3),
    "seven": np.array(7),
    "back": np.array([-1]),
    "least": np.array([-100]),
    "bias": np.float32(0.5),
    "onef": np.float32(1),
}
HEAD = """
    x = Gather(word, ids)
    mb = Cast<to=9>(mask) keep = Unsqueeze(mb, axes)
    size = Shape<start=1, end=2>(ids) count = Squeeze(size) places = Range(s0, count, s1)
    row = Unsqueeze(places, zero) column = Unsqueeze(places, one) far = Sub(row, column)
    q4 = Reshape(x, heads) q = Transpose<perm=[0,2,1,3]>(q4)
"""
ATTEND = "a4 = Attention(q, q, q, m) at = Transpose<perm=[0,2,1,3]>(a4) y = Reshape(at, join)"
BIAS = "far7 = Mod(far, seven) b3 = Gather(near, far7) bt = Transpose<perm=[2,0,1]>(b3) bb = Slice(bt, zero, two, zero) bias4 = " \
       "Unsqueeze(bb, zero) "
OUT = "float[batch,seq,8] y"

PROVEN = {
    "bias and mask": (BIAS + "m = Where(keep, bias4, low) " + ATTEND, OUT),
    "bias plus mask": (BIAS + "hidden = Where(keep, f0, low) m = Add(bias4, hidden) " + ATTEND, OUT),
    "one minus mask": (BIAS + "mf = Cast<to=1>(mask) no = Sub(onef, mf) n4 = Unsqueeze(no, axes) m0 = Mul(n4, low) "
                       "m = Add(bias4, m0) " + ATTEND, OUT),
    "local attention": ("d = Abs(far) window = LessOrEqual(d, three) m = And(keep, window) " + ATTEND, OUT),
    "both sides masked": ("k = Unsqueeze(mask, axes) kt = Transpose<perm=[0,1,3,2]>(k) both = Mul(k, kt) bothb = Cast<to=9>(both) "
                          "no = Not(bothb) sc = MatMul(q, at0) m = Where(no, low, sc) " + ATTEND, OUT),
    "softmax written out": ("sc = MatMul(q, at0) hidden = Where(keep, f0, low) sm = Add(sc, hidden) p = Softmax<axis=-1>(sm) "
                            "a4 = MatMul(p, q) at = Transpose<perm=[0,2,1,3]>(a4) y = Reshape(at, join)", OUT),
    "positions": ("e = Gather(place, places) y = Add(x, e)", OUT),
    "counted positions": ("c = CumSum(mask, s1) e = Gather(place, c) y = Add(x, e)", OUT),
    "first": ("h = Gather<axis=1>(x, s0) y = MatMul(h, w)", "float[batch,8] y"),
    "masked mean": ("mf = Cast<to=1>(mask) mu = Unsqueeze(mf, back) z = Mul(x, mu) s = ReduceSum<keepdims=0>(z, one) "
                    "n = ReduceSum<keepdims=1>(mf, one) y = Div(s, n)", "float[batch,8] y"),
    "heads beside batch": ("dims3 = Concat<axis=0>(back, size, f4) v = Reshape(q, dims3) vw = Abs(v) s4 = Shape(q) "
                           "w4 = Reshape(vw, s4) y = Transpose<perm=[0,2,1,3]>(w4)", "float[batch,seq,2,4] y"),
}
REFUSED = {
    "no mask": ("m = Mul(far, s0) mf = Cast<to=1>(m) f4d = Unsqueeze(mf, axes01) a4 = Attention(q, q, q, f4d) "
                "at = Transpose<perm=[0,2,1,3]>(a4) y = Reshape(at, join)", OUT, "not known to hide padding"),
    "a mask too weak": ("m = Where(keep, f0, weak) " + ATTEND, OUT, "not known to hide padding"),
    "a mask of queries": ("kt = Transpose<perm=[0,1,3,2]>(keep) m = Where(kt, f0, low) " + ATTEND, OUT,
                          "not known to hide padding"),
    "the mask turned round": ("no = Not(keep) m = Where(no, f0, low) " + ATTEND, OUT, "not known to hide padding"),
    "the mask or the window": ("d = Abs(far) window = LessOrEqual(d, three) m = Or(keep, window) " + ATTEND, OUT,
                               "not known to hide padding"),
    "a plain mean": ("s = ReduceMean<keepdims=1>(x, one) y = Add(x, s)", OUT, "it reduces over seq"),
    "a maximum": ("s = ReduceMax<keepdims=1>(x, one) y = Add(x, s)", OUT, "it reduces over seq"),
    "a sum of what is not masked": ("s = ReduceSum<keepdims=1>(x, one) y = Add(x, s)", OUT, "it reduces over seq"),
    "over the batch": ("s = ReduceSum<keepdims=1>(x, zero) y = Add(x, s)", OUT, "it reduces over batch"),
    "the last position": ("h = Gather<axis=1>(x, back) y = Add(x, h)", OUT, "other than 0"),
    "turned round": ("y = Slice(x, back, least, one, back)", OUT, "are cut from -1"),
    "backwards": ("i = Add(ids, s1) c = CumSum<reverse=1>(i, s1) e = Unsqueeze(c, back) f = Cast<to=1>(e) "
                  "y = Add(x, f)", OUT, "sums backwards"),
    "a size": ("n = Cast<to=1>(count) y = Div(x, n)", OUT, "computes with a size"),
    "distances from the end": ("e = Sub(count, places) f = Gather(place, e) y = Add(x, f)", OUT, "computes with a size"),
    "softmax over positions": ("y = Softmax<axis=1>(x)", OUT, "it is along seq"),
    "a product of positions": ("xt = Transpose<perm=[0,2,1]>(x) g2 = MatMul(xt, x) y = MatMul(x, g2)", OUT, "adds along seq"),
    "batch and seq as one": ("y = Reshape(x, merged)", "float[rows,8] y", "it has the dimension"),
    "an operator of its own": ("y = LpNormalization<axis=1>(x)", OUT, "may mix positions"),
}


def model(body: str, out: str) -> ir.Model:
    """With the shapes of its values."""
    constants = {**C, "f4": np.array([4]), "axes01": np.array([0, 1])}
    extra = "at0 = Transpose<perm=[0,2,3,1]>(q4) " if "at0" in body else ""
    made = graph(f"(int64[batch,seq] ids, int64[batch,seq] mask) => ({out}) {{ {HEAD} {extra} {body} }}", constants)
    PassManager([ConstantFolding]).run(made)
    return made


def prove(body: str, out: str) -> tuple[ir.Model, list[PassRecord]]:
    made = model(body, out)
    return made, PassManager([ProvePadding]).run(made)


def larger(feed: dict[str, np.ndarray], batch: int, seq: int) -> dict[str, np.ndarray]:
    return {name: np.pad(x, [(0, batch - x.shape[0]), (0, seq - x.shape[1])]) for name, x in feed.items()}


def feed(batch: int, seq: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(batch * seq)
    mask = (np.arange(seq) < rng.integers(1, seq + 1, batch)[:, None]).astype(np.int64)
    return {"ids": rng.integers(1, 10, (batch, seq)), "mask": mask}


@pytest.mark.parametrize("name", PROVEN)
def test_what_is_proven_does_not_depend_on_zeros_that_are_added(name: str) -> None:
    made, records = prove(*PROVEN[name])
    assert json.loads(made.metadata_props[PADDED]) == ["batch", "seq"], misses(records)
    run = session(made)
    for sizes in ((1, 1), (2, 5), (3, 7)):
        small = feed(*sizes)
        (want,), (got,) = run.run(None, small), run.run(None, larger(small, 4, 9))
        got = got[tuple(slice(n) for n in want.shape)]
        real = small["mask"] != 0
        if want.shape[:2] == real.shape and want.ndim == 3 and "Attention" in ops(made):
            want, got = want[real], got[real]
        assert np.abs(want).max() > 1e-3
        np.testing.assert_allclose(got, want, atol=1e-6)


@pytest.mark.parametrize("precision", ["int8", "int8-static", "int4", "bf16"])
def test_what_quantisation_makes_of_it_is_proven_too(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(forms.WORTH, "matrix", (1, 1))
    made = model("a = MatMul(x, w) b = Relu(a) y = MatMul(b, w)", OUT)
    seen = {name: ValueStatistics(1, 0, -4.0, 4.0) for name in ("x", "b")}
    quantise(made, default_plan(made, precision, "rtn"), Statistics(seen))
    found = ops(made)
    assert found["QuantizeRows"] + found["QuantizeLinear"] + found["Cast"] > 0
    assert PassManager([ProvePadding]).run(made)
    assert json.loads(made.metadata_props[PADDED]) == ["batch", "seq"]
    small = feed(2, 5)
    want, got = (session(made).run(None, given)[0] for given in (small, larger(small, 4, 9)))
    np.testing.assert_array_equal(got[:2, :5], want)


def test_rows_along_positions_are_refused() -> None:
    made = model("xt = Transpose<perm=[0,2,1]>(x) a = Identity(xt) y = Transpose<perm=[0,2,1]>(a)", OUT)
    (identity,) = (n for n in made.graph if n.op_type == "Identity")
    x, y = identity.inputs[0], identity.outputs[0]
    rows = [ir.Value(name=n, type=ir.TensorType(t), shape=ir.Shape(s)) for n, t, s in (
        ("q8", ir.DataType.UINT8, x.shape), ("s8", ir.DataType.FLOAT, ["batch", 8, 1]), ("z8", ir.DataType.UINT8, ["batch", 8, 1]))]
    identity.prepend([ir.Node("infc", "QuantizeRows", [x], outputs=rows, name="rows")])
    identity.prepend([again := ir.Node("infc", "DequantizeRows", rows, name="again")])
    again.outputs[0].name, again.outputs[0].type, again.outputs[0].shape = "again", y.type, y.shape
    identity.replace_input_with(0, again.outputs[0])
    records = PassManager([ProvePadding]).run(made)
    assert PADDED not in made.metadata_props
    assert any("along batch or seq" in m for m in misses(records)), misses(records)


@pytest.mark.parametrize("name", REFUSED)
def test_what_meets_its_padding_is_refused(name: str) -> None:
    body, out, reason = REFUSED[name]
    made, records = prove(body, out)
    assert PADDED not in made.metadata_props
    assert any(reason in m for m in misses(records)), misses(records)


@pytest.mark.parametrize("inputs", ["int64[batch,seq] ids, int64[batch,other] more", "int64[n,n] ids, float[n,n] more",
                                    "int64[batch,seq] ids, float[seq] more", "int64[batch,seq] ids, float[other,seq,2] more"])
def test_inputs_that_name_no_single_rectangle(inputs: str) -> None:
    made = graph(f"({inputs}) => (float[a,b] y, float[c] z) {{ y = Cast<to=1>(ids) z = Abs(more) }}")
    PassManager([ProvePadding]).run(made)
    assert PADDED not in made.metadata_props


def test_a_graph_between_rectangles_is_the_graph() -> None:
    made, _ = prove(*PROVEN["first"])
    wanted = session(made)
    whole = model(*PROVEN["first"])
    shapes = [[dims(v) or () for v in side] for side in (whole.graph.inputs, whole.graph.outputs)]
    for value in (*whole.graph.inputs, *(v for n in whole.graph for v in n.outputs)):
        if value.shape is not None:
            value.shape = value.shape.evaluate({"batch": 4, "seq": 9})
    open_rectangles(whole.graph, *shapes, ["batch", "seq"])
    assert [dims(v) for v in whole.graph.inputs] == [("batch", "seq")] * 2
    assert [dims(v) for v in whole.graph.outputs] == [("batch", 8)]
    assert (ops(whole)["Grow"], ops(whole)["Crop"]) == (2, 1)
    for sizes in ((1, 1), (2, 5), (4, 9)):
        small = feed(*sizes)
        np.testing.assert_allclose(session(whole).run(None, small)[0], wanted.run(None, small)[0], atol=1e-6)
