from __future__ import annotations

import numpy as np
import pytest

from infc.passes.fusion.fuse_segment_pool import FuseSegmentPool
from tests.passes.support import apply, find, graph, ops, unchanged

F = np.float32
CONSTANTS = {
    "last": np.array([-1]),
    "one": np.array([1]),
    "zero": np.array([0]),
    "eps": F(1e-9),
    "shape": np.array([1, 1, 4]),
    "half": F(0.5),
    "high": F(3),
}
IN = "(float[batch,seq,4] x, int64[batch,seq] mask) => (float[batch,4] y"
WEIGHTS = {
    "column": "u = Unsqueeze(mask, last) m = Cast<to=1>(u)",
    "cast first": "u = Cast<to=1>(mask) m = Unsqueeze(u, last)",
    "expanded": "u = Cast<to=1>(mask) w = Unsqueeze(u, last) m = Expand(w, shape)",
}
SUMS = "p = Mul(x, m) s = ReduceSum<keepdims=0>(p, one) c = ReduceSum<keepdims=0>(m, one) "
TAILS = {
    "clip": ("d = Clip(c, eps) y = Div(s, d)", 1e-9),
    "max": ("d = Max(c, eps) y = Div(s, d)", 1e-9),
    "none": ("y = Div(s, c)", 0.0),
}


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("weights", WEIGHTS)
def test_mean(weights: str, tail: str) -> None:
    text, epsilon = TAILS[tail]
    model = graph(f"{IN}) {{ {WEIGHTS[weights]} {SUMS} {text} }}", CONSTANTS)
    apply(model, FuseSegmentPool)
    pool = find(model, "SegmentPool")
    assert ops(model) == {"SegmentPool": 1}
    assert pool.attributes["epsilon"].value == pytest.approx(epsilon)


MAXIMA = {
    "kept": "e = Equal(mask, zero) n = Not(e) k = Unsqueeze(n, last) w = Where(k, x, low)",
    "cast": "c = Cast<to=9>(mask) k = Unsqueeze(c, last) w = Where(k, x, low)",
    "filled": "u = Unsqueeze(mask, last) k = Equal(u, zero) w = Where(k, low, x)",
}


@pytest.mark.parametrize("weights", MAXIMA)
def test_maximum(weights: str) -> None:
    model = graph(f"{IN}) {{ {MAXIMA[weights]} y = ReduceMax<keepdims=0>(w, one) }}", CONSTANTS | {"low": F(-1e9)})
    apply(model, FuseSegmentPool)
    assert ops(model) == {"SegmentPool": 1}
    assert find(model, "SegmentPool").attributes["kind"].value == "max"


@pytest.mark.parametrize(
    ("text", "low", "reason"),
    [
        (MAXIMA["kept"], -1.0, None),
        (MAXIMA["kept"].replace("(k, x, low)", "(k, low, x)"), -1e9, "is not the padding mask"),
        (MAXIMA["filled"].replace("(k, low, x)", "(k, x, low)"), -1e9, "is not the padding mask"),
    ],
)
def test_other_maxima(text: str, low: float, reason: str | None) -> None:
    model = graph(f"{IN}) {{ {text} y = ReduceMax<keepdims=0>(w, one) }}", CONSTANTS | {"low": F(low)})
    found = unchanged(model, FuseSegmentPool)
    assert len(found) == (reason is not None)
    assert reason is None or reason in found[0]


GOOD = WEIGHTS["column"]
CASES = {
    "half weights": (GOOD.replace("m =", "h =") + " m = Mul(h, half) " + SUMS + TAILS["clip"][0], "is not the padding mask"),
    "inverted": (
        "e = Equal(mask, zero) u = Unsqueeze(e, last) m = Cast<to=1>(u) " + SUMS + TAILS["clip"][0],
        "is not the padding mask",
    ),
    "upper limit": (GOOD + " " + SUMS + "d = Clip(c, eps, high) y = Div(s, d)", None),
    "another count": (
        GOOD + " n = Neg(m) p = Mul(x, m) s = ReduceSum<keepdims=0>(p, one) c = ReduceSum<keepdims=0>(n, one) y = Div(s, c)",
        None,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_does_not_match(case: str) -> None:
    text, reason = CASES[case]
    found = unchanged(graph(f"{IN}) {{ {text} }}", CONSTANTS), FuseSegmentPool)
    assert len(found) == (reason is not None)
    assert reason is None or reason in found[0]


def test_a_sum_over_the_features_is_a_near_miss() -> None:
    text = f"(float[batch,seq,4] x, int64[batch,seq] mask) => (float[batch,seq] y) {{ {GOOD} {SUMS} {TAILS['clip'][0]} }}"
    model = graph(text.replace("(p, one)", "(p, last)").replace("(m, one)", "(m, last)"), CONSTANTS | {"eps": F(1.0)})
    assert unchanged(model, FuseSegmentPool) == ["the sum is not over axis 1 alone, or keeps it"]


def test_weights_from_floats_given_per_feature_do_not_match() -> None:
    model = graph(
        f"(float[batch,seq,4] x, float[batch,seq,4] m) => (float[batch,4] y) {{ {SUMS} {TAILS['clip'][0]} }}",
        CONSTANTS | {"eps": F(100)},
    )
    assert "is not [batch, seq]" in unchanged(model, FuseSegmentPool)[0]
