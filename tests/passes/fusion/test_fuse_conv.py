"""Convolutions and what goes into them: Pad, BatchNormalization, scales and shifts, activations, residuals."""

from __future__ import annotations

import numpy as np
import pytest

from infc.passes.fusion.fuse_activation import FuseActivation
from infc.passes.fusion.fuse_conv import FoldBatchNorm, FoldPad, FuseConv
from infc.passes.fusion.fuse_residual import FuseResidual
from tests.passes.support import apply, find, graph, misses, normal, ops, unchanged

X = "(float[batch, 4, 9, 9] x) => (float[batch, 6, 9, 9] y)"
W = {"w": normal(6, 4, 3, 3), "b": normal(6, seed=1)}
NORM = {"gamma": normal(6, seed=2), "beta": normal(6, seed=3), "mean": normal(6, seed=4), "var": normal(6, seed=5) ** 2 + 0.5}
FUSE = (FoldPad, FoldBatchNorm, FuseConv, FuseActivation, FuseResidual, FuseActivation)


@pytest.mark.parametrize("bias", ["", ", b"])
def test_batch_norm(bias: str) -> None:
    model = graph(f"{X} {{ c = Conv<pads = [1, 1, 1, 1]>(x, w{bias})"
                  " y = BatchNormalization<epsilon = 0.01>(c, gamma, beta, mean, var) }", W | NORM)
    apply(model, FoldBatchNorm)
    assert ops(model) == {"Conv": 1}


def test_groups_keep_their_weights() -> None:
    model = graph(f"{X} {{ c = Conv<pads = [1, 1, 1, 1], group = 2>(x, w) y = BatchNormalization(c, gamma, beta, mean, var) }}",
                  {"w": normal(6, 2, 3, 3)} | NORM)
    apply(model, FoldBatchNorm)
    assert ops(model) == {"Conv": 1}


def test_scale_and_shift_of_channels() -> None:
    model = graph(f"{X} {{ c = Conv<pads = [1, 1, 1, 1]>(x, w) m = Mul(scale, c) s = Add(m, shift) y = Mul(s, two) }}",
                  W | {"scale": normal(6, 1, 1), "shift": normal(1, 6, 1, 1), "two": np.array(2.0, np.float32)})
    apply(model, FoldBatchNorm)
    assert ops(model) == {"Conv": 1}


@pytest.mark.parametrize(("name", "shape"), [("rows", (9, 1)), ("pixels", (9, 9)), ("last", (9,)), ("all", (6, 9, 9))])
def test_a_scale_of_other_dimensions_stays(name: str, shape: tuple[int, ...]) -> None:
    model = graph(f"{X} {{ c = Conv<pads = [1, 1, 1, 1]>(x, w) y = Mul(c, {name}) }}", W | {name: normal(*shape)})
    unchanged(model, FoldBatchNorm)


def test_a_convolution_used_twice_keeps_its_weights() -> None:
    model = graph(f"{X} {{ c = Conv<pads = [1, 1, 1, 1]>(x, w)"
                  " n = BatchNormalization(c, gamma, beta, mean, var) y = Add(n, c) }", W | NORM)
    assert "used elsewhere" in unchanged(model, FoldBatchNorm)[0]


def test_weights_of_the_caller_stay() -> None:
    model = graph("(float[batch, 4, 9, 9] x, float[6, 4, 3, 3] v) => (float[batch, 6, 7, 7] y) {"
                  " c = Conv(x, v) y = BatchNormalization(c, gamma, beta, mean, var) }", NORM)
    assert "not constant" in unchanged(model, FoldBatchNorm)[0]


def test_pad() -> None:
    model = graph("(float[batch, 4, 9, 9] x) => (float[batch, 6, 10, 12] y) {"
                  " p = Pad(x, pads) y = Conv<pads = [1, 0, 0, 1]>(p, w) }",
                  W | {"pads": np.array([0, 0, 1, 2, 0, 0, 1, 2])})
    apply(model, FoldPad)
    assert ops(model) == {"Conv": 1}
    assert list(find(model, "Conv").attributes["pads"].value) == [2, 2, 1, 3]


@pytest.mark.parametrize(("pads", "mode", "value", "reason"), [
    ([0, 0, 1, 1, 0, 0, 1, 1], "edge", 0.0, "zeros"), ([0, 0, 1, 1, 0, 0, 1, 1], "constant", 1.0, "zeros"),
    ([0, 0, -1, 1, 0, 0, 1, 1], "constant", 0.0, "cuts")])
def test_other_pads_stay(pads: list[int], mode: str, value: float, reason: str) -> None:
    model = graph("(float[batch, 4, 9, 9] x) => (float[batch, 6, p, q] y) {"
                  f' p = Pad<mode = "{mode}">(x, pads, v) y = Conv(p, w) }}',
                  W | {"pads": np.array(pads), "v": np.array(value, np.float32)})
    assert reason in unchanged(model, FoldPad)[0]


def test_padded_channels_stay() -> None:
    model = graph("(float[batch, 3, 9, 9] x) => (float[batch, 6, 7, 7] y) { p = Pad(x, pads) y = Conv(p, w) }",
                  W | {"pads": np.array([0, 1, 0, 0, 0, 0, 0, 0])})
    assert "spatial" in unchanged(model, FoldPad)[0]


@pytest.mark.parametrize(("nodes", "activation"), [
    ("y = Relu(c)", "relu"), ("y = Clip(c, low, high)", "relu6"), ("y = HardSwish(c)", "hard_swish"), ("y = Tanh(c)", "tanh"),
    ("s = Sigmoid(c) y = Mul(c, s)", "silu")])
def test_activation(nodes: str, activation: str) -> None:
    model = graph(f"{X} {{ c = Conv<pads = [1, 1, 1, 1]>(x, w, b) {nodes} }}",
                  W | {"low": np.array(0.0, np.float32), "high": np.array(6.0, np.float32)})
    apply(model, FuseConv, FuseActivation)
    assert ops(model) == {"Conv": 1}
    assert find(model, "Conv").attributes["activation"].value == activation


def test_another_clip_stays() -> None:
    model = graph(f"{X} {{ c = Conv<pads = [1, 1, 1, 1]>(x, w) y = Clip(c, low, high) }}",
                  W | {"low": np.array(0.0, np.float32), "high": np.array(1.0, np.float32)})
    apply(model, FuseConv, FuseActivation)
    assert ops(model) == {"Conv": 1, "Clip": 1}


def test_activation_of_a_sum() -> None:
    """The block of a residual network: the shortcut comes before the activation."""
    model = graph("(float[batch, 6, 9, 9] x) => (float[batch, 6, 9, 9] y) {"
                  " c = Conv<pads = [1, 1, 1, 1]>(x, w) n = BatchNormalization(c, gamma, beta, mean, var)"
                  " s = Add(n, x) y = Relu(s) }",
                  {"w": normal(6, 6, 3, 3)} | NORM)
    apply(model, *FUSE)
    assert ops(model) == {"Conv": 1}
    assert find(model, "Conv").attributes["residual_first"].value == 1


def test_residual_of_an_activation() -> None:
    model = graph("(float[batch, 6, 9, 9] x) => (float[batch, 6, 9, 9] y) {"
                  " c = Conv<pads = [1, 1, 1, 1]>(x, w) r = Relu(c) y = Add(x, r) }",
                  {"w": normal(6, 6, 3, 3)})
    apply(model, *FUSE)
    assert ops(model) == {"Conv": 1}
    assert "residual_first" not in find(model, "Conv").attributes


def test_a_second_activation_stays() -> None:
    model = graph(f"{X} {{ c = Conv<pads = [1, 1, 1, 1]>(x, w) r = Relu(c) y = Tanh(r) }}", W)
    records = apply(model, *FUSE)
    assert ops(model) == {"Conv": 1, "Tanh": 1}
    assert "an activation already" in misses(records)[0]
