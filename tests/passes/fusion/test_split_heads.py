"""Attention over batch and heads in one dimension is found."""

from __future__ import annotations

import numpy as np
import pytest

from infc.passes.cleanup.reshape_transpose import ReshapeTranspose
from infc.passes.fusion.fuse_attention import FuseAttention
from infc.passes.fusion.split_heads import SplitHeads
from tests.passes.support import apply, find, graph, ops, unchanged

CONSTANTS = {"size": np.float32(2), "flat": np.array([6, 7, 4]), "wide": np.array([3, 2, 7, 7]), "scores": np.array([6, 7, 7]),
             "back": np.array([3, 2, 7, 4]), "low": np.float32(-1e9)}
PARAMETERS = "float[3,2,7,4] q, float[3,2,7,4] k, float[3,2,7,4] v, float[6,7,7] near, int64[3,7] mask"
BODY = """qf = Reshape(q, flat) kf = Reshape(k, flat) vf = Reshape(v, flat) kt = Transpose<perm=[0,2,1]>(kf) ks = Div(kt, size)
          s = MatMul(qf, ks) b = Add(s, near) {} h = Reshape(b, wide) w = Softmax<axis=-1>(h) wf = Reshape(w, scores)
          yf = MatMul(wf, vf) y = Reshape(yf, back)"""


def test_a_bias_in_three_dimensions() -> None:
    m = graph(f"({PARAMETERS}) => (float[3,2,7,4] y) {{ {BODY.format('')} }}", CONSTANTS)
    apply(m, SplitHeads, ReshapeTranspose, FuseAttention)
    attention = find(m, "Attention")
    assert attention.inputs[0] is m.graph.inputs[0]
    assert attention.attributes["scale"].value == pytest.approx(0.5)
    assert not {"Softmax", "MatMul", "Add"} & set(ops(m))


def test_scores_read_elsewhere_stay() -> None:
    m = graph(f"({PARAMETERS}) => (float[3,2,7,4] y, float[6,7,7] b) {{ {BODY.format('')} }}", CONSTANTS)
    apply(m, SplitHeads, ReshapeTranspose, FuseAttention)
    assert ops(m)["Softmax"] == 1


def test_other_reshapes_do_not_move() -> None:
    m = graph("(float[3,2,7,4] q, float[6,4,7] k) => (float[6,7,7] y) { f = Reshape(q, flat) y = MatMul(f, k) }", CONSTANTS)
    assert unchanged(m, SplitHeads) == []
