"""GPTQ: products on correlated data change less than with rounding to nearest."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from infc.passes.quant.compensate import inverse_factor
from infc.passes.quant.gptq import gptq
from infc.passes.quant.numbers import INT4, INT8, UINT4, Kind, Stored, store
from infc.passes.sparsity.two_in_four import is_sparse, prune

Array = np.ndarray[Any, Any]


def correlated(k: int, rows: int = 500, seed: int = 0) -> Array:
    random = np.random.default_rng(seed)
    return (random.standard_normal((rows, k // 4)) @ random.standard_normal((k // 4, k))
            + 0.3 * random.standard_normal((rows, k))).astype(np.float32) * random.uniform(0.2, 3, k).astype(np.float32)


def loss(stored: Stored, weight: Array, x: Array) -> float:
    return float(((x @ (stored.restore() - weight)) ** 2).sum())


@pytest.mark.parametrize(("kind", "block"), [(INT8, 0), (INT4, 32), (UINT4, 32), (UINT4, 128)])
@pytest.mark.parametrize("act_order", [False, True])
def test_less_error_than_rounding_to_nearest(kind: Kind, block: int, act_order: bool) -> None:
    x, weight = correlated(256), np.random.default_rng(1).standard_normal((256, 40)).astype(np.float32)
    gram = x.T @ x
    plain = store(weight, kind, block, np.diagonal(gram))
    assert loss(gptq(weight, gram, kind, block, act_order), weight, x) < 0.7 * loss(plain, weight, x)


def test_without_correlation_it_is_rounding_to_nearest() -> None:
    weight = np.random.default_rng(2).standard_normal((64, 8)).astype(np.float32)
    done = gptq(weight, np.eye(64, dtype=np.float32), INT8)
    assert np.array_equal(done.data, store(weight, INT8).data)


@pytest.mark.parametrize("act_order", [False, True])
def test_zeros_of_sparse_weights_stay(act_order: bool) -> None:
    x = correlated(64)
    weight = prune(np.random.default_rng(3).standard_normal((64, 24)).astype(np.float32))
    restored = gptq(weight, x.T @ x, UINT4, 32, act_order).restore()
    assert is_sparse(restored)
    assert not restored[weight == 0].any()


def test_inputs_that_never_come_and_grams_that_are_singular() -> None:
    x = correlated(64, rows=10)
    x[:, 5] = 0
    weight = np.random.default_rng(4).standard_normal((64, 8)).astype(np.float32)
    done = gptq(weight, x.T @ x, INT8)
    assert np.isfinite(done.restore()).all()
    assert (np.abs(done.restore()[5] - weight[5]) <= done.scale[0] * 0.51).all()


def test_the_factor_is_that_of_the_inverse() -> None:
    gram = correlated(48).T @ correlated(48)
    factor = inverse_factor(gram, 1e-3).astype(np.float64)
    damped = gram.astype(np.float64) + 1e-3 * np.diagonal(gram).mean() * np.eye(48)
    np.testing.assert_allclose(factor.T @ factor @ damped, np.eye(48), atol=1e-3)
    assert not np.tril(factor, -1).any()
