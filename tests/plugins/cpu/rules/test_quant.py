"""Quantised operators: against ONNX's reference and, for files that ONNX Runtime quantised, against ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from infc.plugins.cpu.values import NUMPY
from tests.plugins.cpu.harness import bits, compile_model, native_isas, run

RANGES = {"u8": (0, 255), "i8": (-128, 127), "u16": (0, 65535), "i16": (-32768, 32767), "u4": (0, 15), "i4": (-8, 7), "u2": (0, 3),
          "i2": (-2, 1)}


def _number(array: np.ndarray) -> int:
    return int(helper.np_dtype_to_tensor_dtype(array.dtype))


def _check(op: str, inputs: list[np.ndarray], constants: frozenset[int] = frozenset(), opset: int = 25,
           **attributes: object) -> None:
    """The node gives exactly what ONNX's reference gives."""
    names = [f"x{i}" for i in range(len(inputs))]
    node = helper.make_node(op, names, ["y"], **attributes)
    values = [helper.make_tensor_value_info(n, _number(a), a.shape) for n, a in zip(names, inputs, strict=True)]
    model = helper.make_model(helper.make_graph([node], "g", values, [onnx.ValueInfoProto(name="y")]),
                              opset_imports=[helper.make_opsetid("", opset)])
    want = ReferenceEvaluator(node).run(None, dict(zip(names, inputs, strict=True)))[0]
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", _number(want), want.shape))
    model.graph.initializer.extend(numpy_helper.from_array(inputs[i], names[i]) for i in sorted(constants))
    kept = [v for i, v in enumerate(model.graph.input) if i not in constants]
    del model.graph.input[:]
    model.graph.input.extend(kept)
    artifact, _ = compile_model(model, native_isas())
    feeds = {n: bits(a) for i, (n, a) in enumerate(zip(names, inputs, strict=True)) if i not in constants}
    for isa in native_isas():
        got = run(artifact, feeds, isa=isa)["y"]
        assert np.array_equal(got.view(want.dtype).astype(np.float64), want.astype(np.float64))


@given(st.sampled_from(list(RANGES)), st.sampled_from(["tensor", "axis", "last", "block"]), st.booleans(), st.booleans(),
       st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_quantisation_there_and_back(dtype: str, kind: str, with_zero: bool, constant: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    target = NUMPY[dtype]
    x = (rng.standard_normal((3, 9 if kind == "block" else 8, 5)) * 20).astype(np.float32)
    axis, shape = {"tensor": (1, ()), "axis": (1, (8,)), "last": (2, (5,)), "block": (1, (3, 3, 5))}[kind]
    scale = rng.uniform(0.05, 3, shape).astype(np.float32)
    codes = RANGES[dtype]
    zero = rng.integers(*codes, shape, endpoint=True).astype(target)
    attributes: dict[str, int] = {"axis": axis, **({"block_size": 3} if kind == "block" else {})}
    params = frozenset({1, 2} if constant and with_zero else {1} if constant else ())
    more = [scale, zero] if with_zero else [scale]
    _check("QuantizeLinear", [x, *more], params, **attributes,
           **({} if with_zero else {"output_dtype": int(helper.np_dtype_to_tensor_dtype(target))}))
    q = rng.integers(*codes, x.shape, endpoint=True).astype(target)
    _check("DequantizeLinear", [q, *more], params, **attributes)
    if constant:
        _check("DequantizeLinear", [q, *more], params | {0}, **attributes)


@pytest.mark.parametrize("dtype", ["f8e4m3fn", "f8e5m2", "f8e4m3fnuz", "f8e5m2fnuz"])
def test_float8(dtype: str) -> None:
    x = np.array([[0, 1, -3.3, 1e6, -1e6, 0.01]], np.float32)
    zero = np.zeros((), NUMPY[dtype])
    _check("QuantizeLinear", [x, np.array(2, np.float32), zero])
    _check("QuantizeLinear", [x, np.array(2, np.float32), np.ones((), NUMPY[dtype])])  # tells the type, is not added
    _check("DequantizeLinear", [x.clip(-200, 200).astype(NUMPY[dtype]), np.array(2, np.float32), zero])


def test_floats_of_four_bits_have_no_zero() -> None:
    x, zero = np.float32([2, -3, 0.5]).astype(NUMPY["f4e2m1"]), np.ones((), NUMPY["f4e2m1"])
    _check("DequantizeLinear", [x, np.array(-0.25, np.float32), zero])


@pytest.mark.parametrize("signs", [(np.uint8, np.uint8), (np.uint8, np.int8), (np.int8, np.uint8), (np.int8, np.int8)])
def test_products_do_not_saturate(signs: tuple[type, type]) -> None:
    """All extremes, where sums of pairs leave 16 bits."""
    for extreme in (0, 1):
        ends = [(np.iinfo(s).min, np.iinfo(s).max) for s in signs]
        a, b = (np.full(shape, e[extreme], s) for e, s, shape in zip(ends, signs, ((3, 1000), (1000, 40)), strict=True))
        zeros = [np.array(e[1 - extreme], s) for e, s in zip(ends, signs, strict=True)]
        _check("MatMulInteger", [a, b], opset=23)
        _check("MatMulInteger", [a, b, *zeros], opset=23)


@given(st.integers(0, 999))
@settings(max_examples=12, deadline=None)
def test_integer_products_and_convolutions(seed: int) -> None:
    rng = np.random.default_rng(seed)
    a, b = rng.integers(0, 256, (2, 4, 9), np.uint8), rng.integers(-128, 128, (9, 6), np.int8)
    _check("MatMulInteger", [a, b, np.array(7, np.uint8), rng.integers(-9, 9, 6, np.int8)], opset=23)
    x, w = rng.integers(0, 256, (2, 3, 7, 6), np.uint8), rng.integers(0, 256, (5, 3, 3, 2), np.uint8)
    _check("ConvInteger", [x, w, np.array(9, np.uint8), np.array(100, np.uint8)], opset=23, pads=[1, 0, 2, 1], strides=[2, 1])
    _check("ConvInteger", [x, w, np.array(9, np.uint8)], frozenset({1}), opset=23, dilations=[2, 1])
    scales = [np.array(s, np.float32) for s in (0.013, 0.021, 0.71)]
    _check("QLinearMatMul", [a, scales[0], np.array(120, np.uint8), b, scales[1], np.array(-3, np.int8), scales[2],
                             np.array(128, np.uint8)], opset=23)


def _classifier(path: Path) -> None:
    """A small network of convolutions and a product, as f32."""
    rng = np.random.default_rng(0)

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        return numpy_helper.from_array((rng.standard_normal(shape) * 0.3).astype(np.float32), name)

    nodes = [helper.make_node("Conv", ["x", "w1", "b1"], ["a"], pads=[1, 1, 1, 1]), helper.make_node("Relu", ["a"], ["b"]),
             helper.make_node("Conv", ["b", "w2", "b2"], ["c"], group=2, strides=[2, 2]),
             helper.make_node("Add", ["c", "c"], ["d"]),
             helper.make_node("GlobalAveragePool", ["d"], ["e"]), helper.make_node("Flatten", ["e"], ["f"]),
             helper.make_node("MatMul", ["f", "w3"], ["y"])]
    weights = [weight("w1", 8, 3, 3, 3), weight("b1", 8), weight("w2", 6, 4, 3, 3), weight("b2", 6), weight("w3", 6, 10)]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", 1, [2, 3, 12, 12])],
                              [helper.make_tensor_value_info("y", 1, [2, 10])], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)


@pytest.mark.parametrize("form", ["QDQ", "QOperator"])
@pytest.mark.parametrize("per_channel", [False, True])
def test_a_file_that_onnx_runtime_quantised(tmp_path: Path, form: str, per_channel: bool) -> None:
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            rng = np.random.default_rng(1)
            self.data = iter([{"x": rng.standard_normal((2, 3, 12, 12)).astype(np.float32)} for _ in range(4)])

        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(self.data, None)

    _classifier(tmp_path / "f32.onnx")
    kept = [] if form == "QDQ" else ["Conv", "MatMul"]  # the others become operators of ONNX Runtime's own
    quantize_static(tmp_path / "f32.onnx", tmp_path / "q.onnx", Reader(), QuantFormat[form], per_channel=per_channel,
                    op_types_to_quantize=kept, weight_type=QuantType.QInt8)
    model = onnx.load(tmp_path / "q.onnx")
    x = np.random.default_rng(2).standard_normal((2, 3, 12, 12)).astype(np.float32)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(tmp_path / "q.onnx", options, providers=["CPUExecutionProvider"])
    want = session.run(None, {"x": x})[0]
    artifact, _ = compile_model(onnx.shape_inference.infer_shapes(model), native_isas())
    step = max(float(numpy_helper.to_array(t).max()) for t in model.graph.initializer if t.name == "y_scale") if any(
        t.name == "y_scale" for t in model.graph.initializer) else 0.02
    for isa in native_isas():
        got = run(artifact, {"x": x}, isa=isa)["y"]
        assert np.abs(got - want).max() <= 1.01 * step  # one place, where sums in another order round to the other side
        assert np.mean(np.abs(got - want)) < 0.2 * step
