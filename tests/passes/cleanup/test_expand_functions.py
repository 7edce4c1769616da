"""Nodes are replaced by their definitions, and the graph computes what it did."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from infc.compiler.errors import UnsupportedError
from infc.passes.base import PassManager, verify
from infc.passes.cleanup.expand_functions import expand_functions
from infc.passes.cleanup.normalise import Normalise
from infc.passes.graph import FUSED

X = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)


def graph(nodes: list[onnx.NodeProto], opset: int = 23, x: np.ndarray = X, domains: dict[str, int] | None = None) -> ir.Model:
    values = [helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)]
    outputs = [helper.make_empty_tensor_value_info(n) for n in nodes[-1].output if n]
    imports = [helper.make_opsetid(d, v) for d, v in {"": opset, **(domains or {})}.items()]
    made = ir.from_proto(helper.make_model(helper.make_graph(nodes, "g", values, outputs), opset_imports=imports, ir_version=10))
    PassManager([Normalise]).run(made)
    return made


def same(model: ir.Model, op_type: str, x: np.ndarray = X, count: int = 1) -> ir.Model:
    """Expands and compares; the expanded graph."""
    want = ReferenceEvaluator(ir.to_proto(model)).run(None, {"x": x})
    assert len(expand_functions(model, lambda node: node.op_type == op_type)) == count
    verify(model.graph, "expand_functions")
    assert op_type not in {n.op_type for n in model.graph}
    for got, expected in zip(ReferenceEvaluator(ir.to_proto(model)).run(None, {"x": x}), want, strict=True):
        assert got.dtype == expected.dtype
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
    return model


@pytest.mark.parametrize("node", [
    helper.make_node("MeanVarianceNormalization", ["x"], ["y"], axes=[0, 2]), helper.make_node("Celu", ["x"], ["y"], alpha=0.5),
    helper.make_node("Softmax", ["x"], ["y"], axis=1), helper.make_node("HardSigmoid", ["x"], ["y"], alpha=0.3),
    helper.make_node("ThresholdedRelu", ["x"], ["y"]), helper.make_node("Shrink", ["x"], ["y"], lambd=0.2, bias=0.1)])
@pytest.mark.parametrize("opset", [18, 23])
def test_definitions(node: onnx.NodeProto, opset: int) -> None:
    same(graph([node], opset), node.op_type)


@pytest.mark.parametrize("softcap", [0.0, 0.5, -1.0, float("-inf"), float("nan")])
def test_a_softcap_that_is_not_positive_is_none(softcap: float) -> None:
    node = helper.make_node("Attention", ["x", "x", "x"], ["y"], q_num_heads=2, kv_num_heads=2, softcap=softcap)
    same(graph([node]), "Attention")


def test_provenance_and_names() -> None:
    nodes = [helper.make_node("Celu", ["x"], ["a"], name="one"), helper.make_node("Celu", ["a"], ["y"], name="two")]
    model = same(graph(nodes), "Celu", count=2)
    assert {n.metadata_props[FUSED] for n in model.graph} == {"one", "two"}
    assert {n.name.split("/")[0] for n in model.graph if n.name} == {"one", "two"}


def test_only_what_is_wanted() -> None:
    model = graph([helper.make_node("Celu", ["x"], ["a"], name="one"), helper.make_node("Celu", ["a"], ["y"], name="two")])
    assert expand_functions(model, lambda node: node.name == "two") == ["two"]
    assert [n.name for n in model.graph if n.op_type == "Celu"] == ["one"]
    assert expand_functions(model, lambda node: node.op_type == "MatMul") == []


def test_what_has_no_definition_stays() -> None:
    model = graph([helper.make_node("Neg", ["x"], ["y"])])
    assert expand_functions(model, lambda node: True) == []
    assert [n.op_type for n in model.graph] == ["Neg"]


def forest(**changes: Any) -> onnx.NodeProto:
    """Two trees over two targets: x[0] <= 0.5 then x[1] > -0.5, and a comparison by ``mode``."""
    settings: dict[str, Any] = {
        "n_targets": 2, "nodes_featureids": [0, 1, 2], "nodes_truenodeids": [1, 0, 3], "nodes_trueleafs": [0, 1, 1],
        "nodes_falsenodeids": [2, 1, 4], "nodes_falseleafs": [1, 1, 1], "tree_roots": [0, 2], "leaf_targetids": [0, 1, 0, 1, 0],
        "modes": [0, 3, 0], "splits": [0.5, -0.5, 0.25], "weights": [1.0, 2.0, 3.0, 4.0, 5.0], **changes}
    splits, weights = (np.array(settings.pop(n), np.float32) for n in ("splits", "weights"))
    tensors = {"nodes_splits": splits, "leaf_weights": weights, "nodes_modes": np.array(settings.pop("modes"), np.uint8)}
    if "members" in settings:
        tensors["membership_values"] = np.array(settings.pop("members"), np.float32)
    return helper.make_node("TreeEnsemble", ["x"], ["y"], domain="ai.onnx.ml", name="trees", **settings,
                            **{n: numpy_helper.from_array(a) for n, a in tensors.items()})


ROWS = np.array([[0.5, -1, 0.25], [0.5, 1, 0.3], [1, 1, -3], [0.75, 0, 0.25], [0, -0.5, 7]], np.float32)


@pytest.mark.parametrize("changes", [
    {}, {"aggregate_function": 1, "post_transform": 0}, {"aggregate_function": 0},
    *({"modes": [0, 3, mode]} for mode in (1, 2, 3, 4, 5)),
    {"modes": [0, 3, 6], "members": [0.25, -3, np.nan]}])
def test_trees(changes: dict[str, Any]) -> None:
    same(graph([forest(**changes)], x=ROWS, domains={"ai.onnx.ml": 5}), "TreeEnsemble", ROWS)


@pytest.mark.parametrize(("how", "of"), [(2, np.minimum), (3, np.maximum)])
def test_the_least_and_the_largest_of_trees(how: int, of: Any) -> None:
    changes = {"aggregate_function": how, "n_targets": 1, "leaf_targetids": [0] * 5}
    model = graph([forest(**changes)], x=ROWS, domains={"ai.onnx.ml": 5})
    expand_functions(model, lambda node: True)
    first = np.where(ROWS[:, 0] <= 0.5, np.where(ROWS[:, 1] > -0.5, 1, 2), 3)
    second = np.where(ROWS[:, 2] <= 0.25, 4, 5)
    np.testing.assert_array_equal(ReferenceEvaluator(ir.to_proto(model)).run(None, {"x": ROWS})[0][:, 0], of(first, second))


def test_missing_values_of_trees() -> None:
    rows = np.array([[np.nan, 0, 0], [np.nan, -1, np.nan]], np.float32)
    model = graph([forest(nodes_missing_value_tracks_true=[1, 0, 0])], x=rows, domains={"ai.onnx.ml": 5})
    expand_functions(model, lambda node: True)
    np.testing.assert_array_equal(ReferenceEvaluator(ir.to_proto(model)).run(None, {"x": rows})[0], [[1, 4], [5, 2]])


@pytest.mark.parametrize("changes", [
    {"post_transform": 4}, {"nodes_truenodeids": [0, 0, 3]}, {"nodes_truenodeids": [99, 0, 3]}, {"nodes_truenodeids": [1, 99, 3]},
    {"nodes_featureids": [0]}, {"leaf_targetids": [0, 1, 0, 1, 7]}, {"modes": [0, 3, 6]}, {"modes": [0, 3, 9]},
    {"aggregate_function": 2, "leaf_targetids": [0] * 5}, {"tree_roots": [0, 9]}])
def test_forests_that_are_none(changes: dict[str, Any]) -> None:
    model = graph([forest(**changes)], x=ROWS, domains={"ai.onnx.ml": 5})
    with pytest.raises(UnsupportedError, match="TreeEnsemble") as caught:
        expand_functions(model, lambda node: True)
    assert caught.value.node == "trees"


def test_types_of_a_body_are_those_of_the_node() -> None:
    x = X.astype(np.float64)
    model = same(graph([helper.make_node("Softmax", ["x"], ["y"])], x=x), "Softmax", x)
    assert {v.dtype for n in model.graph for v in n.outputs} == {ir.DataType(TensorProto.DOUBLE)}
