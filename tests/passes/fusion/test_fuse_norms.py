"""LayerNormalization, RMSNormalization, AddNorm and L2Normalize."""

from __future__ import annotations

import numpy as np
import pytest

from infc.passes.base import Pass
from infc.passes.fusion.fuse_add_norm import FuseAddNorm
from infc.passes.fusion.fuse_l2_normalize import FuseL2Normalize
from infc.passes.fusion.fuse_layer_norm import FuseLayerNorm
from infc.passes.fusion.fuse_rms_norm import FuseRmsNorm
from tests.passes.support import apply, find, graph, misses, normal, ops, unchanged

F = np.float32
X = "(float[batch,seq,8] x) => (float[batch,seq,8] y)"
CONSTANTS = {
    "last": np.array([-1]),
    "middle": np.array([1]),
    "two": F(2),
    "one": F(1),
    "eps": F(1e-3),
    "gamma": normal(8),
    "beta": normal(8, seed=1),
    "wide": normal(7, 8),
}
HEAD = "mean = ReduceMean(x, last) d = Sub(x, mean) "
LAYER = {
    "pow, div": HEAD
    + "s = Pow(d, two) v = ReduceMean(s, last) e = Add(v, eps) r = Sqrt(e) n = Div(d, r) g = Mul(n, gamma) y = Add(g, beta)",
    "mul, reciprocal": HEAD + "s = Mul(d, d) v = ReduceMean(s, last) e = Add(eps, v) r = Sqrt(e) i = Reciprocal(r) n = Mul(d, i) "
    "g = Mul(gamma, n) y = Add(beta, g)",
    "one over": HEAD
    + "s = Mul(d, d) v = ReduceMean(s, last) e = Add(v, eps) r = Sqrt(e) i = Div(one, r) n = Mul(i, d) g = Mul(n, gamma) "
    "y = Add(g, beta)",
    "tensorflow": HEAD + "s = Mul(d, d) v = ReduceMean(s, last) e = Add(v, eps) r = Sqrt(e) i = Reciprocal(r) f = Mul(i, gamma) "
    "p = Mul(x, f) q = Mul(mean, f) t = Sub(beta, q) y = Add(p, t)",
}
BARE = HEAD + "s = Mul(d, d) v = ReduceMean(s, last) e = Add(v, eps) r = Sqrt(e) "
RMS = {
    "reciprocal": "s = Pow(x, two) v = ReduceMean(s, last) e = Add(v, eps) r = Sqrt(e) i = Reciprocal(r) n = Mul(x, i) "
    "y = Mul(gamma, n)",
    "div": "s = Mul(x, x) v = ReduceMean(s, last) e = Add(v, eps) r = Sqrt(e) n = Div(x, r) y = Mul(n, gamma)",
}
BOTH: tuple[type[Pass], ...] = (FuseLayerNorm, FuseRmsNorm)


@pytest.mark.parametrize("form", LAYER)
def test_layer_norm(form: str) -> None:
    model = graph(f"{X} {{ {LAYER[form]} }}", CONSTANTS)
    apply(model, *BOTH)
    assert ops(model) == {"LayerNormalization": 1}
    norm = find(model, "LayerNormalization")
    assert [v.name for v in norm.inputs] == ["x", "gamma", "beta"]
    assert norm.attributes["epsilon"].value == pytest.approx(1e-3)


@pytest.mark.parametrize(
    ("tail", "inputs"), [("y = Div(d, r)", 2), ("n = Div(d, r) y = Mul(n, gamma)", 2), ("n = Div(d, r) y = Add(n, beta)", 3)]
)
def test_layer_norm_without_scale_or_shift(tail: str, inputs: int) -> None:
    model = graph(f"{X} {{ {BARE} {tail} }}", CONSTANTS)
    apply(model, *BOTH)
    assert ops(model) == {"LayerNormalization": 1}
    assert len(find(model, "LayerNormalization").inputs) == inputs


def test_what_is_not_a_row_of_the_last_axis_stays_outside() -> None:
    model = graph(f"{X} {{ {BARE} n = Div(d, r) y = Mul(n, wide) }}", CONSTANTS)
    apply(model, *BOTH)
    assert ops(model) == {"LayerNormalization": 1, "Mul": 1}


@pytest.mark.parametrize("form", RMS)
def test_rms_norm(form: str) -> None:
    model = graph(f"{X} {{ {RMS[form]} }}", CONSTANTS)
    apply(model, *BOTH)
    assert ops(model) == {"RMSNormalization": 1}


def test_rms_norm_leaves_a_shift_outside() -> None:
    model = graph(f"{X} {{ {RMS['div'].replace('y =', 'g =')} y = Add(g, beta) }}", CONSTANTS)
    apply(model, *BOTH)
    assert ops(model) == {"RMSNormalization": 1, "Add": 1}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (LAYER["pow, div"].replace("last", "middle"), "not over the last axis"),
        (RMS["div"].replace("last", "middle"), "not over the last axis"),
        (BARE + "y = Div(x, r)", "does not divide"),
        ("s = Mul(x, x) v = ReduceMean(s, last) e = Add(v, eps) r = Sqrt(e) z = Neg(x) y = Div(z, r)", "does not divide"),
    ],
)
def test_norms_near_misses(text: str, reason: str) -> None:
    assert any(reason in r for r in unchanged(graph(f"{X} {{ {text} }}", CONSTANTS), *BOTH))


def test_a_mean_over_another_axis_is_another_function() -> None:
    text = LAYER["pow, div"].replace("ReduceMean(x, last)", "ReduceMean(x, middle)")
    model = graph(f"{X} {{ {text} }}", CONSTANTS)
    assert any("not over the last axis" in r for r in unchanged(model, FuseLayerNorm))
    apply(model, FuseRmsNorm)  # of what is left after the subtraction
    assert ops(model) == {"ReduceMean": 1, "Sub": 1, "RMSNormalization": 1, "Add": 1}


def test_a_cube_is_no_square() -> None:
    unchanged(graph(f"{X} {{ {RMS['reciprocal']} }}", CONSTANTS | {"two": F(4)}), *BOTH)


@pytest.mark.parametrize("leaked", ["d", "r"])
def test_norm_with_an_inner_value_used_elsewhere(leaked: str) -> None:
    shape = "batch,seq,8" if leaked == "d" else "batch,seq,1"
    text = f"(float[batch,seq,8] x) => (float[batch,seq,8] y, float[{shape}] {leaked}) {{ {LAYER['pow, div']} }}"
    assert f"{leaked} is used elsewhere" in unchanged(graph(text, CONSTANTS), FuseLayerNorm)


S = "(float[batch,seq,8] x, float[batch,seq,8] z) => (float[batch,seq,8] y"


@pytest.mark.parametrize(
    "norm", ["LayerNormalization<epsilon=0.001>(s, gamma, beta)", "LayerNormalization(s, gamma)", "RMSNormalization(s, gamma)"]
)
@pytest.mark.parametrize("shared", [True, False])
def test_add_norm(norm: str, shared: bool) -> None:
    text = f"{S}{', float[batch,seq,8] t' if shared else ''}) {{ s = Add(x, z) {'t = Exp(s)' if shared else ''} y = {norm} }}"
    model = graph(text, CONSTANTS)
    apply(model, FuseAddNorm)
    assert len(find(model, "AddNorm").outputs) == (2 if shared else 1)
    assert ops(model)["Add"] == 0


def test_add_norm_whose_sum_is_an_output() -> None:
    model = graph(f"{S}, float[batch,seq,8] s) {{ s = Add(x, z) y = LayerNormalization(s, gamma, beta) }}", CONSTANTS)
    apply(model, FuseAddNorm)
    assert ops(model) == {"AddNorm": 1}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "(float[batch,seq,8] x, float[seq,8] z) => (float[batch,seq,8] y) "
            "{ s = Add(x, z) y = LayerNormalization(s, gamma, beta) }",
            "one shape",
        ),
        (f"{S}) {{ s = Add(x, z) y = LayerNormalization<axis=1>(s, wide, wide) }}", "last axis"),
    ],
)
def test_add_norm_near_misses(text: str, reason: str) -> None:
    assert reason in unchanged(graph(text, CONSTANTS), FuseAddNorm)[0]


N = "(float[batch,8] x) => (float[batch,8] y)"
NORMS = [
    "n = ReduceL2(x, last)",
    "s = Mul(x, x) q = ReduceSum(s, last) n = Sqrt(q)",
    "s = Pow(x, two) q = ReduceSum(s, last) n = Sqrt(q)",
    "q = ReduceSumSquare(x, last) n = Sqrt(q)",
]


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("limit", ["c = Clip(n, eps)", "c = Max(n, eps)", "c = Max(eps, n)", ""])
def test_l2_normalize(norm: str, limit: str) -> None:
    model = graph(f"{N} {{ {norm} {limit} y = Div(x, {'c' if limit else 'n'}) }}", CONSTANTS)
    apply(model, FuseL2Normalize)
    assert ops(model) == {"L2Normalize": 1}
    assert find(model, "L2Normalize").attributes["epsilon"].value == pytest.approx(1e-3 if limit else 0)


@pytest.mark.parametrize(
    "text",
    [
        "z = Neg(x) n = ReduceL2(z, last) c = Clip(n, eps) y = Div(x, c)",
        "n = ReduceL2(x, last) c = Clip(n, eps, one) y = Div(x, c)",
        "n = ReduceL1(x, last) c = Clip(n, eps) y = Div(x, c)",
        "n = ReduceL2(x, last) c = Clip(n, eps) y = Div(c, x)",
    ],
)
def test_l2_normalize_does_not_match(text: str) -> None:
    unchanged(graph(f"{N} {{ {text} }}", CONSTANTS), FuseL2Normalize)


def test_l2_normalize_over_another_axis_is_a_near_miss() -> None:
    model = graph(f"{X} {{ n = ReduceL2(x, middle) c = Clip(n, eps) y = Div(x, c) }}", CONSTANTS)
    assert misses(apply(model, FuseL2Normalize)) == ["the norm is not over the last axis, kept as 1"]
