"""Small artifacts that together have every operator but those of text: what is mutated, and run while allocations fail.

``python -m tests.fuzz.subjects FOLDER`` writes them, as a corpus of the coverage-guided fuzzers.
"""

from __future__ import annotations

import functools
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
from onnx import numpy_helper

from tests.conformance import node_cases
from tests.plugins.cpu.graphs import parse
from tests.plugins.cpu.harness import compile_model, native_isas

# Operators of packed tokens, which models of text have.
OF_TEXT = {"embed_sum", "pack_tokens", "gather_rows", "scatter_rows", "segment_reduce", "sum_until", "grow", "crop"}
OF_LANGUAGE = {"cache_write", "cache_attention"}  # of models that the C program makes itself
# Node cases of onnx whose kernels differ in operator or element types.
CASES = (
    "ai_onnx_ml_tree_ensemble_set_membership", "argmax_no_keepdims_random", "attention_4d_gqa_attn_mask", "bitcast_int8_to_uint8",
    "bitshift_left_uint64", "bitshift_right_int16", "cast_FLOAT_to_INT4", "cast_INT2_to_FLOAT",
    "cast_no_saturate_FLOAT_to_FLOAT8E4M3FNUZ", "castlike_FLOAT16_to_FLOAT8E4M3FN", "causal_conv_with_state_silu_fp16",
    "convinteger_with_padding", "convtranspose_1d", "cumsum_1d_int32_exclusive", "dequantizelinear_e4m3fn_zero_point",
    "dequantizelinear_float4e2m1", "dequantizelinear_int16", "det_nd", "dft_axis_opset19", "einsum_transpose",
    "gathernd_example_int32_batch_dim1",
    "gridsample_bilinear_align_corners_1_additional_1", "if", "isnan_float16", "lstm_reverse", "maxpool_3d_dilations", "min_uint16",
    "mod_uint32", "pow_types_int32_float32", "qlinearmatmul_3D_uint8_float16", "reduce_log_sum_exp_negative_axes_keepdims_example",
    "reflect_pad", "resize_upsample_scales_linear", "reversesequence_bfloat16", "rms_normalization_4d_axis_negative_1",
    "roialign_mode_max", "scatter_elements_with_negative_indices", "scatternd_add", "sce_NCd1_mean_weight_negative_ii",
    "tfidfvectorizer_tf_onlybigrams_levelempty", "top_k_uint64")
# Loops by a number of trips and by a condition, one in the other, that read and write by the iteration; two recurrent layers;
# a convolution by transforms.
MODELS = {
    "loops": """<ir_version: 9, opset_import: ["": 18]>
loops (int64 trips, bool start, float[6, 5] table, float[5] first) => (float[5] last, float[5] other)
<float limit = {100}, int64 two = {2}, int64[1] axis = {0}, float half = {0.5}>
{
  last = Loop (trips, start, first) <body = outer (int64 i, bool go, float[5] v) => (bool on, float[5] w)
  {
    total = ReduceSum <keepdims = 0> (v, axis)
    on = Less (total, limit)
    row = Gather <axis = 0> (table, i)
    u = Add (v, row)
    w = Loop (two, on, u) <body = inner (int64 j, bool go2, float[5] a) => (bool on2, float[5] b)
    {
      on2 = Identity (go2)
      scaled = Mul (a, half)
      b = If (on) <then_branch = yes () => (float[5] p) { p = Neg (scaled) }, else_branch = no () => (float[5] q) { q = Abs (a) }>
    }>
  }>
  three = Add (trips, two)
  other = If (start) <then_branch = t () => (float[5] r) { r = Sin (first) },
                      else_branch = e () => (float[5] s) { s = Abs (first) }>
}
""",
    "scan": """<ir_version: 9, opset_import: ["": 18]>
scan (float[4] state, float[5000, 4] rows) => (float[4] end, float[5000, 4] all)
{
  end, all = Scan <num_scan_inputs = 1, body = step (float[4] s, float[4] x) => (float[4] t, float[4] y)
  {
    both = Mul (s, x)
    t = Tanh (both)
    y = Add (t, x)
  }> (state, rows)
}
""",
    "recurrent": """<ir_version: 9, opset_import: ["": 14]>
recurrent (float[3, 2, 5] x, int32[2] lengths) => (float[3, 2, 2, 4] y, float[1, 2, 3] last)
<float[2, 12, 5] w, float[2, 12, 4] r, float[1, 3, 5] wr, float[1, 3, 3] rr>
{
  y = GRU <hidden_size = 4, direction = "bidirectional", linear_before_reset = 1> (x, w, r, , lengths)
  all, last = RNN <hidden_size = 3, direction = "reverse"> (x, wr, rr)
}
""",
    "winograd": """<ir_version: 9, opset_import: ["": 18]>
winograd (float[1, 32, 16, 16] x) => (float[1, 32, 16, 16] y)
<float[32, 32, 3, 3] w>
{
  c = Conv <pads = [1, 1, 1, 1]> (x, w)
  y = Relu (c)
}
""",
}

# Products of quantised rows, which the compiler makes: weights in 8 and 16 bits, in 4 bits by groups, and of these two of four.
QUANTIZED = """quantized (float[9, 64] x, float[9, 40] r) => (float[9, 40] a, float[9, 40] b, float[9, 40] c, float[9, 40] d)
{
  q, qs, qz = infc.QuantizeRows (x)
  a = infc.QuantizedLinear <activation = "relu"> (q, qs, qz, w8, s8, , bias, r)
  g, gs = infc.QuantizeRows <symmetric = 1, group = 32> (x)
  b = infc.QuantizedLinear <group = 32, block = 32> (g, gs, , w4, s4, z4, bias)
  c = infc.QuantizedLinear <group = 32, block = 32> (g, gs, , two_in_four, s4)
  h = Cast <to = 16> (x)
  d = infc.QuantizedLinear (h, , , w16)
}
"""


# Convolutions in bytes, of each kind, with a residual in bytes.
QUANTIZED_CONVS = """convs (float[1, 3, 9, 9] x) => (float[1, 40, 9, 9] y)
{
  q = QuantizeLinear (x, s, z)
  a = infc.QuantizedConv <pads = [1, 1, 1, 1], activation = "relu6"> (q, s, z, stem, s, , , , s, z)
  b = infc.QuantizedConv <pads = [1, 1, 1, 1], group = 40> (a, s, z, each, s, , , , s, z)
  c = infc.QuantizedConv <residual_first = 1> (b, s, z, point, s, , , a, s, z, s, z)
  y = infc.QuantizedConv <group = 2, activation = "silu"> (c, s, z, groups, s)
}
"""


def quantized_convs() -> onnx.ModelProto:
    """QUANTIZED_CONVS, its weights drawn."""
    drawn = np.random.default_rng(0)
    shapes = {"stem": (40, 3, 3, 3), "each": (40, 1, 3, 3), "point": (40, 40, 1, 1), "groups": (40, 20, 1, 1)}
    return parse(QUANTIZED_CONVS, s=np.array(0.05, np.float32), z=np.array(120, np.uint8),
                 **{name: drawn.integers(-128, 128, shape).astype(np.int8) for name, shape in shapes.items()})


def quantized() -> onnx.ModelProto:
    """QUANTIZED, its weights drawn."""
    drawn = np.random.default_rng(0)
    kept = np.tile([True, False, False, True], 16)[:, None]
    return parse(QUANTIZED, w8=drawn.integers(-128, 128, (64, 40)).astype(np.int8), s8=np.full(40, 0.01, np.float32),
                 bias=drawn.normal(size=40).astype(np.float32), w4=drawn.integers(0, 16, (64, 40)).astype(ml_dtypes.uint4),
                 s4=np.full((2, 40), 0.125, np.float32), z4=drawn.integers(0, 16, (2, 40)).astype(ml_dtypes.uint4),
                 two_in_four=(drawn.integers(-8, 8, (64, 40)) * kept).astype(ml_dtypes.int4),
                 w16=drawn.normal(size=(64, 40)).astype(ml_dtypes.bfloat16))


def model(name: str) -> onnx.ModelProto:
    """One of MODELS, its weights drawn."""
    parsed = onnx.parser.parse_model(MODELS[name])
    drawn = np.random.default_rng(0)
    for value in parsed.graph.value_info:
        shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
        parsed.graph.initializer.append(numpy_helper.from_array(drawn.normal(size=shape).astype(np.float32), value.name))
    del parsed.graph.value_info[:]
    return parsed


def write(folder: Path) -> list[Path]:
    """Writes the artifacts, with programs for every instruction set of this machine."""
    written = []
    for name, data in _artifacts().items():
        written.append(folder / f"{name}.infc")
        written[-1].write_bytes(data)
    return written


@functools.cache
def _artifacts() -> dict[str, bytes]:
    cases = {c.name: c for c in node_cases.collect()}
    made = {name: _case(cases[f"test_{name}"]) for name in CASES}
    for name in MODELS:
        proto = model(name)
        sizes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in proto.graph.input}
        made[name] = node_cases.build(proto, {n: np.zeros(shape) for n, shape in sizes.items()})[0]
    made["quantized"] = compile_model(quantized(), native_isas())[0]
    made["quantized_convs"] = compile_model(quantized_convs(), native_isas())[0]
    return made


def _case(case: node_cases.Case) -> bytes:
    return node_cases.build(*node_cases.taken(case, case.parameters))[0]


if __name__ == "__main__":
    for path in write(Path(sys.argv[1])):
        print(path)
