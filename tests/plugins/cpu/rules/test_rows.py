"""Reductions against ONNX Runtime."""

from __future__ import annotations

import numpy as np
import pytest

from tests.plugins.cpu.rules.ops import check


@pytest.mark.parametrize("keep", [0, 1])
def test_an_axis_that_is_given_twice_is_reduced_once(keep: int) -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 4, 5)).astype(np.float32)
    check("ReduceMean", {"x": x, "axes": np.array([0, 3, 0, -1])}, ["axes"], keepdims=keep)


@pytest.mark.parametrize("op", ["ReduceSum", "ReduceMean", "ReduceMax", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceSumSquare",
                                "ReduceLogSum", "ReduceLogSumExp"])
def test_without_axes_each_element_is_reduced_by_itself(op: str) -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
    x = np.abs(x) if op == "ReduceLogSum" else x
    check(op, {"x": x, "axes": np.zeros(0, np.int64)}, ["axes"], noop_with_empty_axes=1)


def test_what_is_done_without_axes_is_nothing_to_a_reduction_that_has_some() -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
    check("ReduceSum", {"x": x, "axes": np.array([1])}, ["axes"], noop_with_empty_axes=1)
