"""Quantised rows and products against their ONNX-function bodies in ONNX Runtime, and which kernels they take."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infc.passes.domain import add_functions
from infc.plugins.cpu.pack_i8 import i8_k4n32
from tests.plugins.cpu.graphs import parse
from tests.plugins.cpu.harness import compile_model, native_isas, run
from tests.plugins.cpu.test_graphs import divided, draw, expected


def whole(model: onnx.ModelProto) -> onnx.ModelProto:
    """With the bodies of the domain's functions."""
    made = ir.from_proto(model)
    add_functions(made)
    return ir.to_proto(made)


def weight(k: int, n: int, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {"w": rng.integers(-128, 128, (k, n)).astype(np.int8), "s": rng.uniform(0.5, 1.0, n).astype(np.float32) / 128}


def steps(model: onnx.ModelProto) -> Counter[str]:
    return Counter(layer.op for layer in next(iter(compile_model(model)[1].layers.values())))


def check(model: onnx.ModelProto, feeds: dict[str, np.ndarray], tolerance: float = 2e-5) -> None:
    want = expected(whole(model), feeds)
    with divided():
        artifact, _ = compile_model(model, native_isas())
    for isa in native_isas():
        for threads in (1, 2):
            got = run(artifact, feeds, threads, isa)
            for name, array in want.items():
                assert got[name].dtype == array.dtype
                np.testing.assert_allclose(got[name].astype(np.float32), array.astype(np.float32), rtol=tolerance,
                                           atol=tolerance if array.dtype == np.float32 else 1.01)


@given(st.integers(1, 9), st.integers(1, 70))
@settings(max_examples=25, deadline=None)
def test_packing_is_where_the_kernel_looks(k: int, n: int) -> None:
    w = weight(k, n)["w"]
    packed = i8_k4n32(w)
    assert packed.shape == (-(-n // 32), -(-k // 4) * 128)
    for i in range(k):
        for j in range(n):
            assert packed[j // 32, i // 4 * 128 + j % 32 * 4 + i % 4] == w[i, j]
    assert np.abs(packed.astype(int)).sum() == np.abs(w.astype(int)).sum()  # zeros elsewhere


@pytest.mark.parametrize("group", [0, 8])
def test_rows_are_quantised_bit_by_bit_as_onnx_runtime_does(group: int) -> None:
    x = draw(2, 5, 24)
    x[0, 0], x[1, 1] = 0, 1e-41
    for symmetric, outputs, types in ((0, "q, s, z", "uint8[2, 5, 24] q, float[2, 5, G] s, uint8[2, 5, G] z"),
                                      (1, "q, s", "int8[2, 5, 24] q, float[2, 5, G] s")):
        model = parse(f"""g (float[2, 5, 24] x) => ({types.replace('G', str(24 // (group or 24)))}) {{
            {outputs} = infc.QuantizeRows<group = {group}, symmetric = {symmetric}>(x)
        }}""")
        want = expected(whole(model), {"x": x})
        artifact, _ = compile_model(model, native_isas())
        for isa in native_isas():
            for name, array in run(artifact, {"x": x}, 1, isa).items():
                np.testing.assert_array_equal(array, want[name], err_msg=name)


@pytest.mark.parametrize("group", [0, 8])
def test_dequantised_rows(group: int) -> None:
    check(parse(f"""g (float[2, 5, 24] x) => (float[2, 5, 24] y) {{
        q, s, z = infc.QuantizeRows<group = {group}>(x)   y = infc.DequantizeRows<group = {group}>(q, s, z)
    }}"""), {"x": draw(2, 5, 24)})


FINISHES = ['(q, s0, z, w, s)', '(q, s0, z, w, s, , b)', '<activation = "gelu_erf">(q, s0, z, w, s, , b, r)',
            '<activation = "relu", residual_first = 1>(q, s0, z, w, s, , b, r)']


@pytest.mark.parametrize("finish", FINISHES)
@pytest.mark.parametrize("symmetric", [0, 1])
def test_products_of_rows_that_are_quantised_at_run_time(finish: str, symmetric: int) -> None:
    outputs = "q, s0" if symmetric else "q, s0, z"
    finish = finish.replace(", z,", ", ,") if symmetric else finish
    model = parse(f"""g (float[3, 7, 50] x, float[3, 7, 70] r) => (float[3, 7, 70] y) {{
        {outputs} = infc.QuantizeRows<symmetric = {symmetric}>(x)   y = infc.QuantizedLinear{finish}
    }}""", b=draw(70, seed=2), **weight(50, 70))
    assert steps(model) == {"quantize_rows": 1, "gemm_i8": 1}
    check(model, {"x": draw(3, 7, 50), "r": draw(3, 7, 70, seed=1)})


def test_rows_are_quantised_once_for_all_products() -> None:
    model = parse("""g (float[7, 50] x) => (float[7, 70] y, float[7, 70] u) {
        q, s0, z = infc.QuantizeRows(x)
        y = infc.QuantizedLinear(q, s0, z, w, s)   u = infc.QuantizedLinear<activation = "silu">(q, s0, z, w, s)
    }""", **weight(50, 70))
    assert steps(model) == {"quantize_rows": 1, "gemm_i8": 2}
    check(model, {"x": draw(7, 50)})


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("result", ["", "u8", "i8"])
def test_static_scales(dtype: type, result: str) -> None:
    kind = {"": "float", "u8": "uint8", "i8": "int8"}[result]
    zero = np.array(90 if dtype == np.uint8 else -38, dtype)
    finish = ", , b, , s1, z1" if result else ", , b"
    model = parse(f"""g (float[9, 50] x) => ({kind}[9, 70] y) {{
        q = QuantizeLinear(x, s0, z0)   y = infc.QuantizedLinear<activation = "relu">(q, s0, z0, w, s{finish})
    }}""", s0=np.array(0.02, np.float32), z0=zero, b=draw(70, seed=2), s1=np.array(0.03, np.float32),
                  z1=np.array(7, np.int8 if result == "i8" else np.uint8), **weight(50, 70))
    assert steps(model)["gemm_i8"] == 1
    assert not steps(model)["gemm"]
    assert steps(model)["quantize"] == 1 + (result == "i8")
    check(model, {"x": draw(9, 50)})


def test_a_chain_of_static_products_stays_in_bytes() -> None:
    model = parse("""g (float[9, 50] x) => (float[9, 50] y) {
        q = QuantizeLinear(x, s0, z0)
        h = infc.QuantizedLinear<activation = "gelu_erf">(q, s0, z0, w, s, , , , s1, z1)
        y = infc.QuantizedLinear(h, s1, z1, w2, s2)
    }""", s0=np.array(0.02, np.float32), z0=np.array(90, np.uint8), s1=np.array(0.01, np.float32), z1=np.array(17, np.uint8),
                  **weight(50, 70), **{n + "2": a for n, a in weight(70, 50, 3).items()})
    assert steps(model) == {"quantize": 1, "gemm_i8": 2}
    check(model, {"x": draw(9, 50)}, 1e-2)  # a byte that falls to the other side of a half


def test_scales_and_zeros_that_a_caller_gives() -> None:
    for zero in ("uint8", "int8"):
        model = parse(f"""g ({zero}[4, 5, 50] q, float[4, 5, 1] s0, {zero}[4, 5, 1] z0) => (float[4, 5, 70] y) {{
            y = infc.QuantizedLinear(q, s0, z0, w, s)
        }}""", **weight(50, 70))
        rng = np.random.default_rng(0)
        low = 0 if zero == "uint8" else -128
        check(model, {"q": rng.integers(low, low + 256, (4, 5, 50)).astype(zero),
                      "s0": rng.uniform(0.01, 0.02, (4, 5, 1)).astype(np.float32),
                      "z0": rng.integers(low, low + 256, (4, 5, 1)).astype(zero)})


@pytest.mark.parametrize("zero", [0, 128, 131])
def test_unsigned_weights(zero: int) -> None:
    parts = weight(50, 70)
    model = parse("""g (float[9, 50] x) => (float[9, 70] y) {
        q, s0, z0 = infc.QuantizeRows(x)   y = infc.QuantizedLinear(q, s0, z0, w, s, z)
    }""", w=parts["w"].view(np.uint8), s=parts["s"], z=np.full(70, zero, np.uint8))
    assert steps(model) == {"quantize_rows": 1, "gemm_i8": 1} or zero != 128
    check(model, {"x": draw(9, 50)}, 1e-4)


@pytest.mark.parametrize("symmetric", [0, 1])
def test_products_without_a_kernel_of_their_own(symmetric: int) -> None:
    rng = np.random.default_rng(0)
    outputs, zero = ("q, s0", "") if symmetric else ("q, s0, z0", "z0")
    model = parse(f"""g (float[9, 64] x) => (float[9, 70] y) {{
        {outputs} = infc.QuantizeRows<group = 16, symmetric = {symmetric}>(x)
        y = infc.QuantizedLinear<group = 16, block = 32>(q, s0, {zero}, w, s)
    }}""", w=rng.integers(-8, 8, (64, 70)).astype(np.int8), s=rng.uniform(0.1, 0.2, (2, 70)).astype(np.float32))
    check(model, {"x": draw(9, 64)}, 1e-4)


def test_packed_rows() -> None:
    model = parse("""g (int64[batch, seq] ids, int64[batch, seq] mask) => (float[batch, seq, 33] y) {
        index, column, offsets, key_start = infc.PackTokens(mask)
        i = infc.PackRows(ids, index)
        e = infc.EmbeddingSum(i, words, column, places)
        q, s0, z = infc.QuantizeRows(e)
        h = infc.QuantizedLinear(q, s0, z, w, s)
        y = infc.UnpackRows(h, index, mask)
    }""", words=draw(11, 32), places=draw(7, 32, seed=1), **weight(32, 33))
    with divided():
        artifact, _ = compile_model(model, native_isas(), {"batch": 3, "seq": 7}, {"batch": 3, "seq": 7, "tokens": 21})
    for lengths, seq in (([7, 7, 7], 7), ([3], 5), ([1, 6, 2], 6), ([1], 1)):
        mask = (np.arange(seq) < np.array(lengths)[:, None]).astype(np.int64)
        feeds = {"ids": np.random.default_rng(1).integers(0, 11, mask.shape), "mask": mask}
        want = expected(whole(model), feeds)["y"]
        for isa in native_isas():
            for threads in (1, 2):
                np.testing.assert_allclose(run(artifact, feeds, threads, isa)["y"], want, rtol=1e-5, atol=1e-5)
