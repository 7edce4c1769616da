"""What ONNX Runtime makes of a graph in a narrow type, as a GPU would: with every rounding, and every overflow."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from infc.plugins.tensorrt.legalise import Request, legalise
from infc.plugins.tensorrt.legalise.emulate import emulate
from tests.plugins.tensorrt.legalise.support import graph, run

ONE_PRODUCT = "(float[4, 8] x) => (float[4, 4] y) { y = MatMul(x, w) }"
X = np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32)


@pytest.mark.parametrize(("precision", "ranges"), [("f16", {}), ("int8", {"x": (-4.0, 4.0)}), ("fp8", {"x": (-4.0, 4.0)})])
def test_an_overflow_shows(precision: str, ranges: dict[str, tuple[float, float]]) -> None:
    model = graph(ONE_PRODUCT, {"w": np.full((8, 4), 1e6, np.float32)})
    legal = legalise(model, Request(precision, (89,), ranges)).model
    assert np.isfinite(run(model, {"x": X})[0]).all()
    assert not np.isfinite(run(emulate(legal), {"x": X})[0]).any()


@pytest.mark.parametrize(("precision", "dtype"), [("f16", np.float16), ("bf16", ml_dtypes.bfloat16)])
def test_each_node_rounds(precision: str, dtype: type) -> None:
    """1 + 2^-12 - 1 is zero where each sum is rounded, and 2^-12 where one is not."""
    model = graph("(float[2] x) => (float[2] y) { a = Add(x, one) y = Sub(a, one) }", {"one": np.ones(2, np.float32)})
    x = np.array([2**-12, 0.5], np.float32)
    legal = legalise(model, Request(precision, (89,))).model
    np.testing.assert_array_equal(run(emulate(legal), {"x": x})[0], [0, 0.5])


def test_inputs_and_outputs_keep_a_narrow_type() -> None:
    model = graph("(float16[2] x) => (float16[2] y, float16[2] z) { y = Add(x, one) f = Cast<to = 10>(y) z = Mul(f, y) }",
                  {"one": np.ones(2, np.float16)})
    copy = emulate(legalise(model, Request("f16", (89,))).model)
    assert [(v.name, v.dtype) for v in (*copy.graph.inputs, *copy.graph.outputs)] == [
        (v.name, v.dtype) for v in (*model.graph.inputs, *model.graph.outputs)]
    x = np.array([1, 2], np.float16)
    for got, wanted in zip(run(copy, {"x": x}), (x + 1, (x + 1) ** 2), strict=True):
        assert got.dtype == np.float16
        np.testing.assert_array_equal(got, wanted)


def test_constants_made_by_nodes_are_widened() -> None:
    import onnx
    import onnx_ir as ir

    proto = ir.to_proto(graph("(float16[2] x, int64[1] s) => (float16[2] y) { c = ConstantOfShape(s) y = Add(x, c) }"))
    filled = onnx.helper.make_attribute("value", onnx.numpy_helper.from_array(np.array([3], np.float16)))
    proto.graph.node[0].attribute.append(filled)
    copy = emulate(ir.from_proto(onnx.shape_inference.infer_shapes(proto)))
    got = run(copy, {"x": np.zeros(2, np.float16), "s": np.array([2])})[0]
    np.testing.assert_array_equal(got, np.full(2, 3, np.float16))


def test_a_graph_in_float32_is_left_alone() -> None:
    model = graph(ONE_PRODUCT, {"w": np.ones((8, 4), np.float32)})
    assert emulate(model) is model
