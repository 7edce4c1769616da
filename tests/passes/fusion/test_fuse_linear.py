from __future__ import annotations

import numpy as np
import pytest

from infc.passes.cleanup.dead_code import DeadCode
from infc.passes.fusion.fuse_activation import FuseActivation
from infc.passes.fusion.fuse_linear import FuseLinear
from infc.passes.fusion.fuse_residual import FuseResidual
from infc.passes.fusion.merge_qkv import MergeQkv
from infc.passes.graph import FUSED
from tests.passes.support import apply, find, graph, misses, normal, ops, unchanged

W, B = normal(8, 6), normal(6, seed=1)
X = "(float[batch,seq,8] x) => (float[batch,seq,6] y)"


@pytest.mark.parametrize("bias", [B, B.reshape(1, 6), B.reshape(1, 1, 6)])
@pytest.mark.parametrize("body", ["m = MatMul(x, w) y = Add(m, b)", "m = MatMul(x, w) y = Add(b, m)"])
def test_matmul_and_add(body: str, bias: np.ndarray) -> None:
    model = graph(f"{X} {{ {body} }}", {"w": W, "b": bias})
    apply(model, FuseLinear)
    linear = find(model, "Linear")
    assert ops(model).total() == 1
    assert linear.metadata_props[FUSED] == "n_m n_y"


def test_matmul_alone() -> None:
    model = graph(f"{X} {{ y = MatMul(x, w) }}", {"w": W})
    apply(model, FuseLinear)
    assert len(find(model, "Linear").inputs) == 2


def test_a_product_used_elsewhere_keeps_its_add() -> None:
    model = graph(
        "(float[batch,seq,8] x) => (float[batch,seq,6] y, float[batch,seq,6] z) { m = MatMul(x, w) y = Add(m, b) z = Exp(m) }",
        {"w": W, "b": B},
    )
    apply(model, FuseLinear)
    assert ops(model) == {"Linear": 1, "Add": 1, "Exp": 1}


@pytest.mark.parametrize("bias", [normal(1), normal(7, 6), normal(7, 1)])
def test_other_broadcasts_are_no_bias(bias: np.ndarray) -> None:
    model = graph(f"{X} {{ m = MatMul(x, w) y = Add(m, b) }}", {"w": W, "b": bias})
    apply(model, FuseLinear)
    assert ops(model) == {"Linear": 1, "Add": 1}
    assert len(find(model, "Linear").inputs) == 2


def test_products_of_variables_and_of_stacks_are_left() -> None:
    unchanged(graph("(float[batch,seq,8] x, float[8,6] w) => (float[batch,seq,6] y) { y = MatMul(x, w) }"), FuseLinear)
    unchanged(graph("(float[2,seq,8] x) => (float[2,seq,6] y) { y = MatMul(x, w) }", {"w": normal(2, 8, 6)}), FuseLinear)
    unchanged(graph("(float[8] x) => (float[6] y) { y = MatMul(x, w) }", {"w": W}), FuseLinear)


@pytest.mark.parametrize(
    "attributes", ["", "<alpha = 0.5>", "<beta = 0.25>", "<transB = 1>", "<alpha = 2.0, beta = -1.0, transB = 1>"]
)
@pytest.mark.parametrize("bias", [True, False])
def test_gemm(attributes: str, bias: bool) -> None:
    model = graph(
        f"(float[batch,8] x) => (float[batch,6] y) {{ y = Gemm{attributes}(x, w{', b' if bias else ''}) }}",
        {"w": W.T.copy() if "transB" in attributes else W, **({"b": B} if bias else {})},
    )
    apply(model, FuseLinear)
    find(model, "Linear")


def test_gemm_that_transposes_x_is_a_near_miss() -> None:
    model = graph("(float[8,batch] x) => (float[batch,6] y) { y = Gemm<transA=1>(x, w, b) }", {"w": W, "b": B})
    assert unchanged(model, FuseLinear) == ["Gemm transposes its first operand"]


@pytest.mark.parametrize(
    ("body", "activation"),
    [
        ("y = Relu(m)", "relu"),
        ("y = Tanh(m)", "tanh"),
        ("y = Sigmoid(m)", "sigmoid"),
        ("y = Gelu(m)", "gelu_erf"),
        ('y = Gelu<approximate="tanh">(m)', "gelu_tanh"),
        ("s = Sigmoid(m) y = Mul(s, m)", "silu"),
        ("t = Mul(m, q) s = Sigmoid(t) y = Mul(m, s)", "quick_gelu"),
    ],
)
def test_activation(body: str, activation: str) -> None:
    model = graph(f"{X} {{ p = MatMul(x, w) m = Add(p, b) {body} }}", {"w": W, "b": B, "q": np.float32(1.702)})
    apply(model, FuseLinear, FuseActivation)
    assert ops(model).total() == 1
    assert find(model, "Linear").attributes["activation"].value == activation


def test_activation_of_a_value_used_elsewhere() -> None:
    model = graph(
        "(float[batch,seq,8] x) => (float[batch,seq,6] y, float[batch,seq,6] z) { m = MatMul(x, w) y = Relu(m) z = Exp(m) }",
        {"w": W},
    )
    records = apply(model, FuseLinear, FuseActivation)
    assert "used before the activation" in misses(records)[0]
    assert ops(model)["Relu"] == 1


def test_second_activation_stays() -> None:
    model = graph(f"{X} {{ m = MatMul(x, w) a = Relu(m) y = Tanh(a) }}", {"w": W})
    records = apply(model, FuseLinear, FuseActivation)
    assert ops(model) == {"Linear": 1, "Tanh": 1}
    assert "an activation already" in misses(records)[0]


R = "(float[batch,seq,8] x, float[batch,seq,6] r) => (float[batch,seq,6] y)"


@pytest.mark.parametrize("add", ["y = Add(m, r)", "y = Add(r, m)"])
@pytest.mark.parametrize(
    "body", ["m = MatMul(x, w)", "p = MatMul(x, w) m = Add(p, b)", "p = MatMul(x, w) q = Add(p, b) m = Gelu(q)"]
)
def test_residual(body: str, add: str) -> None:
    model = graph(f"{R} {{ {body} {add} }}", {"w": W, "b": B})
    apply(model, FuseLinear, FuseActivation, FuseResidual)
    assert ops(model) == {"Linear": 1}
    assert find(model, "Linear").inputs[3].name == "r"


@pytest.mark.parametrize(
    ("residual", "reason"),
    [
        ("float[seq,6] r", "not known to be equal"),
        ("float[batch,1,6] r", "not known to be equal"),
        ("float[6] r", "not known to be equal"),
    ],
)
def test_a_broadcast_is_no_residual(residual: str, reason: str) -> None:
    model = graph(f"(float[batch,seq,8] x, {residual}) => (float[batch,seq,6] y) {{ m = MatMul(x, w) y = Add(m, r) }}", {"w": W})
    records = apply(model, FuseLinear, FuseResidual)
    assert reason in misses(records)[0]
    assert ops(model) == {"Linear": 1, "Add": 1}


def test_residual_onto_a_linear_that_is_used_elsewhere() -> None:
    model = graph(
        "(float[batch,seq,8] x, float[batch,seq,6] r) => (float[batch,seq,6] y, float[batch,seq,6] m) "
        "{ m = MatMul(x, w) y = Add(m, r) }",
        {"w": W},
    )
    assert "m is used elsewhere" in misses(apply(model, FuseLinear, FuseResidual))
    twice = graph(f"{X} {{ m = MatMul(x, w) y = Add(m, m) }}", {"w": W})
    apply(twice, FuseLinear, FuseResidual)
    assert ops(twice) == {"Linear": 1, "Add": 1}


def test_of_two_linears_one_takes_the_other() -> None:
    model = graph(f"{X} {{ a = MatMul(x, w) c = MatMul(x, v) y = Add(a, c) }}", {"w": W, "v": normal(8, 6, seed=3)})
    apply(model, FuseLinear, FuseResidual)
    assert ops(model) == {"Linear": 2}


def test_one_linear_takes_one_residual() -> None:
    model = graph(
        "(float[batch,seq,8] x, float[batch,seq,6] r, float[batch,seq,6] t) => (float[batch,seq,6] y) "
        "{ m = MatMul(x, w) a = Add(m, r) y = Add(a, t) }",
        {"w": W},
    )
    records = apply(model, FuseLinear, FuseResidual)
    assert ops(model) == {"Linear": 1, "Add": 1}
    assert "has a residual already" in misses(records)[0]


QKV = (
    "(float[batch,seq,8] x) => (float[batch,seq,6] q, float[batch,seq,4] k, float[batch,seq,6] v) "
    "{ a = MatMul(x, wq) q = Add(a, bq) b = MatMul(x, wk) k = Add(b, bk) v = MatMul(x, wv) }"
)
QKV_WEIGHTS = {"wq": W, "bq": B, "wk": normal(8, 4), "bk": normal(4), "wv": normal(8, 6, seed=9)}


def test_merge_siblings_one_without_bias() -> None:
    model = graph(QKV, QKV_WEIGHTS)
    apply(model, FuseLinear, MergeQkv, DeadCode)
    assert ops(model) == {"Linear": 1, "Split": 1}
    merged = find(model, "Linear")
    assert merged.inputs[1].shape == [8, 16]
    np.testing.assert_array_equal(merged.inputs[2].const_value.numpy(), [*B, *QKV_WEIGHTS["bk"], *np.zeros(6)])
    assert merged.metadata_props[FUSED] == "n_a n_q n_b n_k n_v"


def test_siblings_with_activation_or_residual_or_another_input_stay() -> None:
    model = graph(
        "(float[batch,seq,8] x, float[batch,seq,8] z) => (float[batch,seq,6] p, float[batch,seq,6] q, float[batch,seq,6] r) "
        "{ a = MatMul(x, w) p = Relu(a) q = MatMul(x, w) b = MatMul(z, w) r = Neg(b) }",
        {"w": W},
    )
    apply(model, FuseLinear, FuseActivation, MergeQkv)
    assert ops(model) == {"Linear": 3, "Neg": 1}
