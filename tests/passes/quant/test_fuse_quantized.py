"""fuse_quantized: products in the Q/DQ form become one operator with the same numbers; what only looks like it stays."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx_ir as ir
import pytest

from infc.passes.fusion.fuse_activation import FuseActivation
from infc.passes.fusion.fuse_conv import FuseConv
from infc.passes.fusion.fuse_linear import FuseLinear
from infc.passes.fusion.fuse_residual import FuseResidual
from infc.passes.fusion.merge_qkv import MergeQkv
from infc.passes.graph import add_constant, at, attribute, dims
from infc.passes.quant import stored
from infc.passes.quant.fuse_quantized import FuseQuantized
from infc.passes.quant.read_quantized import ReadQuantized
from tests.passes.support import Array, apply, find, graph, misses, normal, ops, unchanged

READ = (ReadQuantized, FuseLinear, FuseConv, FuseActivation, FuseResidual, FuseActivation, MergeQkv)


def int8(*shape: int, seed: int = 0) -> Array:
    """Of 7 bits: ONNX Runtime's sums of two products saturate at 16 bits on CPUs without VNNI."""
    return np.random.default_rng([seed, *shape]).integers(-63, 64, shape).astype(np.int8)


def uint8(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng([seed, *shape]).integers(0, 256, shape).astype(np.uint8)


def scales(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng([seed, *shape]).uniform(0.002, 0.01, shape).astype(np.float32)


STATIC = {"xs": np.float32(0.03), "xz": np.uint8(120), "w": int8(8, 16), "ws": scales(16), "b": normal(16),
          "ys": np.float32(0.02), "yz": np.uint8(100)}
HEAD = "(float[batch,seq,8] x) => (float[batch,seq,16] y) { q = QuantizeLinear(x, xs, xz) a = DequantizeLinear(q, xs, xz) "
WEIGHT = "f = DequantizeLinear<axis=1>(w, ws) "


def test_static_per_channel_with_bias_and_activation() -> None:
    model = graph(HEAD + WEIGHT + "m = MatMul(a, f) l = Add(m, b) y = Relu(l) }", STATIC)
    apply(model, *READ, FuseQuantized)
    node = find(model, "QuantizedLinear")
    assert ops(model) == {"QuantizeLinear": 1, "QuantizedLinear": 1}
    assert attribute(node, "activation") == "relu"
    assert [v and v.name for v in node.inputs] == ["q", "xs", "xz", "w", "ws", None, "b"]


def test_a_quantised_result_goes_in() -> None:
    model = graph(HEAD + WEIGHT + "m = MatMul(a, f) l = Add(m, b) r = QuantizeLinear(l, ys, yz) y = DequantizeLinear(r, ys, yz) }",
                  STATIC)
    apply(model, *READ, FuseQuantized, atol=0.021)  # a step, where a rounding error decides
    node = find(model, "QuantizedLinear")
    assert ops(model) == {"QuantizeLinear": 1, "QuantizedLinear": 1, "DequantizeLinear": 1}
    assert node.outputs[0].dtype == ir.DataType.UINT8
    assert at(node, 9) is not None


def test_a_signed_result_without_a_zero_keeps_its_type() -> None:
    model = graph(HEAD + WEIGHT + "m = MatMul(a, f) r = QuantizeLinear<output_dtype=3>(m, ys) y = DequantizeLinear(r, ys) }",
                  STATIC)
    apply(model, *READ, FuseQuantized, atol=0.021)
    assert find(model, "QuantizedLinear").outputs[0].dtype == ir.DataType.INT8


def test_a_result_that_others_read_stays_float() -> None:
    model = graph("(float[batch,seq,8] x) => (float[batch,seq,16] y, float[batch,seq,16] l) { q = QuantizeLinear(x, xs, xz) "
                  "a = DequantizeLinear(q, xs, xz) " + WEIGHT
                  + "m = MatMul(a, f) l = Add(m, b) r = QuantizeLinear(l, ys, yz) y = DequantizeLinear(r, ys, yz) }", STATIC)
    apply(model, *READ, FuseQuantized, atol=0.021)
    assert at(find(model, "QuantizedLinear"), 8) is None
    assert ops(model)["QuantizeLinear"] == 2


def test_a_result_with_scales_of_channels_is_quantised_apart() -> None:
    model = graph(HEAD + WEIGHT + "m = MatMul(a, f) r = QuantizeLinear<axis=2>(m, cs) y = DequantizeLinear<axis=2>(r, cs) }",
                  {**STATIC, "cs": scales(16, seed=3) * 4})
    apply(model, *READ, FuseQuantized, atol=0.05)
    assert at(find(model, "QuantizedLinear"), 8) is None


def test_dynamic_rows_and_a_residual() -> None:
    model = graph("(float[batch,seq,8] x, float[batch,seq,16] r) => (float[batch,seq,16] y) { " + WEIGHT
                  + "m = MatMul(x, f) l = Add(m, b) y = Add(l, r) }", STATIC)
    apply(model, *READ)
    linear = find(model, "Linear")
    x = linear.inputs[0]
    assert x is not None
    quantised = ir.node("QuantizeRows", [x], {"group": 0, "symmetric": 0}, domain="infc", num_outputs=3, name="rows")
    back = ir.node("DequantizeRows", quantised.outputs, {"group": 0}, domain="infc", name="back")
    for value, name, dtype in zip((*quantised.outputs, back.outputs[0]), "qszx", (2, 1, 2, 1), strict=True):
        value.name, value.dtype, value.shape = f"rows.{name}", ir.DataType(dtype), x.shape
    for node in (quantised, back):
        linear.prepend(node)
    linear.replace_input_with(0, back.outputs[0])
    apply(model, FuseQuantized)
    node = find(model, "QuantizedLinear")
    assert at(node, 7) is not None
    assert ops(model) == {"QuantizeRows": 1, "QuantizedLinear": 1}


def test_weights_alone_and_activations_alone() -> None:
    model = graph("(float[batch,seq,8] x) => (float[batch,seq,16] y) { " + WEIGHT + "y = MatMul(x, f) }", STATIC)
    apply(model, *READ, FuseQuantized)
    assert [v and v.name for v in find(model, "QuantizedLinear").inputs] == ["x", None, None, "w", "ws"]
    assert unchanged(graph(HEAD + "y = MatMul(a, p) }", {**STATIC, "p": normal(8, 16)}), FuseQuantized) == []


def test_blocks_along_k() -> None:
    model = graph("(float[batch,seq,64] x) => (float[batch,seq,16] y) { f = DequantizeLinear<axis=0, block_size=32>(w, ws, wz) "
                  "y = MatMul(x, f) }", {"w": uint8(64, 16), "ws": scales(2, 16), "wz": uint8(2, 16, seed=1)})
    apply(model, *READ, FuseQuantized, atol=1e-4)
    assert attribute(find(model, "QuantizedLinear"), "block") == 32


def give_fine_zeros(model: ir.Model, *values: str) -> None:
    """The weights that these are read from have zeros that count sixteenths."""
    for node in [n for n in model.graph if n.outputs[0].name in values]:
        f, weight = node.outputs[0], stored.read(node.outputs[0])
        assert weight is not None
        assert weight.scale is not None
        zero = add_constant(model.graph, f"{f.name}/zero", uint8(*dims(weight.scale)))
        f.replace_all_uses_with(stored.write(replace(weight, zero=zero, fine=True), node, f"{f.name}/dq", dims(f)))
        model.graph.remove(node)


@pytest.mark.parametrize("turned", [False, True])
def test_blocks_with_fine_zeros(turned: bool) -> None:
    how, shape = ("axis=1", (16, 64)) if turned else ("axis=0", (64, 16))
    blocks = (16, 2) if turned else (2, 16)
    model = graph(f"(float[n,64] x) => (float[n,16] y) {{ f = DequantizeLinear<{how}, block_size=32>(w, ws) "
                  + ("t = Transpose<perm=[1,0]>(f) y = MatMul(x, t) }" if turned else "y = MatMul(x, f) }"),
                  {"w": uint8(*shape), "ws": scales(*blocks)})
    give_fine_zeros(model, "f")
    apply(model, *READ, FuseQuantized, atol=1e-3)
    node = find(model, "QuantizedLinear")
    assert ops(model) == {"QuantizedLinear": 1}
    assert attribute(node, "fine_zeros") == 1
    assert dims(node.inputs[5]) == (2, 16)


@pytest.mark.parametrize(("dq", "constants", "why"), [
    ("DequantizeLinear<axis=0>(w, ks)", {"ks": scales(8)}, "axis 0"),
    ("DequantizeLinear<axis=1, block_size=4>(w, bs)", {"bs": scales(8, 4)}, "blocks along axis 1"),
])
def test_scales_along_the_wrong_axis(dq: str, constants: dict[str, Array], why: str) -> None:
    model = graph(HEAD + f"f = {dq} y = MatMul(a, f) }}", {**STATIC, **constants})
    apply(model, *READ)
    assert why in unchanged(model, FuseQuantized)[0]


def test_a_zero_of_the_weight_is_kept() -> None:
    model = graph(HEAD + "f = DequantizeLinear<axis=1>(w, ws, wz) y = MatMul(a, f) }",
                  {**STATIC, "w": uint8(8, 16), "wz": uint8(16, seed=4)})
    apply(model, *READ, FuseQuantized)
    assert at(find(model, "QuantizedLinear"), 5) is not None


def test_a_weight_that_others_read_serves_both() -> None:
    model = graph("(float[batch,seq,8] x, int64[n] i) => (float[batch,seq,16] y, float[n,16] g) { q = QuantizeLinear(x, xs, xz) "
                  "a = DequantizeLinear(q, xs, xz) " + WEIGHT + "y = MatMul(a, f) j = Mod(i, eight) g = Gather(f, j) }",
                  {**STATIC, "eight": np.int64(8)})
    apply(model, *READ, FuseQuantized)
    assert ops(model) == {"QuantizeLinear": 1, "QuantizedLinear": 1, "DequantizeLinear": 1, "Mod": 1, "Gather": 1}


def test_activations_that_others_read_too_and_outputs() -> None:
    model = graph("(float[batch,seq,8] x) => (float[batch,seq,16] y, float[batch,seq,8] a) { q = QuantizeLinear(x, xs, xz) "
                  "a = DequantizeLinear(q, xs, xz) " + WEIGHT + "y = MatMul(a, f) }", STATIC)
    apply(model, *READ, FuseQuantized)
    assert ops(model) == {"QuantizeLinear": 1, "QuantizedLinear": 1, "DequantizeLinear": 1}


def test_a_bias_that_is_computed_is_added_apart() -> None:
    model = graph(HEAD.replace("x)", "x, float[16] c)", 1) + WEIGHT + "m = MatMul(a, f) y = Add(m, c) }", STATIC)
    records = apply(model, *READ, FuseQuantized)
    assert len(misses(records)) == 1
    assert ops(model)["Add"] == 1


def test_gemm_with_the_weight_transposed_and_its_bias_in_int32() -> None:
    model = graph("(float[n,8] x) => (float[n,16] y) { q = QuantizeLinear(x, xs, xz) a = DequantizeLinear(q, xs, xz) "
                  "f = DequantizeLinear<axis=0>(w, ws) c = DequantizeLinear<axis=0>(b, bs) y = Gemm<transB=1>(a, f, c) }",
                  {**STATIC, "w": int8(16, 8), "b": np.arange(-800, 800, 100, dtype=np.int32), "bs": scales(16) * np.float32(0.03)})
    apply(model, *READ, FuseQuantized)
    node = find(model, "QuantizedLinear")
    assert dims(node.inputs[3]) == (8, 16)
    assert ops(model) == {"QuantizeLinear": 1, "QuantizedLinear": 1}


def test_transpose_of_a_weight_in_blocks() -> None:
    model = graph("(float[n,64] x) => (float[n,16] y) { f = DequantizeLinear<axis=1, block_size=32>(w, ws) "
                  "t = Transpose<perm=[1,0]>(f) y = MatMul(x, t) }", {"w": int8(16, 64), "ws": scales(16, 2)})
    apply(model, *READ, FuseQuantized, atol=1e-4)
    assert ops(model) == {"QuantizedLinear": 1}


@pytest.mark.parametrize("last", ["f3 = DequantizeLinear<axis=1>(w3, s3) ", "f3 = DequantizeLinear(w3, one) "])
def test_siblings_are_merged_with_their_scales(last: str) -> None:
    model = graph("(float[batch,seq,8] x) => (float[batch,seq,16] y, float[batch,seq,4] z) { q = QuantizeLinear(x, xs, xz) "
                  "a = DequantizeLinear(q, xs, xz) " + WEIGHT + last + "y = MatMul(a, f) z = MatMul(a, f3) }",
                  {**STATIC, "w3": int8(8, 4, seed=9), "s3": scales(4, seed=2), "one": np.float32(0.004)})
    apply(model, *READ, FuseQuantized)
    assert ops(model) == {"QuantizeLinear": 1, "QuantizedLinear": 1, "Split": 1}


@pytest.mark.parametrize("both", [True, False])
def test_siblings_with_fine_zeros_are_merged_if_both_have_such(both: bool) -> None:
    model = graph("(float[batch,seq,8] x) => (float[batch,seq,16] y, float[batch,seq,4] z) { "
                  "f = DequantizeLinear<axis=0, block_size=4>(w, s) f3 = DequantizeLinear<axis=0, block_size=4>(w3, s3) "
                  "y = MatMul(x, f) z = MatMul(x, f3) }",
                  {"w": uint8(8, 16), "s": scales(2, 16), "w3": uint8(8, 4, seed=9), "s3": scales(2, 4, seed=2)})
    give_fine_zeros(model, *("f", "f3")[:1 + both])
    apply(model, *READ, FuseQuantized, atol=1e-3)
    assert ops(model)["QuantizedLinear"] == 2 - both


def test_siblings_of_which_one_has_zeros_stay_apart() -> None:
    model = graph("(float[batch,seq,8] x) => (float[batch,seq,16] y, float[batch,seq,4] z) { " + WEIGHT
                  + "f3 = DequantizeLinear<axis=1>(w3, s3, z3) y = MatMul(x, f) z = MatMul(x, f3) }",
                  {**STATIC, "w3": int8(8, 4, seed=9), "s3": scales(4, seed=2), "z3": int8(4, seed=5)})
    apply(model, *READ, FuseQuantized)
    assert ops(model)["QuantizedLinear"] == 2


CONV = {"xs": np.float32(0.03), "xz": np.uint8(120), "w": int8(6, 4, 3, 3), "ws": scales(6), "b": normal(6), "ys": np.float32(0.05),
        "yz": np.uint8(110)}


def test_conv_with_padding_and_a_quantised_result() -> None:
    model = graph("(float[batch,4,9,9] x) => (float[batch,6,9,9] y) { q = QuantizeLinear(x, xs, xz) "
                  "a = DequantizeLinear(q, xs, xz) f = DequantizeLinear<axis=0>(w, ws) c = Conv<pads=[1,1,1,1]>(a, f, b) "
                  "e = Relu(c) "
                  "r = QuantizeLinear(e, ys, yz) y = DequantizeLinear(r, ys, yz) }", CONV)
    apply(model, *READ, FuseQuantized, atol=0.051)
    node = find(model, "QuantizedConv")
    assert attribute(node, "activation") == "relu"
    assert list(attribute(node, "pads")) == [1, 1, 1, 1]
    assert ops(model) == {"QuantizeLinear": 1, "QuantizedConv": 1, "DequantizeLinear": 1}


def test_integers_of_other_runtimes() -> None:
    model = graph("(float[batch,4,9,9] x) => (float[batch,6,9,9] y) { q = QuantizeLinear(x, xs, xz) "
                  "r = QLinearConv<pads=[1,1,1,1]>(q, xs, xz, w, ws, wz, ys, yz, b) y = DequantizeLinear(r, ys, yz) }",
                  {**CONV, "wz": np.zeros(6, np.int8), "b": np.arange(-300, 300, 100, dtype=np.int32)})
    apply(model, *READ, FuseQuantized, atol=0.051)
    assert ops(model) == {"QuantizeLinear": 1, "QuantizedConv": 1, "DequantizeLinear": 1}

    model = graph("(float[batch,seq,8] x) => (float[batch,seq,16] y) { q = QuantizeLinear(x, xs, xz) "
                  "r = QLinearMatMul(q, xs, xz, w, ws, wz, ys, yz) y = DequantizeLinear(r, ys, yz) }",
                  {**STATIC, "ws": np.float32(0.01), "wz": np.int8(0)})
    apply(model, *READ, FuseQuantized, atol=0.021)
    assert ops(model) == {"QuantizeLinear": 1, "QuantizedLinear": 1, "DequantizeLinear": 1}


DYNAMIC = "(float[batch,seq,8] x) => (float[batch,seq,16] y) { q, s, z = DynamicQuantizeLinear(x) p = MatMulInteger(q, w, z) " \
          "c = Cast<to=1>(p) "


@pytest.mark.parametrize("scaling", ["t = Mul(s, ws) y = Mul(c, t) }", "t = Mul(c, s) y = Mul(t, ws) }",
                                     "t = Mul(ws, c) y = Mul(t, s) }"])
def test_dynamic_integers(scaling: str) -> None:
    model = graph(DYNAMIC + scaling, STATIC)
    apply(model, *READ, FuseQuantized)
    node = find(model, "QuantizedLinear")
    assert ops(model) == {"DynamicQuantizeLinear": 1, "QuantizedLinear": 1}
    assert dims(node.inputs[1]) == ()


def test_dynamic_integers_with_other_factors_stay() -> None:
    model = graph(DYNAMIC + "t = Mul(c, ws) y = Mul(t, other) }", {**STATIC, "other": np.float32(0.5)})
    assert "factors" in " ".join(unchanged(model, *READ))


def test_a_weight_quantised_in_the_graph_is_stored() -> None:
    model = graph(HEAD + "wq = QuantizeLinear<axis=1>(wf, ws, wz) f = DequantizeLinear<axis=1>(wq, ws, wz) y = MatMul(a, f) }",
                  {**STATIC, "wf": normal(8, 16) * np.float32(0.5), "wz": np.zeros(16, np.int8)})
    apply(model, *READ, FuseQuantized)
    assert ops(model) == {"QuantizeLinear": 1, "QuantizedLinear": 1}
