from __future__ import annotations

import math

import numpy as np
import pytest

from infc.passes import elementwise
from infc.passes.fusion.fuse_gelu import FuseGelu
from tests.passes.support import apply, find, graph, ops, unchanged

X = "(float[batch,seq,8] x) => (float[batch,seq,8] y)"
F = np.float32
CONSTANTS = {
    "half": F(0.5),
    "one": F(1),
    "root2": F(math.sqrt(2)),
    "inv_root2": F(1 / math.sqrt(2)),
    "c": F(0.044715),
    "k": F(math.sqrt(2 / math.pi)),
    "three": F(3),
    "two": F(2),
}
ERF = {
    "torch": "d = Div(x, root2) e = Erf(d) a = Add(e, one) m = Mul(x, a) y = Mul(m, half)",
    "half first": "h = Mul(half, x) d = Mul(x, inv_root2) e = Erf(d) a = Add(one, e) y = Mul(h, a)",
    "half last": "d = Mul(inv_root2, x) e = Erf(d) a = Add(e, one) h = Mul(a, half) y = Mul(x, h)",
    "divided by two": "d = Div(x, root2) e = Erf(d) a = Add(e, one) m = Mul(x, a) y = Div(m, two)",
    "halves inside": "d = Div(x, root2) e = Erf(d) h = Mul(e, half) a = Add(h, half) y = Mul(a, x)",
}
TANH = {
    "pow": "p = Pow(x, three) q = Mul(p, c) s = Add(x, q) t = Mul(s, k) u = Tanh(t) a = Add(u, one) h = Mul(x, half) y = Mul(h, a)",
    "products": "p = Mul(x, x) r = Mul(p, x) q = Mul(c, r) s = Add(q, x) t = Mul(k, s) u = Tanh(t) a = Add(one, u) h "
    "= Mul(half, a) y = Mul(x, h)",
    "factored": "p = Mul(x, x) q = Mul(p, c) r = Add(q, one) s = Mul(x, r) t = Mul(s, k) u = Tanh(t) a = Add(u, one) "
    "m = Mul(x, a) y = Mul(m, half)",
}


@pytest.mark.parametrize("form", [k for k in ERF if k != "divided by two"])
def test_erf(form: str) -> None:
    model = graph(f"{X} {{ {ERF[form]} }}", CONSTANTS)
    apply(model, FuseGelu)
    assert ops(model) == {"Gelu": 1}
    assert find(model, "Gelu").attributes["approximate"].value == "none"


@pytest.mark.parametrize("form", TANH)
def test_tanh(form: str) -> None:
    model = graph(f"{X} {{ {TANH[form]} }}", CONSTANTS)
    apply(model, FuseGelu)
    assert ops(model) == {"Gelu": 1}
    assert find(model, "Gelu").attributes["approximate"].value == "tanh"


@pytest.mark.parametrize("form", [*(ERF[k] for k in ERF if k != "divided by two"), *TANH.values()])
def test_constants_of_sixteen_bits(form: str) -> None:
    model = graph(f"{X.replace('float[', 'float16[')} {{ {form} }}", {k: v.astype(np.float16) for k, v in CONSTANTS.items()})
    apply(model, FuseGelu, atol=2e-2)
    assert ops(model) == {"Gelu": 1}
    assert find(model, "Gelu").attributes["approximate"].value == ("none" if "Erf" in form else "tanh")


def test_the_argument_may_be_a_product_itself() -> None:
    model = graph(f"{X} {{ z = Mul(x, three) {ERF['torch'].replace('(x,', '(z,')} }}", CONSTANTS)
    apply(model, FuseGelu)
    assert ops(model) == {"Mul": 1, "Gelu": 1}


@pytest.mark.parametrize(("constant", "value"), [("half", 0.4), ("one", 1.1), ("root2", 1.4), ("root2", 1.0)])
def test_a_wrong_constant_does_not_match(constant: str, value: float) -> None:
    model = graph(f"{X} {{ {ERF['torch']} }}", CONSTANTS | {constant: F(value)})
    assert "none of gelu_erf" in unchanged(model, FuseGelu)[0]


@pytest.mark.parametrize(("constant", "value"), [("c", 0.04), ("k", 0.8), ("three", 2.0)])
def test_a_wrong_constant_of_the_tanh_form(constant: str, value: float) -> None:
    model = graph(f"{X} {{ {TANH['pow']} }}", CONSTANTS | {constant: F(value)})
    assert "none of gelu_tanh" in unchanged(model, FuseGelu)[0]


def test_two_arguments_do_not_match() -> None:
    model = graph(
        "(float[batch,seq,8] x, float[batch,seq,8] z) => (float[batch,seq,8] y) "
        "{ d = Div(x, root2) e = Erf(d) a = Add(e, one) m = Mul(z, a) y = Mul(m, half) }",
        CONSTANTS,
    )
    unchanged(model, FuseGelu)


def test_an_inner_value_used_elsewhere_is_a_near_miss() -> None:
    model = graph(f"(float[batch,seq,8] x) => (float[batch,seq,8] y, float[batch,seq,8] e) {{ {ERF['torch']} }}", CONSTANTS)
    assert unchanged(model, FuseGelu) == ["e is used elsewhere"]


def test_a_row_of_constants_does_not_match() -> None:
    model = graph(f"{X} {{ {ERF['torch']} }}", CONSTANTS | {"half": np.full(8, 0.5, F)})
    unchanged(model, FuseGelu)


def test_a_long_chain_is_not_walked_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    chain = " ".join(f"v{i + 1} = Tanh(v{i})" for i in range(400))
    seen: list[int] = []
    is_op = elementwise.is_op
    monkeypatch.setattr(elementwise, "is_op", lambda *args: seen.append(1) or is_op(*args))
    FuseGelu().run(graph(f"(float[4] v0) => (float[4] v400) {{ {chain} }}"))
    assert 0 < len(seen) < 400 * 50
