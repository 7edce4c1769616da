"""Wrong graphs: our message names the node and the rule before TensorRT says less, or builds something else."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from infc.compiler.errors import UnsupportedError
from infc.plugins.tensorrt.legalise import Request, legalise
from infc.plugins.tensorrt.legalise.problems import RULES, SHOWN
from tests.plugins.tensorrt.legalise.support import Array, build, graph

SAME = "(float[4, 8] x) => (float[4, 8] y)"


REQUEST = Request(sms=(89,))


@dataclass(frozen=True)
class Wrong:
    """``native`` is part of what TensorRT says by itself; empty where it builds an engine without a word."""

    text: str
    rule: str
    where: str
    says: str
    native: str
    constants: dict[str, Array] = field(default_factory=dict)
    request: Request = REQUEST


S, ZERO = np.float32(0.1), np.int8(0)
WRONG = {
    "zero point that is not zero": Wrong(
        f"{SAME} {{ q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, s, z) }}", "zero point", "n_q", "'z' is not zero",
        "Non-zero zero point", {"s": S, "z": np.int8(5)}),
    "zero point that is computed": Wrong(
        "(float[4, 8] x, int8 z) => (float[4, 8] y) { q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, s, z) }",
        "zero point", "n_q", "'z' is computed", "not an initializer", {"s": S}),
    "uint8, which would be int8": Wrong(
        f"{SAME} {{ q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, s, z) }}", "quantised type", "n_q", "to uint8",
        "", {"s": S, "z": np.uint8(0)}),
    "uint8 by default, which would be int8": Wrong(
        f"{SAME} {{ q = QuantizeLinear(x, s) y = DequantizeLinear(q, s) }}", "quantised type", "n_q", "to uint8", "", {"s": S}),
    "activations per channel": Wrong(
        f"{SAME} {{ q = QuantizeLinear<axis = 1>(x, s, z) y = DequantizeLinear<axis = 1>(q, s, z) }}", "scale", "n_q",
        "per channel", "", {"s": np.linspace(0.1, 0.2, 8, dtype=np.float32), "z": np.zeros(8, np.int8)}),
    "scale that is computed": Wrong(
        "(float[4, 8] x, float s) => (float[4, 8] y) { q = QuantizeLinear<output_dtype = 3>(x, s) y = DequantizeLinear(q, s) }",
        "scale", "n_q", "when the model runs", ""),
    "scale of zero": Wrong(
        f"{SAME} {{ q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, s, z) }}", "scale", "n_q",
        "not a positive number", "must all be positive", {"s": np.float32(0), "z": ZERO}),
    "scale without end": Wrong(
        f"{SAME} {{ q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, s, z) }}", "scale", "n_q",
        "not a positive number", "", {"s": np.float32(np.inf), "z": ZERO}),
    "scales of another axis": Wrong(
        "(float[4, 8] x) => (float[4, 4] y) { d = DequantizeLinear<axis = 0>(w, s) y = MatMul(x, d) }", "scale", "n_d",
        "4 scales along axis 0 of [8, 4], which has size 8", "number of",
        {"s": np.full(4, 0.1, np.float32), "w": np.ones((8, 4), np.int8)}),
    "scales of no axis": Wrong(
        "(float[4, 8] x) => (float[4, 4] y) { d = DequantizeLinear<axis = 2>(w, s) y = MatMul(x, d) }", "scale", "n_d",
        "which does not exist", "axis", {"s": np.full(4, 0.1, np.float32), "w": np.ones((8, 4), np.int8)}),
    "nine dimensions": Wrong(
        "(float[1, 1, 1, 1, 1, 1, 1, 1, 2] x) => (float[1, 1, 1, 1, 1, 1, 1, 1, 2] y) { y = Neg(x) }", "rank", "'x'",
        "9 dimensions", "dimensions"),
    "an input that is an output": Wrong(
        "(float[2] x) => (float[2] y, float[2] x) { y = Neg(x) }", "name", "'x'", "an input and an output", ""),
    "int4 activations": Wrong(
        f"{SAME} {{ q = QuantizeLinear<output_dtype = 22>(x, s) y = DequantizeLinear(q, s) }}", "quantised type", "n_q",
        "activation to int4", "", {"s": S}),
    "fp8 of another kind": Wrong(
        f"{SAME} {{ q = QuantizeLinear<output_dtype = 19>(x, s) y = DequantizeLinear(q, s) }}", "quantised type", "n_q",
        "to float8e5m2", "unsupported data type", {"s": S}),
    "QLinearMatMul": Wrong(
        "(int8[4, 8] x) => (int8[4, 4] y) { y = QLinearMatMul(x, s, z, w, s, z, s, z) }", "quantised operator", "n_y",
        "QLinearMatMul", "false", {"s": S, "z": ZERO, "w": np.ones((8, 4), np.int8)}),
    "MatMulInteger": Wrong(
        "(int8[4, 8] x) => (int32[4, 4] y) { y = MatMulInteger(x, w) }", "quantised operator", "n_y", "MatMulInteger", "false",
        {"w": np.ones((8, 4), np.int8)}),
    "DynamicQuantizeLinear": Wrong(
        f"{SAME} {{ q, s, z = DynamicQuantizeLinear(x) y = DequantizeLinear(q, s, z) }}", "quantised operator", "n_q",
        "DynamicQuantizeLinear", "false"),
    "half against float": Wrong(
        "(float[4, 8] x, float16[4, 8] h) => (float[4, 8] y) { y = Add(x, h) }", "mixed types", "n_y", "FLOAT and FLOAT16",
        "same input types"),
    "dynamic shape": Wrong(
        "(float[n, 8] x) => (float[n, 8] y) { y = Neg(x) }", "dynamic shape", "'x'", "[n,8]", "no optimization profile"),
    "shape that depends on data": Wrong(
        "(float[8] x) => (int64 y) { k = NonZero(x) y = Size(k) }", "dynamic shape", "n_k", "[1,", "NonZero"),
    "operator that there is not": Wrong(
        "(int32[8] x) => (int32[8] y) { y = BitwiseAnd(x, x) }", "operator", "n_y", "BitwiseAnd", "false"),
    "control flow": Wrong(
        "(bool c, float[2] x) => (float[2] y) { y = If<then_branch = a () => (float[2] r) { r = Neg(x) }, "
        "else_branch = b () => (float[2] s) { s = Abs(x) }>(c) }", "control flow", "n_y", "If is control flow", ""),
    "sequences": Wrong(
        "(float[2] x) => (float[2] y) { s = SequenceConstruct(x) y = ConcatFromSequence<axis = 0>(s) }", "operator", "n_s",
        "SequenceConstruct", "false"),
    "int16": Wrong(
        "(float[8] x) => (float[8] y) { i = Cast<to = 5>(x) y = Cast<to = 1>(i) }", "type", "n_i", "no int16", "upported"),
    "arithmetic in uint8": Wrong(
        "(uint8[8] x) => (uint8[8] y) { y = Add(x, x) }", "type", "n_y", "into a Cast only", "UInt8"),
    "float64 at the border, which would be float32": Wrong(
        "(double[8] x) => (double[8] y) { y = Neg(x) }", "type", "'x'", "float64", ""),
    "bf16 on SM 75": Wrong(
        f"{SAME} {{ y = Neg(x) }}", "type on SM", "--precision", "bf16 needs SM 80", "", request=Request("bf16", sms=(75, 86))),
    "fp8 on SM 86": Wrong(
        f"{SAME} {{ q = QuantizeLinear<output_dtype = 17>(x, s) y = DequantizeLinear(q, s) }}", "type on SM", "n_q",
        "fp8 needs SM 89", "", {"s": S}, Request(sms=(86, 89))),
    "blocks that do not divide": Wrong(
        "(float[4, 48] x) => (float[4, 8] y) { w = DequantizeLinear<axis = 0, block_size = 32>(q, s) y = MatMul(x, w) }", "block",
        "n_w", "blocks of 32 do not divide", "", {"s": np.ones((1, 8), np.float32), "q": np.ones((48, 8), np.int8)}),
    "types that ONNX lets differ": Wrong(
        "(float16[1, 3, 8, 8] x, float[1, 4, 4, 2] g) => (float16[1, 3, 4, 4] y) { y = GridSample(x, g) }", "mixed types", "n_y",
        "FLOAT16 and FLOAT", "must be of same type"),
    "attention masked by integers": Wrong(
        "(float[1, 2, 4, 16] q, int64[4, 4] m) => (float[1, 2, 4, 16] y) { y = Attention(q, q, q, m) }", "attention", "n_y",
        "neither a float type nor bool", "must have type"),
    "attention weights": Wrong(
        "(float[1, 2, 4, 16] q) => (float[1, 2, 4, 16] y, float[1, 2, 4, 4] w) { y, k, v, w = Attention(q, q, q) }", "attention",
        "n_y", "scores are an output", "one output"),
}


def _graph(wrong: Wrong) -> ir.Model:
    return graph(wrong.text, wrong.constants, 23)


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG.keys())
def test_a_wrong_graph_is_refused_with_node_and_rule(wrong: Wrong) -> None:
    with pytest.raises(UnsupportedError) as raised:
        legalise(_graph(wrong), wrong.request)
    assert raised.value.code == f"INFC-{RULES[wrong.rule]}"
    assert raised.value.where == wrong.where
    assert raised.value.message.startswith(f"[{wrong.rule}] ")
    assert wrong.says in raised.value.message
    assert raised.value.hint


def test_tensorrt_says_less_or_nothing(tmp_path: Path) -> None:
    judged = {k: w for k, w in WRONG.items() if w.request is REQUEST and not k.startswith("blocks")}
    said = dict(zip(judged, build(tmp_path, *map(_graph, judged.values())), strict=True))
    assert {k: s for k, s in said.items() if (judged[k].native not in s if judged[k].native else s)} == {}


def test_names_longer_than_tensorrt_takes_are_refused() -> None:
    model = graph(f"{SAME} {{ y = Neg(x) }}")
    model.graph.inputs[0].name = "n" * 5000
    with pytest.raises(UnsupportedError, match="longer than 4096 bytes") as raised:
        legalise(model, REQUEST)
    assert len(str(raised.value)) < 500


def test_all_problems_are_in_one_message() -> None:
    nodes = " ".join(f"a{i} = BitwiseNot({'x' if i == 0 else f'a{i - 1}'})" for i in range(SHOWN + 3))
    with pytest.raises(UnsupportedError) as raised:
        legalise(graph(f"(int32[8] x) => (int32[8] a{SHOWN + 2}) {{ {nodes} }}"), Request(sms=(89,)))
    assert raised.value.where == "n_a0"
    assert raised.value.message.count("also at") == SHOWN - 1
    assert raised.value.message.endswith("and 3 more")
    assert raised.value.hint.count("write it with other operators") == 1


@pytest.mark.parametrize(("domain", "rule"), [("com.microsoft", "quantised operator"), ("infc", "domain"), ("other", "domain")])
def test_operators_of_other_domains_are_refused(domain: str, rule: str) -> None:
    node = ir.node("MatMulNBits", [ir.val("x", ir.DataType.FLOAT, (4, 8))], domain=domain, name="them",
                   outputs=[ir.val("y", ir.DataType.FLOAT, (4, 8))])
    model = ir.Model(ir.Graph(node.inputs, node.outputs, nodes=[node], opset_imports={"": 23, domain: 1}, name="g"), ir_version=10)
    if domain == "infc":
        node.op_type = "Linear"
    elif domain == "other":
        node.op_type = "Thing"
    with pytest.raises(UnsupportedError, match=node.op_type) as raised:
        legalise(model, Request(sms=(89,)))
    assert raised.value.code == f"INFC-{RULES[rule]}"


def test_a_dynamic_graph_needs_the_sizes_of_what_is_written_out() -> None:
    request = Request(sms=(89,), dynamic=True)
    for text, says in (("(float[n, 8] x) => (float[4, 4] y) { y = CenterCropPad(x, s) }", "known sizes"),
                       ("(float[1, h, 4, 16] q) => (float[1, h, 4, 16] y) { y = Attention(q, q, q) }", "its heads")):
        with pytest.raises(UnsupportedError, match=says):
            legalise(graph(text, {"s": np.array([4, 4])}), request)


def test_right_graphs_pass() -> None:
    weights = {"s": S, "z": ZERO, "w": np.ones((8, 4), np.int8), "ws": np.full(4, 0.1, np.float32), "wz": np.zeros(4, np.int8)}
    text = ("(float[4, 8] x) => (float[4, 4] y) { q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) "
            "e = DequantizeLinear<axis = 1>(w, ws, wz) y = MatMul(d, e) }")
    legalise(graph(text, weights), Request(sms=(75,)))
    legalise(graph("(float[n, 8] x) => (float[n, 8] y) { y = Neg(x) }"), Request(sms=(75,), dynamic=True))


def test_zero_points_may_come_from_constant_nodes() -> None:
    proto = ir.to_proto(graph(f"{SAME} {{ q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, s, z) }}", {"s": S, "z": ZERO}))
    zero = proto.graph.initializer.pop()
    proto.graph.node.insert(0, onnx.helper.make_node("Constant", [], ["z"], value=zero))
    found = legalise(ir.from_proto(proto), Request(sms=(89,))).model
    assert "z" in found.graph.initializers
