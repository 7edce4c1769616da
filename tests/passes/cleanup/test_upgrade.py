"""Operators as old opsets had them, and ONNX Runtime's own, compute in ONNX Runtime what they did before they were normalised."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from infc.compiler.errors import InfcError
from infc.passes.base import PassManager
from infc.passes.cleanup.normalise import Normalise

RNG = np.random.default_rng(0)
X = RNG.standard_normal((2, 3, 4, 5)).astype(np.float32)
M = RNG.standard_normal((2, 6, 8)).astype(np.float32)
MICROSOFT = "com.microsoft"


def model(node: onnx.NodeProto, inputs: Sequence[np.ndarray | None], opset: int, constants: Sequence[int] = ()) -> tuple[
        onnx.ModelProto, dict[str, np.ndarray]]:
    """A model of one node; inputs at the places ``constants`` are initializers."""
    names = [f"x{i}" if v is not None else "" for i, v in enumerate(inputs)]
    while names and not names[-1]:
        names.pop()
    del node.input[:]
    node.input.extend(names)
    given = {n: v for n, v in zip(names, inputs, strict=False) if v is not None}
    fixed = {f"x{i}" for i in constants}
    values = [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
              for n, v in given.items() if n not in fixed]
    outputs = [helper.make_empty_tensor_value_info(n) for n in node.output if n]
    graph = helper.make_graph([node], "g", values, outputs, [numpy_helper.from_array(given[n], n) for n in given if n in fixed])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset), helper.make_opsetid(MICROSOFT, 1)], ir_version=8)
    return made, {n: v for n, v in given.items() if n not in fixed}


def run(made: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(made.SerializeToString(), options, ["CPUExecutionProvider"]).run(None, feeds)


def normalised(made: onnx.ModelProto) -> ir.Model:
    graph = ir.from_proto(made)
    for node in graph.graph:
        node.name = "the_node"
    PassManager([Normalise]).run(graph)
    assert graph.opset_imports[""] >= 23
    assert {n.domain for n in graph.graph} == {""}
    return graph


def check(node: onnx.NodeProto, inputs: Sequence[np.ndarray | None], opset: int, constants: Sequence[int] = ()) -> None:
    made, feeds = model(node, inputs, opset, constants)
    graph = normalised(made)
    for got, want in zip(run(ir.to_proto(graph), feeds), run(made, feeds), strict=True):
        assert got.shape == want.shape
        np.testing.assert_allclose(got.astype(float), want.astype(float), rtol=1e-5, atol=1 if want.dtype == np.uint8 else 1e-5)


def node(op_type: str, outputs: int = 1, domain: str = "", **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op_type, [], [f"y{i}" for i in range(outputs)], domain=domain, **attributes)


FOUR = [np.abs(RNG.standard_normal(3)).astype(np.float32) for _ in range(4)]


@pytest.mark.parametrize(("opset", "case", "inputs"), [
    (7, node("BatchNormalization", epsilon=1e-3), [X, *FOUR]),
    (9, node("BatchNormalization"), [X, *FOUR]),
    (7, node("Clip", min=-0.5), [X]), (10, node("Clip", min=-0.5, max=0.25), [X]), (7, node("Clip"), [X]),
    (17, node("DFT", onesided=1), [X[..., :1]]),
    (7, node("Dropout", ratio=0.3), [X]), (10, node("Dropout"), [X]),
    (16, node("GridSample", mode="bilinear"), [X, RNG.uniform(-1, 1, (2, 3, 3, 2)).astype(np.float32)]),
    (16, node("GridSample", mode="bicubic"), [X, RNG.uniform(-1, 1, (2, 3, 3, 2)).astype(np.float32)]),
    *((o, node(op, **a), [X]) for op in ("Softmax", "LogSoftmax", "Hardmax") for o in (7, 11)
      for a in ({}, {"axis": 0}, {"axis": 2}, {"axis": 3})),
    (7, node("Pad", pads=[0, 0, 1, 2, 0, 0, 0, 1], value=1.5), [X]),
    (7, node("Pad", pads=[0, 0, 1, 2, 0, 0, 0, 1], mode="edge"), [X]),
    *((13 if op != "ReduceSum" else 11, node(op, **a), [np.abs(X)])
      for op in ("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd",
                 "ReduceSum", "ReduceSumSquare") for a in ({"axes": [1, 3], "keepdims": 0}, {})),
    (10, node("Resize", mode="linear"), [X, np.array([1, 1, 2, 1.5], np.float32)]),
    (10, node("Resize", mode="nearest"), [X, np.array([1, 1, 2, 0.5], np.float32)]),
    (9, node("Scatter", axis=3), [X, RNG.integers(0, 5, (1, 2, 2, 2)), np.ones((1, 2, 2, 2), np.float32)]),
    (7, node("Slice", starts=[1, 0], ends=[3, -1], axes=[1, 3]), [X]), (7, node("Slice", starts=[1, 0], ends=[3, 2]), [X]),
    (7, node("Split", outputs=2, axis=2, split=[1, 3]), [X]), (7, node("Split", outputs=2, axis=2), [X]),
    (7, node("Squeeze", axes=[1]), [X[:, :1]]), (11, node("Squeeze"), [X[:, :1]]), (7, node("Unsqueeze", axes=[0, 2]), [X]),
    (7, node("TopK", outputs=2, axis=2, k=2), [X]), (10, node("TopK", outputs=2), [X, np.array([3])]),
    (7, node("Upsample", mode="nearest", scales=[1.0, 1.0, 2.0, 3.0]), [X]),
    (9, node("Upsample", mode="linear"), [X, np.array([1, 1, 2, 2], np.float32)])],
    ids=lambda value: f"{value.op_type}" if isinstance(value, onnx.NodeProto) else None)
def test_old_forms(opset: int, case: onnx.NodeProto, inputs: list[np.ndarray]) -> None:
    resizes = case.op_type in ("Resize", "Upsample")
    check(case, inputs, opset, constants=[1] if resizes and len(inputs) > 1 else [])


def test_group_normalization_of_groups() -> None:
    """ONNX Runtime has opset 21 only, whose scale is one a channel."""
    x, scale, bias = X[:, :2].reshape(1, 4, 4, 5).copy(), np.array([1, 2], np.float32), np.array([0.5, -1], np.float32)
    made, feeds = model(node("GroupNormalization", num_groups=2), [x, scale, bias], 18)
    got = run(ir.to_proto(normalised(made)), feeds)[0]
    grouped = x.reshape(1, 2, -1)
    want = (grouped - grouped.mean(-1, keepdims=True)) / np.sqrt(grouped.var(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(got, (want * scale[:, None] + bias[:, None]).reshape(x.shape), atol=1e-5)


@pytest.mark.parametrize(("opset", "case", "inputs"), [
    (8, node("BatchNormalization", spatial=0), [X, *FOUR]), (7, node("BatchNormalization", outputs=5), [X, *FOUR]),
    (6, node("Add", broadcast=1), [X, X])])
def test_forms_that_have_no_newer_one(opset: int, case: onnx.NodeProto, inputs: list[np.ndarray]) -> None:
    with pytest.raises(InfcError, match="has no newer form"):
        normalised(model(case, inputs, opset)[0])


def f(*shape: int) -> np.ndarray:
    return (RNG.standard_normal(shape) / 3).astype(np.float32)


IDS = RNG.integers(0, 7, (2, 6)).astype(np.int32)
MASK = np.array([[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1]], np.int32)
TABLES = [f(7, 8), f(9, 8), f(2, 8), 1 + f(8), f(8)]
U8 = RNG.integers(0, 255, (2, 3, 4, 5)).astype(np.uint8)
SCALE, ZERO = [np.array(v, np.float32) for v in (0.03, 0.05, 0.04)], [np.array(v, np.uint8) for v in (120, 90, 130)]


@pytest.mark.parametrize(("case", "inputs", "constants"), [
    (node("Gelu", domain=MICROSOFT), [X], ()), (node("BiasGelu", domain=MICROSOFT), [M, f(8)], ()),
    (node("FastGelu", domain=MICROSOFT), [M, f(8)], ()), (node("FastGelu", domain=MICROSOFT), [M], ()),
    (node("QuickGelu", domain=MICROSOFT, alpha=1.5), [M], ()),
    (node("FusedMatMul", domain=MICROSOFT, transA=1, transB=1, alpha=0.5), [f(2, 8, 6), f(2, 4, 8)], ()),
    (node("FusedMatMul", domain=MICROSOFT), [f(6, 8), f(2, 8, 4)], ()),
    (node("FusedGemm", domain=MICROSOFT, activation="LeakyRelu", activation_alpha=0.2, transB=1), [f(6, 8), f(4, 8), f(4)], ()),
    (node("FusedConv", domain=MICROSOFT, activation="Relu", pads=[1, 1, 1, 1]), [X, f(6, 3, 3, 3), f(6)], ()),
    (node("FusedConv", domain=MICROSOFT, activation="Clip", activation_params=[-0.5, 0.5]), [X, f(6, 3, 1, 1)], ()),
    (node("SkipLayerNormalization", domain=MICROSOFT, epsilon=1e-5), [M, f(2, 6, 8), f(8), f(8), f(8)], ()),
    (node("SkipLayerNormalization", domain=MICROSOFT), [M, f(2, 6, 8), f(8)], ()),
    (helper.make_node("SkipLayerNormalization", [], ["y", "", "", "s"], domain=MICROSOFT), [M, f(2, 6, 8), f(8), f(8)], ()),
    (node("SkipSimplifiedLayerNormalization", domain=MICROSOFT), [M, f(2, 6, 8), f(8)], ()),
    (node("EmbedLayerNormalization", 3, MICROSOFT, epsilon=1e-5), [IDS, IDS % 2, *TABLES, MASK], (2, 3, 4)),
    (node("EmbedLayerNormalization", 2, MICROSOFT), [IDS, None, *TABLES[:2], None, *TABLES[3:]], ()),
    *((node("Attention", domain=MICROSOFT, num_heads=2, unidirectional=u), [M, f(8, 24), f(24), mask], (1, 2))
      for u in (0, 1) for mask in (None, MASK, MASK.sum(1).astype(np.int32)) if not (u and mask is not None and mask.ndim == 1)),
    (node("Attention", domain=MICROSOFT, num_heads=2, qkv_hidden_sizes=[8, 8, 4], scale=0.3), [M, f(8, 20), f(20)], (1, 2)),
    (node("Attention", domain=MICROSOFT, num_heads=2), [M, f(8, 24), f(24), MASK, None, f(2, 2, 6, 6)], (1, 2)),
    (node("MultiHeadAttention", domain=MICROSOFT, num_heads=2), [M, f(2, 5, 8), f(2, 5, 8), f(24)], (3,)),
    (node("MultiHeadAttention", domain=MICROSOFT, num_heads=2), [M, M, M, None, MASK], ()),
    *((node(op, domain=MICROSOFT), [U8, SCALE[0], ZERO[0], U8[::-1].copy(), SCALE[1], ZERO[1], SCALE[2], ZERO[2]],
       (1, 2, 4, 5, 6, 7))
      for op in ("QLinearAdd", "QLinearMul")),
    (node("QLinearLeakyRelu", domain=MICROSOFT, alpha=0.1), [U8, SCALE[0], ZERO[0], SCALE[1], ZERO[1]], (1, 2, 3, 4)),
    (node("QLinearSigmoid", domain=MICROSOFT),
     [U8, SCALE[0], ZERO[0], np.array(1 / 255, np.float32), np.array(0, np.uint8)], (1, 2, 3, 4)),
    (node("QLinearGlobalAveragePool", domain=MICROSOFT), [U8, SCALE[0], ZERO[0], SCALE[1], ZERO[1]], (1, 2, 3, 4)),
    (node("QLinearConcat", domain=MICROSOFT, axis=1),
     [SCALE[2], ZERO[2], U8, SCALE[0], ZERO[0], U8, SCALE[1], ZERO[1]], (0, 1, 3, 4, 6, 7)),
    (node("MatMulIntegerToFloat", domain=MICROSOFT),
     [U8[0, 0], U8[0, 0].T.copy(), SCALE[0], SCALE[1], ZERO[0], ZERO[1], f(4)], (1, 2, 3, 4, 5, 6)),
    (node("DynamicQuantizeMatMul", domain=MICROSOFT),
     [f(6, 8), RNG.integers(0, 255, (8, 4)).astype(np.uint8), SCALE[0], ZERO[0], f(4)], (1, 2, 3)),
    (node("Trilu", domain=MICROSOFT, upper=0), [M], ())],
    ids=lambda value: f"{value.op_type}" if isinstance(value, onnx.NodeProto) else "")
def test_operators_of_onnx_runtime(case: onnx.NodeProto, inputs: list[np.ndarray | None], constants: tuple[int, ...]) -> None:
    check(case, inputs, 17, constants)


@pytest.mark.parametrize(("case", "inputs"), [
    (node("NhwcMaxPool", domain=MICROSOFT, kernel_shape=[2, 2]), [X]),
    (node("SkipLayerNormalization", outputs=2, domain=MICROSOFT), [M, M, f(8)]),
    (node("Attention", domain=MICROSOFT, num_heads=2), [M, f(8, 24), f(24), None, f(2, 2, 2, 5, 4)])])
def test_operators_of_onnx_runtime_that_are_not_known(case: onnx.NodeProto, inputs: list[np.ndarray | None]) -> None:
    made, _ = model(case, inputs, 17)
    with pytest.raises(InfcError, match=case.op_type) as caught:
        normalised(made)
    assert caught.value.node == "the_node"


def test_coordinates_of_roi_align() -> None:
    made, _ = model(node("RoiAlign"), [X, f(2, 4), np.array([0, 1])], 10)
    assert normalised(made).graph[0].attributes["coordinate_transformation_mode"].as_string() == "output_half_pixel"


def test_types_of_constants_follow_the_input() -> None:
    made, feeds = model(node("Clip", min=-0.5, max=0.5), [X.astype(np.float64)], 6)
    assert made.graph.input[0].type.tensor_type.elem_type == TensorProto.DOUBLE
    assert run(ir.to_proto(normalised(made)), feeds)[0].dtype == np.float64


def called(function: onnx.FunctionProto, opset: int) -> onnx.ModelProto:
    """A model of one call of the function."""
    node = helper.make_node(function.name, ["x0"], ["y"], domain=function.domain)
    made, _ = model(node, [X], opset)
    made.functions.append(function)
    if function.domain:
        made.opset_import.append(helper.make_opsetid(function.domain, 1))
    return made


@pytest.mark.parametrize(("own", "opset"), [(11, 17), (17, 11), (12, 23)])
def test_a_function_of_an_opset_in_which_its_operator_means_something_else_is_refused(own: int, opset: int) -> None:
    body = [helper.make_node("Softmax", ["a"], ["b"])]
    function = helper.make_function("own", "Choose", ["a"], ["b"], body, [helper.make_opsetid("", own)])
    with pytest.raises(InfcError, match=rf"E0406: function own::Choose is of opset {own}, its model of {opset}: Softmax"):
        normalised(called(function, opset))


@pytest.mark.parametrize(("own", "opset"), [(13, 17), (17, 13), (11, 11)])
def test_a_function_of_another_opset_that_has_the_same_operators(own: int, opset: int) -> None:
    body = [helper.make_node("Reshape", ["a", "s"], ["c"]), helper.make_node("Softmax", ["c"], ["b"])]
    shape = helper.make_node("Constant", [], ["s"], value=numpy_helper.from_array(np.array([6, 20])))
    function = helper.make_function("own", "Rows", ["a"], ["b"], [shape, *body], [helper.make_opsetid("", own)])
    made = called(function, opset)
    got = run(ir.to_proto(normalised(made)), {"x0": X})
    np.testing.assert_allclose(got[0], run(made, {"x0": X})[0], rtol=1e-5)


def test_a_function_named_like_an_operator_of_onnx_is_none() -> None:
    body = [helper.make_node("Neg", ["a"], ["b"])]
    function = helper.make_function("", "Relu", ["a"], ["b"], body, [helper.make_opsetid("", 17)])
    made = called(function, 17)
    got = run(ir.to_proto(normalised(made)), {"x0": X})
    np.testing.assert_array_equal(got[0], np.maximum(X, 0))
    np.testing.assert_array_equal(got[0], run(made, {"x0": X})[0])
