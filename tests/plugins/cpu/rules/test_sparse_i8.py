"""Weights in int8 of which each four rows have two that count."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infc.plugins.cpu import pack_i8
from tests.plugins.cpu.graphs import parse
from tests.plugins.cpu.harness import compile_model
from tests.plugins.cpu.rules.test_quantized_linear import check, weight
from tests.plugins.cpu.test_graphs import draw


def two_in_four(k: int, n: int, seed: int = 0) -> dict[str, np.ndarray]:
    made, rng = weight(k, n, seed), np.random.default_rng(seed)
    order = rng.permuted(np.arange(4).reshape(1, 4, 1).repeat(k // 4, 0).repeat(n, 2), axis=1)
    return {**made, "w": made["w"] * (order < rng.integers(0, 3, (k // 4, 1, n))).reshape(k, n).astype(np.int8)}


@given(st.sampled_from([32, 64]), st.integers(1, 70), st.integers(0, 99))
@settings(max_examples=20, deadline=None)
def test_packing_is_where_the_kernel_looks(k: int, n: int, seed: int) -> None:
    w = two_in_four(k, n, seed)["w"]
    assert pack_i8.is_sparse(w)
    np.testing.assert_array_equal(pack_i8.undone(pack_i8.i8_k4n32(w), k, n), w)
    lines = pack_i8.sparse(w).reshape(-1, k // 32, 5, 32, 4)
    read = np.zeros((k, n), int)
    for i in range(k):
        for j in range(n):
            unit, step, half = lines[j // 32, i // 32, :, j % 32].astype(int), i % 32 // 8, i % 8 // 4 * 2
            for at in (half, half + 1):
                if unit[0, at] >> 2 * step & 3 == i % 4:
                    read[i, j] += unit[1 + step, at]
    np.testing.assert_array_equal(read, w)


@pytest.mark.parametrize("symmetric", [0, 1])
def test_they_are_stored_without_the_others(symmetric: int) -> None:
    outputs, zero = ("q, s0", "") if symmetric else ("q, s0, z", "z")
    model = parse(f"""g (float[7, 64] x) => (float[7, 70] y) {{
        {outputs} = infc.QuantizeRows<symmetric = {symmetric}>(x)   y = infc.QuantizedLinear(q, s0, {zero}, w, s)
    }}""", **two_in_four(64, 70))
    _, compiled = compile_model(model)
    assert any("stored without zeros" in note for note in compiled.notes)
    check(model, {"x": draw(7, 64)})


def test_others_are_not() -> None:
    model = parse("""g (float[7, 64] x) => (float[7, 70] y) {
        q, s0, z = infc.QuantizeRows(x)   y = infc.QuantizedLinear(q, s0, z, w, s)
    }""", **weight(64, 70))
    assert not compile_model(model)[1].notes
