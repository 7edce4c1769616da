from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hn

from infc.compiler.errors import UnsupportedError, UsageError
from infc.plugins.tensorrt.legalise import Request, SparseWeight, legalise
from infc.plugins.tensorrt.legalise.sparsity import holds
from tests.passes.support import normal
from tests.plugins.tensorrt.legalise.support import graph

Array = np.ndarray[Any, Any]


def prune(data: Array, axis: int) -> Array:
    """The two smallest of each four along the axis become zero."""
    groups = np.moveaxis(data, axis, -1).copy()
    flat = groups.reshape(-1, 4)
    np.put_along_axis(flat, np.argsort(np.abs(flat), axis=1)[:, :2], 0, axis=1)
    return np.ascontiguousarray(np.moveaxis(groups, -1, axis))


def weights(text: str, constants: dict[str, Array], precision: str = "f16", **options: Any) -> list[SparseWeight]:
    return legalise(graph(text, constants), Request(precision, sms=(89,), sparsity="2:4", **options)).weights


@given(hn.arrays(np.int8, hn.array_shapes(min_dims=2, max_dims=4, max_side=8), elements=st.integers(-1, 1)), st.data())
def test_the_pattern_is_that_of_a_scalar_loop(data: Array, draw: st.DataObject) -> None:
    axis = draw.draw(st.integers(0, data.ndim - 1))
    moved = np.moveaxis(data, axis, -1)
    expected = moved.shape[-1] % 4 == 0
    for index in np.ndindex(moved.shape[:-1]):
        row = moved[index].tolist()
        for i in range(0, len(row) // 4 * 4, 4):
            expected &= sum(x != 0 for x in row[i : i + 4]) <= 2
    assert holds(data, axis) == expected
    if data.shape[axis] % 4 == 0:
        assert holds(prune(data, axis), axis)


MATMUL = "(float[4, 32] x) => (float[4, 64] y) { y = MatMul(x, w) }"
GEMM = "(float[4, 32] x) => (float[4, 64] y) { y = Gemm<transB = 1>(x, w) }"
CONV = "(float[1, 16, 8, 8] x) => (float[1, 8, 6, 6] y) { y = Conv(x, w) }"
TURNED = "(float[4, 32] x) => (float[4, 64] y) { t = Transpose<perm = [1, 0]>(w) y = MatMul(x, t) }"


@pytest.mark.parametrize(("text", "shape", "axis"), [(MATMUL, (32, 64), 0), (GEMM, (64, 32), 1), (CONV, (8, 16, 3, 3), 1),
                                                     (TURNED, (64, 32), 1)])
def test_k_is_found(text: str, shape: tuple[int, ...], axis: int) -> None:
    (found,) = weights(text, {"w": prune(normal(*shape), axis)})
    assert (found.name, found.node, found.axis, found.state) == ("w", "n_y", axis, "eligible")
    with pytest.raises(UnsupportedError, match=rf"'w' holds it along another: 2:4 along axis {1 - axis} ") as raised:
        weights(text, {"w": prune(normal(*shape), 1 - axis)})
    assert (raised.value.code, raised.value.where) == ("INFC-E0715", "n_y")


@pytest.mark.parametrize("precision", ["f32", "f16", "bf16", "int8", "fp8"])
def test_it_is_seen_through_what_legalisation_adds(precision: str) -> None:
    (found,) = weights(MATMUL, {"w": prune(normal(32, 64), 0)}, precision, ranges={"x": (-3, 3)})
    assert (found.axis, found.state) == (0, "eligible")


def test_states_of_several_weights() -> None:
    text = "(float[4, 32] x) => (float[4, 32] y) { a = MatMul(x, u) b = MatMul(a, v) y = MatMul(b, w) }"
    found = weights(text, {"u": prune(normal(32, 64), 0), "v": prune(normal(64, 32), 1), "w": normal(32, 32)})
    assert [(w.name, w.state) for w in found] == [("u", "eligible"), ("v", "wrong-axis"), ("w", "dense")]
    assert found[1].detail == "2:4 along axis 1 of [64, 32], K is axis 0"


def test_dense_weights_are_an_error_only_if_sparsity_is_wanted() -> None:
    dense = {"w": normal(32, 64)}
    with pytest.raises(UnsupportedError, match="none of 1 weights"):
        weights(MATMUL, dense)
    assert legalise(graph(MATMUL, dense), Request(sms=(89,))).weights == []
    with pytest.raises(UsageError, match="'1:2'"):
        legalise(graph(MATMUL, dense), Request(sms=(89,), sparsity="1:2"))
