"""Models as ONNX Runtime's optimizer leaves them: its operators in a row, without shapes between them."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper, numpy_helper

from infc.compiler.pipeline import CLEANUP, PIPELINES
from tests.passes.support import Array, apply, find, normal, ops, unchanged

MICROSOFT = "com.microsoft"
BATCH, SEQ, WIDTH, HEADS = "batch", "seq", 8, 2


def model(nodes: list[onnx.NodeProto], constants: dict[str, Array], inputs: dict[str, tuple[int, list[int | str]]], output: str,
          shape: list[int | str]) -> ir.Model:
    values = [helper.make_tensor_value_info(name, dtype, dims) for name, (dtype, dims) in inputs.items()]
    for number, node in enumerate(nodes):
        node.name = node.name or f"n{number}"
    graph = helper.make_graph(nodes, "g", values, [helper.make_tensor_value_info(output, onnx.TensorProto.FLOAT, shape)],
                              [numpy_helper.from_array(v, k) for k, v in constants.items()])
    return ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid(MICROSOFT, 1)],
                                           ir_version=8))


def node(op_type: str, inputs: list[str], output: str | list[str], **attributes: object) -> onnx.NodeProto:
    domain = "" if op_type in ("Cast", "MatMul", "ReduceSum", "Add") else MICROSOFT
    return helper.make_node(op_type, inputs, [output] if isinstance(output, str) else output, domain=domain, **attributes)


def embedded(lengths: list[onnx.NodeProto], mask_index: str, mask: list[int | str] = [BATCH, SEQ]) -> ir.Model:  # noqa: B006
    """Tables, a norm and an attention whose mask ``mask_index`` the nodes ``lengths`` make."""
    i64, f32 = onnx.TensorProto.INT64, np.float32
    constants = {"words": normal(10, WIDTH), "places": normal(9, WIDTH, seed=1), "gamma": np.full(WIDTH, 1.5, f32),
                 "beta": normal(WIDTH, seed=2), "w": normal(WIDTH, 3 * WIDTH), "b": normal(3 * WIDTH), "along": np.array([1]),
                 "across": np.array([0])}
    nodes = [node("Cast", ["input_ids"], "ids", to=6), node("Cast", ["attention_mask"], "mask", to=6),
             node("EmbedLayerNormalization", ["ids", "", "words", "places", "", "gamma", "beta", "mask"], ["x", "counted"],
                  epsilon=1e-5),
             *lengths, node("Attention", ["x", "w", "b", mask_index], "y", num_heads=HEADS)]
    return model(nodes, constants, {"input_ids": (i64, [BATCH, SEQ]), "attention_mask": (i64, mask)}, "y", [BATCH, SEQ, WIDTH])


PACKED = {"PackTokens": 1, "PackRows": 1, "EmbeddingSum": 1, "LayerNormalization": 1, "Linear": 1, "Split": 1, "VarlenAttention": 1,
          "UnpackRows": 1}


def compiled(made: ir.Model) -> dict[str, int]:
    from infc.passes.base import PassManager

    PassManager(PIPELINES["cpu"]).run(made)
    return dict(ops(made))


def test_counted_tokens_are_padding() -> None:
    assert compiled(embedded([], "counted")) == PACKED


def test_summed_tokens_are_padding() -> None:
    assert compiled(embedded([node("ReduceSum", ["mask", "along"], "summed", keepdims=0)], "summed")) == PACKED


def test_a_sum_over_sequences_is_no_padding() -> None:
    """[seq] numbers, of which the operator takes one a sequence: nothing that a mask says."""
    made = embedded([node("ReduceSum", ["mask", "across"], "summed", keepdims=0)], "summed", [BATCH, BATCH])
    assert compiled(made).get("PackTokens") is None


def test_shapes_are_found_operator_by_operator() -> None:
    """FusedMatMul asks for the rank of what operators of ONNX Runtime made."""
    nodes = [node("FusedMatMul", ["x", "w0"], "a", alpha=0.5), node("FusedMatMul", ["a", "w1"], "b", transB=1),
             node("BiasGelu", ["b", "bias"], "c"), node("FusedMatMul", ["c", "w2"], "y", transB=1)]
    constants = {"w0": normal(8, 6), "w1": normal(5, 6, seed=1), "bias": normal(5), "w2": normal(4, 5)}
    made = model(nodes, constants, {"x": (onnx.TensorProto.FLOAT, [BATCH, SEQ, 8])}, "y", [BATCH, SEQ, 4])
    apply(made, *CLEANUP)
    assert {n.domain for n in made.graph} == {""}
    assert ops(made)["MatMul"] == 3


def test_the_bias_of_a_norm_goes_to_the_product() -> None:
    nodes = [node("MatMul", ["x", "w"], "p"),
             node("SkipLayerNormalization", ["x", "p", "gamma", "beta", "bias"], "y", epsilon=1e-5)]
    constants = {"w": normal(8, 8), "gamma": normal(8), "beta": normal(8, seed=1), "bias": normal(8, seed=2)}
    for order in (["x", "p"], ["p", "x"]):
        nodes[1].input[:2] = order
        made = model(nodes, constants, {"x": (onnx.TensorProto.FLOAT, [BATCH, SEQ, 8])}, "y", [BATCH, SEQ, 8])
        apply(made, *PIPELINES["cpu"])
        assert dict(ops(made)) == {"Linear": 1, "LayerNormalization": 1}
        assert [v is not None for v in find(made, "Linear").inputs] == [True] * 4
        assert unchanged(made, *PIPELINES["cpu"]) == []


def test_branches_may_share_names() -> None:
    """Names are a graph's own in ONNX; here each value gets one."""
    from tests.passes.support import graph

    text = """(bool c, float[n] x) => (float[n] y) { y = If(c) <
        then_branch = a () => (float[n] r) { t = Abs(x) r = Neg(t) },
        else_branch = b () => (float[n] r) { t = Exp(x) r = Sqrt(t) }> }"""
    made = graph(text)
    apply(made, *CLEANUP)
    names = [v.name for g in made.graphs() for n in g for v in n.outputs]
    assert len(set(names)) == len(names)
