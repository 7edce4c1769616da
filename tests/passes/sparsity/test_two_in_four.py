"""2:4: two zeros in any four along K, the least costly ones; records say what became of each product."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from infc.compiler.errors import UsageError
from infc.passes.fusion.fuse_conv import FuseConv
from infc.passes.fusion.fuse_linear import FuseLinear
from infc.passes.graph import array
from infc.passes.quant.plan import default_plan
from infc.passes.quant.quantise import quantise
from infc.passes.sparsity.sparsify import sparsify
from infc.passes.sparsity.two_in_four import is_sparse, keep, prune, sparsegpt
from tests.passes.quant.support import statistics_of
from tests.passes.quant.test_gptq import correlated
from tests.passes.support import apply, find, graph, normal

Array = np.ndarray[Any, Any]


@settings(max_examples=50)
@given(arrays(np.float32, st.tuples(st.sampled_from([4, 8, 12]), st.integers(1, 4)), elements=st.floats(-9, 9, width=32)))
def test_the_two_largest_of_four_stay(weight: Array) -> None:
    pruned = prune(weight)
    assert is_sparse(pruned)
    mask = keep(np.abs(weight))
    assert (mask.reshape(-1, 4, weight.shape[1]).sum(1) == 2).all()
    groups = np.sort(np.abs(weight).reshape(-1, 4, weight.shape[1]), axis=1)
    np.testing.assert_allclose(np.abs(pruned).reshape(groups.shape).sum(1), groups[:, 2:].sum(1), rtol=1e-6)
    assert np.array_equal(prune(pruned), pruned)


def test_each_method_changes_products_less_than_the_one_before() -> None:
    x, weight = correlated(128), np.random.default_rng(1).standard_normal((128, 32)).astype(np.float32)
    norms = np.linalg.norm(x, axis=0)
    losses = [float(((x @ (w - weight)) ** 2).sum()) for w in (prune(weight), prune(weight, norms), sparsegpt(weight, x.T @ x))]
    assert losses[2] < 0.7 * losses[1] < 0.7 * losses[0]
    assert is_sparse(sparsegpt(weight, x.T @ x))


TEXT = "(float[batch,seq,32] x) => (float[batch,seq,6] z, float[batch,seq,5] v) { m = MatMul(x, w) y = Add(m, b) " \
       "z = MatMul(y, u) v = MatMul(y, t) }"


@pytest.mark.parametrize("method", ["magnitude", "wanda", "sparsegpt"])
def test_records_and_weights(method: str) -> None:
    model = graph(TEXT, {"w": normal(32, 18), "b": normal(18), "u": normal(18, 6), "t": normal(18, 5)})
    apply(model, FuseLinear)
    records = {r.node: r for r in sparsify(model, method, statistics_of(model, gram=True), {"n_y", "n_z"})}
    assert [(r.actual, r.method) for r in records.values()] == [("2:4", method), ("dense", ""), ("dense", "")]
    assert "multiple of 4" in records["n_z"].why
    error = records["n_y"].error
    assert error is not None
    assert 0 < error < 0.5
    data = array(next(n for n in model.graph if n.name == "n_y").inputs[1])
    assert data is not None
    assert is_sparse(data)
    assert [r.found for r in sparsify(model)] == [True, False, False]


def test_without_statistics_it_goes_by_magnitude_and_says_so() -> None:
    model = graph(TEXT, {"w": normal(32, 18), "b": normal(18), "u": normal(18, 6), "t": normal(18, 5)})
    apply(model, FuseLinear)
    record = sparsify(model, "sparsegpt")[0]
    assert (record.method, "statistics" in record.why) == ("magnitude", True)
    with pytest.raises(UsageError, match="no method"):
        sparsify(model, "random")


def test_channels_of_convolutions() -> None:
    model = graph("(float[batch,8,5,5] x) => (float[batch,6,3,3] y) { y = Conv(x, w) }", {"w": normal(6, 8, 3, 3)})
    apply(model, FuseConv)
    assert sparsify(model, "wanda", statistics_of(model))[0].method == "wanda"
    data = array(find(model, "Conv").inputs[1])
    assert data is not None
    assert (np.count_nonzero(data.reshape(6, 2, 4, 9), axis=2) == 2).all()


@pytest.mark.parametrize("precision", ["int8", "int4", "bf16"])
def test_quantised_afterwards_it_is_still_sparse(precision: str) -> None:
    model = graph("(float[batch,seq,64] x) => (float[batch,seq,32] y) { y = MatMul(x, w) }", {"w": normal(64, 32)})
    apply(model, FuseLinear)
    seen = statistics_of(model, gram=True)
    sparsify(model, "sparsegpt", seen)
    plan = default_plan(model, precision, "gptq" if precision != "bf16" else "rtn")
    assert [d.actual for d in quantise(model, plan, seen)] == [precision]
    weight = find(model, "Linear").inputs[1]
    assert weight is not None
    node = weight.producer()
    assert node is not None
    stored, zero = array(node.inputs[0]), array(node.inputs[2]) if len(node.inputs) > 2 else None
    assert stored is not None
    whole = stored.astype(np.float32) - (0 if zero is None else np.repeat(zero.astype(np.float32), 32, axis=0))
    assert is_sparse(whole)
