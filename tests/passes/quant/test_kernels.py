"""Kernels of convolutions that are rounded so that their sums stay; bias correction of grouped ones; residuals in bytes."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from infc.passes.fusion.fuse_residual import FuseResidual
from infc.passes.quant.kernels import keep_sums
from infc.passes.quant.numbers import KINDS, store
from tests.passes.quant.test_quantise import model, quantised
from tests.passes.support import apply, normal, ops


@given(st.integers(1, 4), st.integers(1, 25), st.integers(1, 9), st.integers(0, 99))
@settings(max_examples=50, deadline=None)
def test_sums_of_kernels_stay(channels: int, taps: int, n: int, seed: int) -> None:
    matrix = np.random.default_rng(seed).normal(size=(channels * taps, n)).astype(np.float32)
    plain = store(matrix, KINDS["int8"])
    kept = keep_sums(plain, matrix, taps)
    error = (kept.restore() - matrix) / plain.scale
    assert np.abs(kept.data.astype(int) - plain.data).max() <= 1
    assert np.abs(error).max() < 1.01
    full = (np.abs(plain.data) == 127).reshape(channels, taps, n).any(1)  # these may have had no room
    assert np.all(np.abs(error.reshape(channels, taps, n).sum(1))[~full] < 0.51)


def test_grouped_convolutions_keep_their_means() -> None:
    made = model("(float[batch,8,9,9] x) => (float[batch,8,9,9] y) { c = Conv<pads=[1,1,1,1], group=8>(x, w, b) y = Relu(c) }",
                 {"w": normal(8, 1, 3, 3), "b": normal(8)})
    made, records, change = quantised("int8-static", "bias", made=made)
    assert records[0].method == "rtn+bias"
    assert change < 0.02


def test_residuals_that_are_bytes_stay_bytes() -> None:
    made = model("(float[batch,8,9,9] x) => (float[batch,8,9,9] y) { a = Conv(x, w, b) r = Relu(a) c = Conv(r, v, b) s = Add(c, r) "
                 "y = Conv(s, w, b) }", {"w": normal(8, 8, 1, 1), "v": normal(8, 8, 1, 1, seed=1), "b": normal(8)})
    apply(made, FuseResidual)
    made, _, change = quantised("int8-static", made=made)
    assert ops(made) == {"QuantizeLinear": 1, "QuantizedConv": 3}
    assert sorted(len(node.inputs) for node in made.graph if node.op_type == "QuantizedConv") == [7, 10, 12]
    assert change < 0.05
