from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

from infc.plugins.tensorrt import ops
from infc.plugins.tensorrt.legalise import Request, legalise
from infc.plugins.tensorrt.legalise.emulate import emulate
from tests.passes.support import normal
from tests.plugins.tensorrt.legalise.support import Array, build, compare, feed, graph, kinds, run

F16, F32 = ir.DataType.FLOAT16, ir.DataType.FLOAT
X = "(float[2, 8, 16] x) => (float[2, 8, 16] y)"
W = {"w": normal(16, 16), "b": normal(16)}
# Each is run in f16 and built in every type.
GRAPHS: dict[str, tuple[str, dict[str, Array]]] = {
    "linear": (f"{X} {{ a = MatMul(x, w) b1 = Add(a, b) y = Gelu(b1) }}", W),
    "norm": (f"{X} {{ y = LayerNormalization(x, w0, b) }}", {"w0": normal(16), "b": normal(16)}),
    "rms": (f"{X} {{ y = RMSNormalization(x, w0) }}", {"w0": normal(16)}),
    "softmax": (f"{X} {{ y = Softmax(x) }}", {}),
    "sums": ("(float[2, 8, 16] x) => (float[2, 16] y) { s = ReduceSum<keepdims = 0>(x, a) y = Div(s, n) }",
             {"a": np.array([1]), "n": np.float32(8)}),
    "resize": ("(float[1, 3, 8, 8] x) => (float[1, 3, 16, 16] y) { y = Resize<mode = \"linear\">(x, , s) }",
               {"s": np.array([1, 1, 2, 2], np.float32)}),
    "range": ("(float[8] x) => (float[8] y) { r = Range(a, e, d) y = Add(x, r) }",
              {"a": np.float32(0), "e": np.float32(8), "d": np.float32(1)}),
    "conv": ("(float[1, 8, 8, 8] x) => (float[1, 4, 8, 8] y) { c = Conv<pads = [1, 1, 1, 1]>(x, w, b) y = Relu(c) }",
             {"w": normal(4, 8, 3, 3) / 8, "b": normal(4)}),
    "not in bf16": (f"{X} {{ m = Mish(x) h = HardSwish(m) l = LpNormalization(h) s = Shrink<lambd = 0.1>(l) y = Celu(s) }}", {}),
    "mean variance": ("(float[2, 3, 4, 4] x) => (float[2, 3, 4, 4] y) { y = MeanVarianceNormalization(x) }", {}),
    "choose": ("(float[2, 8] x) => (float[2, 4] v, int64[2, 4] i) { v, i = TopK(x, k) }", {"k": np.array([4])}),
    "cast": ("(float[2, 8] x, int64[2, 8] ids) => (float[2, 8] y, float[2, 8] z) "
             "{ f = Cast<to = 1>(ids) y = Mul(f, x) g = Cast<to = 1>(y) z = Add(g, x) }", {}),
    "compare": ("(float[2, 8] x) => (float[2, 8] y) { g = Greater(x, c) y = Where(g, x, c) }", {"c": np.float32(0.25)}),
    "gather": ("(int64[2, 8] ids) => (float[2, 8, 16] y) { y = Gather(w, ids) }", {"w": normal(10, 16)}),
    "attention": ("(float[2, 4, 8, 16] q, float[2, 4, 8, 16] k, bool[2, 1, 8, 8] visible) => (float[2, 4, 8, 16] y) "
                  "{ y = Attention(q, k, k, visible) }", {}),
    "like": ("(float[4, 4] x) => (float[4, 4] y) { e = EyeLike(x) y = Add(e, x) }", {}),
    "integers": ("(int64[2, 8] x) => (int64[2, 8] y) { y = Mul(x, x) }", {}),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_f16_agrees_with_f32(name: str) -> None:
    text, constants = GRAPHS[name]
    compare(graph(text, constants), "f16", 4e-3)


@pytest.mark.parametrize("name", GRAPHS)
def test_bf16_agrees_with_f32_where_float32_stands_for_it(name: str) -> None:
    model = graph(*GRAPHS[name])
    narrow = legalise(model, Request("bf16", sms=(89,))).model
    feeds = feed(model)
    for wanted, got in zip(run(model, feeds), run(emulate(narrow), feeds), strict=True):
        assert got.dtype == wanted.dtype
        if wanted.dtype == np.float32:
            np.testing.assert_allclose(got, wanted, rtol=0, atol=3e-2 * max(1, np.abs(wanted).max()))


def test_emulation_rounds_as_bf16_does() -> None:
    model = graph("(float[64] x) => (float[64] y) { a = Neg(x) y = Add(a, c) }", {"c": np.float32(1 / 3)})
    narrow = legalise(model, Request("bf16", sms=(89,))).model
    x = feed(model)["x"]
    b = ml_dtypes.bfloat16
    expected = (-(x.astype(b)) + b(1 / 3)).astype(np.float32)
    np.testing.assert_array_equal(run(emulate(narrow), {"x": x})[0], expected)
    assert emulate(model) is model


def test_every_type_builds(tmp_path: Path) -> None:
    models = {(name, precision): legalise(graph(*GRAPHS[name]), Request(precision, sms=(89,))).model
              for name in GRAPHS for precision in ("f32", "f16", "bf16")}
    said = dict(zip(models, build(tmp_path, *models.values()), strict=True))
    assert {k: s for k, s in said.items() if s} == {}


def test_weights_are_narrow_and_keep_their_names() -> None:
    text, constants = GRAPHS["linear"]
    for precision, dtype in (("f16", F16), ("bf16", ir.DataType.BFLOAT16)):
        found = legalise(graph(text, constants), Request(precision, sms=(89,))).model.graph
        assert {n: found.initializers[n].dtype for n in W} == {"w": dtype, "b": dtype}
        assert sorted(found.initializers) == sorted(W)
        assert all(v.dtype == dtype for n in found if n.op_type != "Cast" for v in n.outputs)


def test_f32_changes_nothing() -> None:
    model = graph(*GRAPHS["linear"])
    assert kinds(legalise(model, Request(sms=(89,))).model) == kinds(model)


def test_integers_are_untouched() -> None:
    model = graph(*GRAPHS["integers"])
    assert kinds(legalise(model, Request("f16", sms=(89,))).model) == kinds(model)


def test_what_does_not_fit_is_clamped_and_said() -> None:
    constants = {"low": np.float32(np.finfo(np.float32).min), "never": np.float32(-np.inf), "zero": np.float32(0)}
    text = "(float[2, 8] x, bool[2, 8] c) => (float[2, 8] y) { m = Where(c, zero, low) n = Where(c, m, never) y = Max(x, n) }"
    found = compare(graph(text, constants), "f16", 4e-3)
    numbers = found.model.graph.initializers
    assert numbers["low"].const_value.numpy() == -65504  # type: ignore[union-attr]
    assert numbers["never"].const_value.numpy() == -np.inf  # type: ignore[union-attr]
    assert any("'low': 1 of 1 numbers" in note for note in found.notes)
    bf16 = legalise(graph(text, constants), Request("bf16", sms=(89,))).model.graph.initializers["low"].const_value
    assert bf16 is not None
    assert bf16.numpy() == ml_dtypes.finfo(ml_dtypes.bfloat16).min
    assert np.isfinite(bf16.numpy().astype(np.float32))


def test_an_epsilon_below_f16_keeps_its_node_in_f32() -> None:
    model = graph("(float[2, 8] x) => (float[2, 8] y) { a = Abs(x) e = Add(a, eps) y = Div(x, e) }", {"eps": np.float32(1e-12)})
    found = compare(model, "f16", 4e-3)
    types = {n.op_type: n.outputs[0].dtype for n in found.model.graph}
    assert types["Abs"] == F16
    assert types["Add"] == types["Div"] == F32
    assert any("stay in f32" in note and "Add, Div" in note for note in found.notes)


def test_a_norm_written_out_sums_its_squares_in_f32() -> None:
    text = ("(float[2, 512] x) => (float[2, 512] y) { c = Mul(x, big) s = Mul(c, c) m = ReduceMean(s, a) e = Add(m, eps) "
            "r = Sqrt(e) y = Div(c, r) }")
    model = graph(text, {"a": np.array([-1]), "eps": np.float32(1e-6), "big": np.float32(500)})  # squares are beyond 65504
    compare(model, "f16", 4e-3)


def test_angles_of_positions_stay_in_f32() -> None:
    text = ("(int64[1, 8] p) => (float[1, 8, 4] c, float[1, 8, 4] s) { f = Cast<to = 1>(p) u = Unsqueeze(f, last) "
            "t = MatMul(u, w) c = Cos(t) s = Sin(t) }")
    model = graph(text, {"last": np.array([2]), "w": normal(1, 4) * 1000})
    found = compare(model, "f16", 1e-5)
    assert kinds(found.model)["Cast"] == 1


def test_a_learned_sine_is_narrow() -> None:
    found = compare(graph(f"{X} {{ a = MatMul(x, w) y = Sin(a) }}", W), "f16", 4e-3)
    assert next(n for n in found.model.graph if n.op_type == "Sin").outputs[0].dtype == F16


def test_custom_operators_keep_their_types() -> None:
    model = graph("(float[2, 8] x) => (float[2, 8] y) { a = Neg(x) b = Abs(a) y = Neg(b) }")
    node = next(n for n in model.graph if n.op_type == "Abs")
    node.domain, node.op_type = ops.DOMAIN, ops.OPERATORS[0].name
    model.opset_imports[ops.DOMAIN] = 1
    found = legalise(model, Request("f16", sms=(89,))).model
    (custom,) = (n for n in found.graph if n.domain)
    assert [v.dtype for v in (*custom.inputs, *custom.outputs) if v is not None] == [F32, F32]
    assert [n.outputs[0].dtype for n in found.graph if n.op_type == "Neg"] == [F16, F16]


def test_casts_are_shared_and_cancel() -> None:
    found = compare(graph("(float[2, 8] x) => (float[2, 8] y) { a = Neg(x) b = Cast<to = 1>(a) c = Mul(x, b) y = Add(c, x) }"),
                    "f16", 4e-3)
    assert kinds(found.model)["Cast"] == 2  # the border's


def test_a_graph_of_mixed_types_is_left_as_it_is() -> None:
    model = graph("(float[2, 8] x) => (float[2, 8] y) { h = Cast<to = 10>(x) n = Neg(h) y = Cast<to = 1>(n) }")
    found = legalise(model, Request("f16", sms=(89,)))
    assert kinds(found.model) == kinds(model)
    assert "16-bit types of its own" in found.notes[0]


def test_float64_inside_becomes_float32() -> None:
    found = compare(graph("(float[2, 8] x) => (float[2, 8] y) { d = Cast<to = 11>(x) m = Mul(d, c) y = Cast<to = 1>(m) }",
                          {"c": np.float64(1.5)}), "f32", 1e-6)
    assert all(v.dtype == F32 for n in found.model.graph for v in n.outputs)
    assert "float64 became float32" in found.notes[0]


def test_an_output_that_is_read_inside_and_one_given_twice() -> None:
    model = graph("(float[2, 8] x) => (float[2, 8] y, float[2, 8] z) { y = Neg(x) z = Mul(y, x) }")
    compare(model, "f16", 4e-3)
