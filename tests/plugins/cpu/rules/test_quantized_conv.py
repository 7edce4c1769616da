"""Quantised convolutions against their ONNX-function bodies in ONNX Runtime, and which kernels they take."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from infc.plugins.cpu.pack_dw import by_place, taps_i8
from tests.plugins.cpu.graphs import parse
from tests.plugins.cpu.rules.test_quantized_linear import check, steps

SCALES = {"xs": np.float32(0.05), "ys": np.float32(0.2), "yz": np.uint8(120), "rs": np.float32(0.1), "rz": np.uint8(7)}


def place(channel: int) -> int:
    c = channel % 64
    return channel // 64 * 64 + c % 16 // 4 * 16 + c // 16 * 4 + c % 4


@given(st.integers(1, 10), st.integers(1, 150))
@settings(max_examples=25, deadline=None)
def test_packing_is_where_the_kernel_looks(taps: int, channels: int) -> None:
    rng = np.random.default_rng(0)
    w, row = rng.integers(-128, 128, (taps, channels)).astype(np.int8), rng.normal(size=channels)
    packed, placed = taps_i8(w), by_place(row)
    assert packed.shape == (-(-channels // 64), -(-taps // 4) * 256)
    for c in range(channels):
        assert placed[place(c)] == row[c]
        for t in range(taps):
            assert packed[c // 64, t // 4 * 256 + place(c) % 64 * 4 + t % 4] == w[t, c]
    assert np.abs(packed.astype(int)).sum() == np.abs(w.astype(int)).sum()  # zeros elsewhere


def model(c: int, m: int, group: int, size: int = 9, kernel: int = 3, residual: str = "", out: bool = True, zero: int = 131,
          made: int = 9, **attributes: Any) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A convolution [2,c,size,size] to [2,m,made,made] with pads of kernel // 2, and its inputs. ``residual``: f32 or u8."""
    rng = np.random.default_rng(c * m + kernel)
    spread = 3 / np.sqrt(c // group * kernel**2) / 128
    constants = {**SCALES, "xz": np.uint8(zero), "w": rng.integers(-128, 128, (m, c // group, kernel, kernel)).astype(np.int8),
                 "s": (rng.uniform(0.5, 1.0, m) * spread).astype(np.float32), "b": rng.normal(size=m).astype(np.float32)}
    feeds = {"q": rng.integers(0, 256, (2, c, size, size)).astype(np.uint8)}
    if residual == "f32":
        feeds["r"] = rng.normal(size=(2, m, made, made)).astype(np.float32)
    elif residual:
        feeds["r"] = rng.integers(0, 256, (2, m, made, made)).astype(np.uint8)
    operands = ["q", "xs", "xz", "w", "s", "", "b", "r" if residual else "", *(["ys", "yz"] if out else ["", ""]),
                *(["rs", "rz"] if residual == "u8" else [])]
    while not operands[-1]:
        operands.pop()
    node = helper.make_node("QuantizedConv", operands, ["y"], name="conv", domain="infc", group=group, pads=[kernel // 2] * 4,
                            **attributes)
    y = helper.make_tensor_value_info("y", onnx.TensorProto.UINT8 if out else onnx.TensorProto.FLOAT, (2, m, made, made))
    inputs = [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in feeds.items()]
    weights = [numpy_helper.from_array(a, n) for n, a in constants.items() if n in operands]
    graph = helper.make_graph([node], "g", inputs, [y], weights)
    opsets = [helper.make_opsetid("", 23), helper.make_opsetid("infc", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10), feeds


@pytest.mark.parametrize(("c", "m", "group", "kernel", "op"), [
    (3, 32, 1, 3, "conv_i8"), (16, 40, 1, 3, "conv_i8"), (18, 33, 1, 3, "conv_i8"), (20, 70, 1, 1, "conv_i8"),
    (32, 64, 4, 3, "conv_i8"), (6, 9, 3, 1, "conv_i8"), (24, 24, 24, 3, "depthwise_i8"), (80, 80, 80, 5, "depthwise_i8"),
    (8, 16, 8, 3, "conv_i8")])
def test_shapes(c: int, m: int, group: int, kernel: int, op: str) -> None:
    made, feeds = model(c, m, group, kernel=kernel)
    check(made, feeds)
    assert steps(made)[op] == 1
    assert not steps(made)["quantize"]


@pytest.mark.parametrize("activation", ["", "relu", "relu6", "silu", "hard_swish"])
@pytest.mark.parametrize("out", [True, False])
@pytest.mark.parametrize("depthwise", [True, False])
def test_activations(activation: str, out: bool, depthwise: bool) -> None:
    made, feeds = model(24, 24, 24 if depthwise else 1, out=out, activation=activation)
    check(made, feeds, 5e-5)
    found = steps(made)
    assert found["depthwise_i8" if depthwise else "conv_i8"] == 1
    assert not found["unary"]


@pytest.mark.parametrize("residual", ["f32", "u8"])
@pytest.mark.parametrize(("activation", "first"), [("", 0), ("relu", 1), ("silu", 1), ("silu", 0), ("relu", 0)])
@pytest.mark.parametrize("out", [True, False])
def test_residuals(residual: str, activation: str, first: int, out: bool) -> None:
    made, feeds = model(16, 24, 1, residual=residual, out=out, activation=activation, residual_first=first)
    check(made, feeds, 5e-5)
    late = activation and not first  # done in floats
    assert steps(made)["conv_i8"] == (not late)


@given(st.integers(1, 3), st.integers(1, 20), st.integers(1, 40), st.sampled_from([1, 2, 3, 5]), st.integers(1, 2),
       st.integers(1, 2), st.integers(0, 255), st.booleans())
@settings(max_examples=25, deadline=None)
def test_windows(group: int, c: int, m: int, kernel: int, stride: int, dilation: int, zero: int, out: bool) -> None:
    made = (11 + 2 * (kernel // 2) - (kernel - 1) * dilation - 1) // stride + 1
    graph, feeds = model(group * c, group * m, group, 11, kernel, out=out, zero=zero, made=made, strides=[stride] * 2,
                         dilations=[dilation] * 2)
    check(graph, feeds)
    assert steps(graph)["conv_i8"] + steps(graph)["depthwise_i8"] == 1


def test_results_stay_bytes_between_convolutions() -> None:
    rng = np.random.default_rng(0)
    shapes = {"w1": (32, 3, 3, 3), "w2": (32, 1, 3, 3), "w3": (16, 32, 1, 1)}
    constants: dict[str, Any] = {n: rng.integers(-9, 10, shape).astype(np.int8) for n, shape in shapes.items()}
    constants |= {**SCALES, "s": np.float32(0.0473)}
    graph = parse("g (float[1,3,12,12] x) => (float[1,16,12,12] y) { q = QuantizeLinear(x, xs, yz) "
                  "a = infc.QuantizedConv<pads=[1,1,1,1]>(q, xs, yz, w1, s) "
                  "b = infc.QuantizedConv<pads=[1,1,1,1], group=32>(a, xs, rz, w2, s) y = infc.QuantizedConv(b, xs, rz, w3, s) }",
                  **constants)
    for node, activation in zip(graph.graph.node[1:3], ("relu6", "relu"), strict=True):
        node.input.extend(["", "", "", "xs", "rz"])
        node.attribute.append(helper.make_attribute("activation", activation))
    check(graph, {"x": rng.normal(size=(1, 3, 12, 12)).astype(np.float32)}, 1e-4)
    found = steps(graph)
    assert (found["quantize"], found["conv_i8"], found["depthwise_i8"], found["dequantize"]) == (1, 2, 1, 0)
