"""quantise: products get the form of their precision, within the error that it has, and the record says what was done."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir
import pytest

from infc.compiler.errors import UsageError
from infc.passes.base import PassManager
from infc.passes.domain import DOMAIN
from infc.passes.fusion.fuse_activation import FuseActivation
from infc.passes.fusion.fuse_conv import FuseConv
from infc.passes.fusion.fuse_linear import FuseLinear
from infc.passes.graph import add_constant, array, attribute, emit, producer, replace
from infc.passes.quant import products
from infc.passes.quant.forms import no_sparse
from infc.passes.quant.fuse_quantized import FuseQuantized
from infc.passes.quant.plan import Decision, LayerChoice, default_plan
from infc.passes.quant.quantise import quantise
from infc.passes.quant.statistics import Statistics
from tests.passes.quant.support import statistics_of
from tests.passes.support import Array, apply, feed, find, graph, normal, ops, session

FUSE = (FuseLinear, FuseConv, FuseActivation)
WEIGHTS = {"w": normal(64, 48), "b": normal(48), "u": normal(48, 64, seed=1)}
TEXT = "(float[batch,seq,64] x) => (float[batch,seq,64] z) { m = MatMul(x, w) l = Add(m, b) y = Relu(l) z = MatMul(y, u) }"


def model(text: str = TEXT, constants: dict[str, Array] | None = None) -> ir.Model:
    made = graph(text, constants or WEIGHTS)
    apply(made, *FUSE)
    return made


def run(graph: ir.Model) -> Array:
    found: Array = session(graph).run(None, feed(graph))[0]
    return found


def relative(a: Array, b: Array) -> float:
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


def quantised(precision: str, method: str = "rtn", target: str = "cpu", statistics: Statistics | None = None,
              made: ir.Model | None = None, **settings: object) -> tuple[ir.Model, list[Decision], float]:
    """The graph, its record, and by how much its result changed."""
    made = made or model()
    before = run(made)
    seen = statistics or statistics_of(made, gram=True)
    records = quantise(made, default_plan(made, precision, method, **settings), seen, target)
    change = relative(run(made), before)
    apply(made, *(() if target == "tensorrt" else (FuseQuantized,)), atol=2e-4)
    return made, records, change


@pytest.mark.parametrize(("precision", "least", "most", "counts"), [
    ("int8", 1e-4, 0.02, {"QuantizeRows": 2, "QuantizedLinear": 2}),
    ("int8-static", 1e-4, 0.03, {"QuantizeLinear": 1, "QuantizedLinear": 2}),
    ("int4", 1e-2, 0.15, {"QuantizeRows": 1, "QuantizedLinear": 1, "Linear": 1}),
    ("fp8", 1e-3, 0.05, {"Cast": 2, "QuantizedLinear": 2}),
    ("bf16", 1e-4, 0.01, {"Cast": 2, "QuantizedLinear": 2}),
    ("f16", 1e-6, 1e-3, {"QuantizedLinear": 2}),
])
def test_each_precision(precision: str, least: float, most: float, counts: dict[str, int]) -> None:
    made = model() if precision != "int4" else model(constants={**WEIGHTS, "u": normal(48, 64, seed=1)})
    plan = {} if precision != "int4" else {"group": 32}
    made, records, change = quantised(precision, made=made, **plan)
    assert least < change < most
    if precision == "int4":
        assert [r.actual for r in records] == ["int4", "int8"]
        assert "multiple of 32" in records[1].why
    else:
        assert {op: ops(made)[op] for op in counts} == counts
        assert [(r.requested, r.actual) for r in records] == [(precision, precision)] * 2
    assert "MatMul" not in ops(made)


def test_tensorrt_takes_its_own_forms() -> None:
    for precision, count in (("int8", 2), ("fp8", 2), ("int4", 1)):  # K = 48 is int8
        made, _, change = quantised(precision, target="tensorrt")
        assert ops(made)["QuantizeLinear"] == count
        assert change < 0.15
        if precision == "int8":
            assert all(find_dtype(n) == ir.DataType.INT8 for n in made.graph if n.op_type == "QuantizeLinear")
    assert quantised("bf16", target="tensorrt")[1][0].actual == "f32"


def find_dtype(node: ir.Node) -> ir.DataType | None:
    return node.outputs[0].dtype


def test_blocks_and_scales_that_f16_holds() -> None:
    made = graph("(float[n,256] x) => (float[n,32] y) { y = MatMul(x, w) }", {"w": normal(256, 32)})
    apply(made, *FUSE)
    records = quantise(made, default_plan(made, "int4", "rtn", group=64, symmetric=True), statistics_of(made))
    dq = producer(find(made, "Linear").inputs[1], "DequantizeLinear")
    assert dq is not None
    assert (attribute(dq, "axis"), attribute(dq, "block_size"), len(dq.inputs)) == (0, 64, 2)
    scale = array(dq.inputs[1])
    assert scale is not None
    assert scale.shape == (4, 32)
    assert np.array_equal(scale.astype(np.float16).astype(np.float32), scale)
    rows = next(n for n in made.graph if n.op_type == "QuantizeRows")
    assert (attribute(rows, "group"), attribute(rows, "symmetric")) == (64, 1)
    assert records[0].error is not None
    assert 1e-4 < records[0].error < 0.02


@pytest.mark.parametrize(("k", "group", "became", "why"), [
    (256, 64, 64, ""), (576, 128, 64, "groups of 64, as K = 576"), (96, 64, 32, "groups of 32, as K = 96"),
    (48, 32, 0, "K = 48 is not a multiple of 32"), (64, 64, 0, ""),  # the group is the row
])
def test_groups_of_bytes(k: int, group: int, became: int, why: str) -> None:
    made = graph(f"(float[n,{k}] x) => (float[n,32] y) {{ y = MatMul(x, w) }}", {"w": normal(k, 32)})
    apply(made, *FUSE)
    (record,) = quantise(made, default_plan(made, "int8", "rtn", group=group), statistics_of(made))
    rows = next(n for n in made.graph if n.op_type == "QuantizeRows")
    dq = producer(find(made, "Linear").inputs[1], "DequantizeLinear")
    assert dq is not None
    assert (attribute(rows, "group"), attribute(dq, "block_size", 0), record.actual) == (became, became, "int8")
    assert record.why == why


def test_language_models_have_groups_of_bytes() -> None:
    made = graph("(float[n,64] x) => (float[n,48] y) { p = MatMul(x, w) y = Neg(p) }", {"w": normal(64, 48)})
    apply(made, *FUSE)
    name = find(made, "Linear").name or ""
    assert default_plan(made, "int8")[name] == LayerChoice("int8", "smoothquant+gptq+bias")
    emit(made.graph[-1], "CachedAttention", [made.graph.inputs[0]], domain=DOMAIN, name="attention", like=[made.graph.inputs[0]])
    assert default_plan(made, "int8")[name] == LayerChoice("int8", "rtn", 64)
    assert default_plan(made, "int8", "gptq", group=32)[name] == LayerChoice("int8", "gptq", 32)
    assert default_plan(made, "int4")[name] == LayerChoice("int4", "awq+gptq")
    assert default_plan(made, "int8", sparse=True)[name] == LayerChoice("int8", "smoothquant+gptq+bias")
    (product,) = products.find(made)[0]
    assert no_sparse(product, LayerChoice("int8"), "cpu") == ""
    assert "in groups" in no_sparse(product, LayerChoice("int8", group=32), "cpu")


def test_float_weights_are_let_go() -> None:
    made = quantised("int8")[0]
    assert not {"w", "u"} & set(made.graph.initializers)


def test_readers_share_one_quantisation_and_one_weight() -> None:
    made = model("(float[n,64] x) => (float[n,48] y, float[n,48] z) { y = MatMul(x, w) z0 = MatMul(x, w) z = Neg(z0) }",
                 {"w": normal(64, 48)})
    quantised("int8", made=made)
    assert ops(made) == {"QuantizeRows": 1, "QuantizedLinear": 2, "Neg": 1}
    assert len(made.graph.initializers) == 2


def test_a_weight_that_is_looked_up_too_stays_for_that() -> None:
    made = model("(float[n,64] x, int64[n] i) => (float[n,48] y, float[n,48] e) { y = MatMul(x, w) e = Gather(w, i) }",
                 {"w": normal(64, 48)})
    quantised("int8", made=made)
    assert "w" in made.graph.initializers
    assert ops(made)["Gather"] == 1


def test_what_stays_float_says_why() -> None:
    made = model("(float[n,8] x, float[n,64] h, float[64,n] k) => (float[n,4] y, float[n,n] z, float[n,48] s) { y = MatMul(x, t) "
                 "z = MatMul(h, k) s = MatMul(h, w) }", {"t": normal(8, 4), "w": normal(64, 48)})
    plan = default_plan(made, "int8-static", "rtn")
    why = {r.node: (r.actual, r.why) for r in quantise(made, plan, None)}
    assert why["n_y"] == ("f32", "K = 8, N = 4 is too small to gain")
    assert why["n_z"] == ("f32", "it multiplies two activations")
    assert why["n_s"] == ("f32", "the range of h was not calibrated")


def test_f16_refuses_weights_beyond_it() -> None:
    made = model(constants={**WEIGHTS, "w": WEIGHTS["w"] * np.float32(1e5)})
    records = quantise(made, default_plan(made, "f16"))
    assert [r.actual for r in records] == ["f32", "f16"]
    assert "float16" in records[0].why


@pytest.mark.parametrize("precision", ["int8", "int4", "fp8", "bf16"])
def test_weights_that_are_not_finite_stay(precision: str) -> None:
    weight = WEIGHTS["w"].copy()
    weight[3, 4] = np.nan
    made = graph(TEXT, {**WEIGHTS, "w": weight})
    PassManager(FUSE).run(made)
    assert next(iter(quantise(made, default_plan(made, precision, "rtn")))).actual == "f32"


def test_a_plan_names_what_is_quantised() -> None:
    made = model()
    assert [r.actual for r in quantise(made, {"n_z": LayerChoice("int8")}, None)] == ["f32", "int8"]
    for wrong in ({"precision": "int3"}, {"method": "guess"}, {"method": "gptq+rtn"}, {"group": 17}):
        with pytest.raises(UsageError):
            LayerChoice(**wrong)  # type: ignore[arg-type]


def test_convolutions_have_static_activations() -> None:
    made = model("(float[batch,8,9,9] x) => (float[batch,16,9,9] y) { c = Conv<pads=[1,1,1,1]>(x, w, b) y = Relu(c) }",
                 {"w": normal(16, 8, 3, 3), "b": normal(16)})
    made, records, change = quantised("int8", made=made, method="bias")
    assert ops(made) == {"QuantizeLinear": 1, "QuantizedConv": 1}
    assert records[0].actual == "int8-static"
    assert change < 0.02
    conv = model("(float[batch,8,9,9] x) => (float[batch,16,7,7] y) { y = Conv(x, w) }", {"w": normal(16, 8, 3, 3)})
    assert quantise(conv, default_plan(conv, "int4", "rtn"), statistics_of(conv))[0].actual == "f32"


def test_gemm_keeps_its_transposed_weight() -> None:
    made = graph("(float[n,64] x) => (float[n,48] y) { y = Gemm<transB=1>(x, w, b) }", {"w": normal(48, 64), "b": normal(48)})
    before = run(made)
    quantise(made, default_plan(made, "int8", "bias"), statistics_of(made), "tensorrt")
    dq = producer(find(made, "Gemm").inputs[1], "DequantizeLinear")
    assert dq is not None
    assert attribute(dq, "axis") == 0
    assert relative(run(made), before) < 0.02


def test_bias_correction_takes_the_mean_off() -> None:
    made = model("(float[batch,seq,64] x) => (float[batch,seq,48] y) { y = MatMul(x, w) }", {"w": normal(64, 48)})
    inputs = {"x": np.random.default_rng(0).standard_normal((3, 7, 64)).astype(np.float32) + 3}
    before = session(made).run(None, inputs)[0]
    seen = statistics_of(made, data=inputs)
    moved = []
    for method in ("rtn", "bias"):
        copy = made.clone()
        records = quantise(copy, default_plan(copy, "int8", method), seen)
        linear = find(copy, "Linear")
        linear.replace_input_with(0, copy.graph.inputs[0])  # the weights alone
        moved.append(float(np.abs((session(copy).run(None, inputs)[0] - before).mean((0, 1))).max()))
    assert records[0].method == "rtn+bias"
    assert moved[1] < 0.01 * moved[0]


OUTLIERS = np.ones(64, np.float32)
OUTLIERS[[3, 40]] = 40
NORM = ("(float[batch,seq,64] x) => (float[batch,seq,48] y) { h = LayerNormalization<axis=-1>(x, gamma, beta) m = MatMul(h, w) "
        "y = Add(m, b) }")
NORM_WEIGHTS = {"gamma": OUTLIERS * (1 + normal(64) * np.float32(0.1)), "beta": normal(64, seed=5), "w": normal(64, 48),
                "b": normal(48)}


def test_smoothquant_goes_into_the_norm_and_pays() -> None:
    plain = quantised("int8-static", made=model(NORM, NORM_WEIGHTS))
    made, records, change = quantised("int8-static", "smoothquant", made=model(NORM, NORM_WEIGHTS))
    assert "Mul" not in ops(made)
    assert records[0].method == "smoothquant+rtn"
    assert change < 0.7 * plain[2]


@pytest.mark.parametrize("method", ["smoothquant", "awq"])
def test_scaling_alone_changes_nothing(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = model(NORM, NORM_WEIGHTS)
    before = run(made)
    monkeypatch.setattr("infc.passes.quant.write.Writer.write", lambda self, task: None)
    quantise(made, default_plan(made, "int8" if method == "smoothquant" else "int4", method), statistics_of(made))
    gamma = array(find(made, "LayerNormalization").inputs[1])
    assert gamma is not None
    assert not np.allclose(gamma, NORM_WEIGHTS["gamma"])
    np.testing.assert_allclose(run(made), before, rtol=2e-5, atol=2e-5 * np.abs(before).max())


def test_where_nothing_takes_the_scales_they_are_a_multiplication() -> None:
    text = NORM.replace("y)", "y, float[batch,seq,64] h)", 1).replace("48", "768")
    weights = {**NORM_WEIGHTS, "w": normal(64, 768), "b": normal(768)}
    made, records, change = quantised("int8-static", "smoothquant", made=model(text, weights))
    assert ops(made)["Mul"] == 1
    assert change < 0.02
    made, records, _ = quantised("int4", "awq", made=model(text, weights))
    assert "is an output" in records[0].why


def test_scales_go_through_gates_and_splits() -> None:
    made = graph("(float[batch,seq,64] x) => (float[batch,seq,48] y) { g = MatMul(x, wg) u = MatMul(x, wu) s = Sigmoid(g) "
                 "t = Mul(g, s) h = Mul(t, u) y = MatMul(h, w) }",
                 {"wg": normal(64, 96), "wu": normal(64, 96, seed=2) * np.repeat(OUTLIERS[:48], 2), "w": normal(96, 48)})
    apply(made, *FUSE)
    made, records, _ = quantised("int8-static", "smoothquant", made=made)
    assert records[-1].method == "smoothquant+rtn"
    assert ops(made)["Mul"] == 1


def test_scales_go_through_attention_to_the_values() -> None:
    text = ("(float[batch,seq,64] x, int64[batch,seq] mask) => (float[batch,seq,48] y) { p = MatMul(x, wq) "
            "q, k, v = Split<axis=-1>(p, sizes) i = Identity(q) y0 = MatMul(i, w) y = Add(y0, b) }")
    made = graph(text, {"wq": normal(64, 128), "sizes": np.array([64, 32, 32]), "w": normal(64, 48), "b": normal(48)})
    apply(made, *FUSE)
    identity = find(made, "Identity")
    k, v = (next(o for o in find(made, "Split").outputs if o.name == n) for n in "kv")
    attention = emit(identity, "PaddedAttention", [identity.inputs[0], k, v, made.graph.inputs[1]],
                     {"num_heads": 4, "kv_num_heads": 2, "scale": 0.25}, domain="infc", name="attention", like=identity.outputs)
    replace(identity.outputs[0], attention.outputs[0])
    weight = array(next(n for n in made.graph if n.op_type == "Linear").inputs[1])
    assert weight is not None
    weight = weight.copy()
    weight[:, 100] *= 30
    linear = next(n for n in made.graph if n.op_type == "Linear")
    linear.replace_input_with(1, add_constant(made.graph, "heavy", weight))
    made, records, change = quantised("int8-static", "smoothquant", made=made)
    assert records[-1].method == "smoothquant+rtn"
    assert "Mul" not in ops(made)
    assert change < 0.05


def test_awq_and_gptq_help_int4() -> None:
    random = np.random.default_rng(0)
    loud = np.where(random.random(64) < 0.1, 10.0, 1.0).astype(np.float32)
    inputs = {"x": (random.standard_normal((3, 40, 64)) * loud).astype(np.float32)}
    text = "(float[batch,40,64] x) => (float[batch,40,48] y) { h = RMSNormalization<axis=-1>(x, gamma) y = MatMul(h, w) }"
    made = model(text, {"gamma": np.ones(64, np.float32), "w": random.standard_normal((64, 48)).astype(np.float32)})
    before = session(made).run(None, inputs)[0]
    seen = statistics_of(made, data=inputs, gram=True)
    errors = {}
    for method in ("rtn", "awq", "gptq", "awq+gptq"):
        copy = made.clone()
        quantise(copy, default_plan(copy, "int4", method), seen, "tensorrt")
        errors[method] = relative(session(copy).run(None, inputs)[0], before)
    assert errors["awq"] < 0.95 * errors["rtn"]
    assert errors["gptq"] < 0.95 * errors["rtn"]
    assert errors["awq+gptq"] < errors["awq"]


def test_records_are_plain_data() -> None:
    record = quantised("int8", "bias")[1][0].record()
    assert record["node"] == "n_l"
    assert record["method"] == "rtn+bias"
    assert dataclasses.asdict(LayerChoice("int8"))["precision"] == "int8"


@pytest.mark.parametrize(("dq", "constants", "group"), [
    ("DequantizeLinear<axis=1>(w, ws)", {"w": np.arange(-32, 32, dtype=np.int8).repeat(48).reshape(64, 48),
                                         "ws": np.full(48, 0.01, np.float32)}, 0),
    ("DequantizeLinear<axis=0, block_size=32>(w, ws)", {"w": np.arange(-32, 32, dtype=np.int8).repeat(48).reshape(64, 48),
                                                        "ws": np.full((2, 48), 0.01, np.float32)}, 32),
])
def test_stored_weights_are_kept_and_activations_may_be_quantised(dq: str, constants: dict[str, Array], group: int) -> None:
    text = f"(float[batch,seq,64] x) => (float[batch,seq,48] y) {{ f = {dq} y = MatMul(x, f) }}"
    made = graph(text, constants)
    apply(made, *FUSE)
    records = quantise(made, default_plan(made, "f32"))
    assert (records[0].actual, "own numbers" in records[0].why) == ("int8", True)
    assert "QuantizeRows" not in ops(made)
    made, records, change = quantised("int8", made=made)
    rows = find(made, "QuantizeRows")
    assert (attribute(rows, "group"), attribute(rows, "symmetric")) == (group, int(group > 0))
    assert "w" in made.graph.initializers
    assert change < 0.02


def test_where_one_scale_would_lose_too_much_rows_have_their_own() -> None:
    """A row that is 300 times the others, which no scale of channels helps."""
    text = "(float[batch,seq,64] x) => (float[batch,seq,48] y) { y = MatMul(x, w) }"
    made, rows = model(text, {"w": normal(64, 48)}), normal(3, 200, 64)
    rows[0, 0] *= 300
    for target, method, actual, why in (("cpu", "smoothquant", "int8", "each row has its own"), ("cpu", "rtn", "int8-static", ""),
                                        ("tensorrt", "smoothquant", "f32", "loses"), ("tensorrt", "rtn", "int8", "")):
        precision = "int8-static" if target == "cpu" else "int8"
        (record,) = quantise(again := made.clone(), default_plan(again, precision, method),
                             statistics_of(again, data={"x": rows}), target)
        assert (record.actual, why in record.why) == (actual, True), (target, method, record)
    calm = statistics_of(made, data={"x": normal(3, 200, 64)})
    (record,) = quantise(again := made.clone(), default_plan(again, "int8-static", "smoothquant"), calm)
    assert record.actual == "int8-static"
