from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hn

from infc.compiler.errors import UsageError
from infc.plugins.tensorrt.legalise import Request, legalise
from infc.plugins.tensorrt.legalise.quantise import FP8, INT4, INT8, Kind, pack_int4
from tests.passes.support import normal
from tests.plugins.tensorrt.legalise.support import build, compare, feed, graph, kinds, run

RANGES = {"x": (-3.0, 3.5), "g": (-1.0, 4.0)}
TEXT = ("(float[4, 64] x) => (float[4, 32] y) { a = MatMul(x, w) g = Gelu(a) b = Gemm<transB = 1>(g, v, c) t = Transpose(b) "
        "p = MatMul(b, t) y = MatMul(p, r) }")
WEIGHTS = {"w": normal(64, 96) / 4, "v": normal(48, 96) / 4, "c": normal(48), "r": normal(4, 32)}


def _model() -> ir.Model:
    return graph(TEXT, WEIGHTS)


def _constant(model: ir.Model, name: str) -> Any:
    tensor = model.graph.initializers[name].const_value
    assert tensor is not None
    return tensor.numpy()


@pytest.mark.parametrize(("precision", "tolerance"), [("int8", 0.04), ("fp8", 0.08)])
def test_products_with_ranges_are_quantised(precision: str, tolerance: float) -> None:
    found = compare(_model(), precision, tolerance, ranges=RANGES)
    count = kinds(found.model)
    assert (count["QuantizeLinear"], count["DequantizeLinear"]) == (2, 4)
    assert found.notes[:3] == [
        "2 products were quantised", "1 were left in f16: 'n_y': no range for its input 'p'",
        "1 products of two activations stay in f16"]


def test_int8_weights_have_a_scale_for_each_output_channel() -> None:
    found = legalise(_model(), Request("int8", sms=(75,), ranges=RANGES)).model
    by_axis = {n.inputs[0].name: n.attributes["axis"].as_int() for n in found.graph  # type: ignore[union-attr]
               if n.op_type == "DequantizeLinear" and "axis" in n.attributes}
    assert by_axis == {"w/int8": 1, "v/int8": 0}
    np.testing.assert_array_equal(_constant(found, "w/scale"), np.abs(WEIGHTS["w"]).max(axis=0) / np.float32(127))
    np.testing.assert_array_equal(_constant(found, "v/scale"), np.abs(WEIGHTS["v"]).max(axis=1) / np.float32(127))
    assert np.abs(_constant(found, "w/int8").astype(int)).max(axis=0).tolist() == [127] * 96
    assert _constant(found, "x/scale") == np.float32(3.5 / 127)


def test_fp8_has_one_scale_for_a_tensor() -> None:
    found = legalise(_model(), Request("fp8", sms=(89,), ranges=RANGES)).model
    assert _constant(found, "w/scale") == np.abs(WEIGHTS["w"]).max() / np.float32(448)
    assert _constant(found, "x/scale") == np.float32(3.5 / 448)
    assert found.graph.initializers["w/float8e4m3fn"].dtype == ir.DataType.FLOAT8E4M3FN


def test_int4_is_for_weights_in_blocks_along_k() -> None:
    text = "(float[4, 256] x) => (float[4, 48] y) { a = MatMul(x, w) y = Gemm<transB = 1>(a, v, c) }"
    weights = {"w": normal(256, 96) / 8, "v": normal(48, 96) / 4, "c": normal(48)}
    found = compare(graph(text, weights), "int4", 0.2)
    shapes = {n.inputs[0].name: (n.attributes["axis"].as_int(), n.attributes["block_size"].as_int(), list(n.inputs[1].shape))  # type: ignore[union-attr, arg-type]
              for n in found.model.graph if n.op_type == "DequantizeLinear"}
    assert shapes == {"w/int4": (0, 32, [8, 96]), "v/int4": (1, 32, [48, 3])}
    assert not kinds(found.model)["QuantizeLinear"]
    scales = np.repeat(_constant(found.model, "w/scale").astype(np.float32), 32, axis=0)
    error = _constant(found.model, "w/int4").astype(np.float32) * scales - weights["w"]
    inside = np.abs(weights["w"]) <= 7.5 * scales
    assert (np.abs(error)[inside] <= scales[inside] / 2 * 1.01).all()
    assert inside.mean() > 0.98
    coarse = np.abs(weights["w"].reshape(8, 32, 96)).max(axis=1).repeat(32, axis=0) / np.float32(7)
    assert (error**2).sum() < ((np.rint(weights["w"] / coarse) * coarse - weights["w"]) ** 2).sum()


def test_what_int4_leaves_is_listed() -> None:
    text = ("(float[4, 48] x, float[1, 4, 8, 8] i) => (float[4, 64] y, float[1, 4, 8, 8] o) "
            "{ a = MatMul(x, w) y = MatMul(a, v) o = Conv(i, k) }")
    found = legalise(graph(text, {"w": normal(48, 32), "v": normal(32, 64), "k": normal(4, 4, 1, 1)}), Request("int4", sms=(89,)))
    assert found.notes[:2] == [
        "1 products were quantised",
        "2 were left in f16: 'n_a': K = 48 is not a multiple of 32; 'n_o': int4 is for matrices"]


def test_a_value_that_many_read_is_quantised_once() -> None:
    model = graph("(float[4, 64] x) => (float[4, 64] y) { a = MatMul(x, w) b = MatMul(x, w) y = Add(a, b) }", {"w": normal(64, 64)})
    found = legalise(model, Request("int8", sms=(89,), ranges={"x": (-3, 3)})).model
    assert kinds(found) == {"QuantizeLinear": 1, "DequantizeLinear": 2, "Cast": 3, "MatMul": 2, "Add": 1}


@pytest.mark.parametrize("precision", ["int8", "fp8", "int4"])
def test_a_graph_in_f16(precision: str, tmp_path: Path) -> None:
    model = graph("(float16[4, 64] x) => (float16[4, 32] y) { y = MatMul(x, w) }", {"w": (normal(64, 32) / 4).astype(np.float16)})
    found = compare(model, precision, 0.2, ranges={"x": (-3.0, 3.0)})
    assert found.notes[0] == "1 products were quantised"
    assert build(tmp_path, found.model) == [""]


@pytest.mark.parametrize("precision", ["int8", "fp8", "int4"])
def test_a_weight_that_is_read_both_ways(precision: str) -> None:
    """Its scales lie along another axis for each reader, and a name that the graph has already is not taken."""
    model = graph("(float[4, 64] x) => (float[4, 64] y) { a = MatMul(x, w) b = Add(a, scale) y = Gemm<transB = 1>(b, w) }",
                  {"w": normal(64, 64) / 8, "scale": normal(64)})
    model.graph.initializers["scale"].name = "w/scale"
    found = compare(model, precision, 0.2, ranges={"x": (-3, 3), "b": (-4, 4)})
    assert kinds(found.model)["DequantizeLinear"] == (2 if precision == "int4" else 4)
    np.testing.assert_array_equal(_constant(found.model, "w/scale"), normal(64).astype(np.float16))


def test_convolutions() -> None:
    text = "(float[1, 8, 8, 8] x) => (float[1, 16, 8, 8] y) { y = Conv<pads = [1, 1, 1, 1]>(x, w, b) }"
    model = graph(text, {"w": normal(16, 8, 3, 3) / 8, "b": normal(16)})
    found = compare(model, "int8", 0.04, ranges={"x": (-3.0, 3.0)})
    assert _constant(found.model, "w/scale").shape == (16,)


def test_every_precision_builds(tmp_path: Path) -> None:
    conv = graph("(float[1, 16, 8, 8] x) => (float[1, 16, 8, 8] y) { y = Conv<pads = [1, 1, 1, 1]>(x, w, b) }",
                 {"w": normal(16, 16, 3, 3) / 8, "b": normal(16)})
    grouped = graph("(float[1, 16, 8, 8] x) => (float[1, 16, 8, 8] y) { y = Conv<pads = [1, 1, 1, 1], group = 16>(x, w, b) }",
                    {"w": normal(16, 1, 3, 3), "b": normal(16)})
    models = {(p, i): legalise(m, Request(p, sms=(89,), ranges=RANGES if i == 0 else {"x": (-3, 3)})).model
              for p in ("int8", "fp8") for i, m in enumerate((_model(), conv, grouped))}
    models["int4", 0] = legalise(_model(), Request("int4", sms=(89,))).model
    said = dict(zip(models, build(tmp_path, *models.values()), strict=True))
    assert {k: s for k, s in said.items() if s} == {}


def test_a_graph_with_qdq_keeps_its_scales(tmp_path: Path) -> None:
    constants = {"s": np.float32(0.0123), "ws": np.linspace(0.01, 0.02, 32, dtype=np.float32),
                 "q": np.random.default_rng(0).integers(-128, 128, (64, 32)).astype(np.int8), "z": np.int8(0)}
    text = ("(float[4, 64] x) => (float[4, 32] y) { a = QuantizeLinear(x, s, z) d = DequantizeLinear(a, s, z) "
            "w = DequantizeLinear<axis = 1>(q, ws) y = MatMul(d, w) }")
    for opset in (21, 23):
        found = compare(graph(text, constants, opset), "int8", 4e-3)
        for name, data in constants.items():
            np.testing.assert_array_equal(_constant(found.model, name), data)
        assert found.notes == ["the graph carries Q/DQ and keeps its own scales"]
        assert build(tmp_path, found.model) == [""]


def test_biases_stored_in_int32_become_floats(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    constants = {"s": np.float32(0.02), "z": np.int8(0), "q": random.integers(-128, 128, (16, 32)).astype(np.int8),
                 "bq": random.integers(-9999, 9999, 16).astype(np.int32), "bz": np.zeros(16, np.int32),
                 "ws": np.linspace(0.01, 0.02, 16, dtype=np.float32), "wz": np.zeros(16, np.int8)}
    constants["bs"] = constants["ws"] * constants["s"]
    model = graph("(float[4, 32] x) => (float[4, 16] y) { b = DequantizeLinear<axis = 0>(bq, bs, bz) a = QuantizeLinear(x, s, z) "
                  "d = DequantizeLinear(a, s, z) w = DequantizeLinear<axis = 0>(q, ws, wz) y = Gemm<transB = 1>(d, w, b) }",
                  constants)
    found = compare(model, "f32", 1e-6)
    np.testing.assert_array_equal(_constant(found.model, "b"), constants["bq"].astype(np.float32) * constants["bs"])
    assert build(tmp_path, model, found.model)[1] == ""
    compare(model, "int8", 4e-3)


def test_blocked_int4_that_a_graph_carries(tmp_path: Path) -> None:
    data = np.random.default_rng(0).integers(0, 256, 64 * 32 // 2).astype(np.uint8)
    packed = ir.PackedTensor(data, ir.DataType.INT4, shape=ir.Shape((64, 32)), name="q")
    model = graph("(float[4, 64] x) => (float[4, 32] y) { w = DequantizeLinear<axis = 0, block_size = 32>(q, s) y = MatMul(x, w) }",
                  {"s": normal(2, 32) ** 2 + 0.01, "q": packed.numpy()})
    found = compare(model, "int4", 4e-3)
    assert build(tmp_path, found.model) == [""]


@pytest.mark.parametrize(("precision", "ranges", "code", "says"), [
    ("int8", {}, "E0720", "needs the ranges"),
    ("int8", {"x": (3.0, -3.0)}, "E0721", "'x' is [3.0, -3.0]"),
    ("int8", {"x": (0.0, float("inf"))}, "E0721", "'x' is"),
    ("int8", {"x": (0.0, 0.0)}, "E0721", "as good as that"),
    ("fp8", {"gg": (-1.0, 1.0), "nothing": (-1.0, 1.0)}, "E0722", "'gg' (near: g)"),
    ("int8", {"b": (-1.0, 1.0)}, "E0723", "no range for its input 'x'"),
])
def test_wrong_ranges(precision: str, ranges: dict[str, tuple[float, float]], code: str, says: str) -> None:
    with pytest.raises(UsageError) as raised:
        legalise(_model(), Request(precision, sms=(89,), ranges=ranges))
    assert raised.value.code == f"INFC-{code}"
    assert says in raised.value.message
    assert raised.value.hint


@given(hn.arrays(np.int8, hn.array_shapes(max_dims=3, max_side=7), elements=st.integers(-8, 7)))
def test_int4_is_packed_low_nibble_first(data: np.ndarray[Any, Any]) -> None:
    flat = data.reshape(-1).tolist()
    expected = [(flat[i] & 15) | ((flat[i + 1] & 15) << 4 if i + 1 < len(flat) else 0) for i in range(0, len(flat), 2)]
    assert pack_int4(data).tolist() == expected
    unpacked = ir.PackedTensor(pack_int4(data), ir.DataType.INT4, shape=ir.Shape(data.shape)).numpy()
    np.testing.assert_array_equal(unpacked.astype(np.int8), data)


@pytest.mark.parametrize("kind", [INT8, FP8, INT4])
@given(data=hn.arrays(np.float32, (3, 5), elements=st.floats(-1000, 1000, width=32)))
def test_stored_numbers_are_nearest_and_clamped(kind: Kind, data: np.ndarray[Any, Any]) -> None:
    stored = kind.store(data, np.float32(0.5)).astype(np.float64)  # type: ignore[arg-type]
    exact = np.clip(data.astype(np.float64) / 0.5, kind.least, kind.largest)
    half = 0.5 if kind is not FP8 else np.maximum(np.abs(exact) / 16, 2.0 ** -10)  # three bits of mantissa
    assert (np.abs(stored - exact) <= half).all()


def test_quantised_numbers_are_what_onnx_computes() -> None:
    """Q of ONNX Runtime stores the same numbers as ours."""
    data = normal(6, 7)
    model = graph("(float[6, 7] x) => (int8[6, 7] q) { q = QuantizeLinear(x, s, z) }", {"s": np.float32(0.01), "z": np.int8(0)})
    feeds = feed(model)
    feeds["x"] = data
    np.testing.assert_array_equal(run(model, feeds)[0], INT8.store(data, np.float32(0.01)))  # type: ignore[arg-type]
