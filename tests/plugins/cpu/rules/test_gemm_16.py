"""Products with weights in bf16, f16, f8e4m3 and 2:4 sparse bf16 against ONNX Runtime, and which kernels they take."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infc.compiler.artifact.program import decode
from infc.compiler.artifact.reader import Artifact
from infc.compiler.profiles import Profile
from infc.compiler.target import ProgramGraph
from infc.plugins.cpu import CpuTarget, pack_16
from tests.plugins.cpu.graphs import parse
from tests.plugins.cpu.harness import compile_model, context, interface_of, native_isas
from tests.plugins.cpu.rules.test_quantized_linear import check, steps
from tests.plugins.cpu.test_graphs import draw

TYPES = {"bf16": ml_dtypes.bfloat16, "f16": np.float16, "f8e4m3fn": ml_dtypes.float8_e4m3fn}
PAIRS = list(combinations(range(4), 2))


def two_in_four(k: int, n: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    w = rng.standard_normal((k // 4, 4, n)).astype(np.float32)
    keep = rng.permuted(np.arange(4).reshape(1, 4, 1).repeat(k // 4, 0).repeat(n, 2), axis=1) < rng.integers(0, 3, (k // 4, 1, n))
    return (w * keep).reshape(k, n).astype(ml_dtypes.bfloat16)


@given(st.integers(1, 9), st.integers(1, 70), st.sampled_from(sorted(TYPES)))
@settings(max_examples=25, deadline=None)
def test_packing_is_where_the_kernel_looks(k: int, n: int, dtype: str) -> None:
    bits = np.random.default_rng(0).integers(1, 200, (k, n)).astype(np.uint8 if dtype.startswith("f8") else np.uint16)
    depth, packed = pack_16.DEPTH[dtype], pack_16.dense(bits, pack_16.DEPTH[dtype])
    assert packed.shape == (-(-n // 32), -(-k // depth) * depth * 32 * bits.itemsize)
    numbers = packed.view(bits.dtype)
    for i in range(k):
        for j in range(n):
            assert numbers[j // 32, (i // depth * 32 + j % 32) * depth + i % depth] == bits[i, j]
    assert np.count_nonzero(numbers) == k * n  # zeros elsewhere
    if dtype == "bf16":
        np.testing.assert_array_equal(pack_16.undone(packed, k, n), bits)


@given(st.sampled_from([32, 64, 96]), st.integers(1, 70), st.integers(0, 99))
@settings(max_examples=25, deadline=None)
def test_sparse_packing_is_where_the_kernel_looks(k: int, n: int, seed: int) -> None:
    bits = two_in_four(k, n, seed).view(np.uint16)
    assert pack_16.is_sparse(bits)
    packed = pack_16.sparse(bits)
    assert packed.shape == (-(-n // 32), k // 32 * 1152)
    lines = packed.view(np.uint32).reshape(-1, k // 32, 9, 32)
    found = np.zeros_like(bits)
    for group in range(k // 4):
        for j in range(n):
            codes, pair = lines[j // 32, group // 8, (0, 1 + group % 8), j % 32]
            code = int(codes) >> group % 8 * 4 & 15
            assert code >> 3 == group % 2
            for i, number in zip(PAIRS[code & 7], (int(pair) & 0xFFFF, int(pair) >> 16), strict=True):
                found[group * 4 + i, j] = number
    np.testing.assert_array_equal(found & ~np.uint16(0x8000 * (found == 0x8000)), bits & ~np.uint16(0x8000 * (bits == 0x8000)))


def test_what_is_not_sparse() -> None:
    bits = two_in_four(64, 5).view(np.uint16)
    assert not pack_16.is_sparse(bits[:48])
    bits[8:11, 3] = 1
    assert not pack_16.is_sparse(bits)


def product(q: str, w: str, finish: str = "(q, , , w)", scaled: bool = False, n: int = 70) -> onnx.ModelProto:
    """A product of x, cast to the type q, and weights of the type w."""
    cast = {"f32": "q = Identity(x)", "bf16": "q = Cast<to = 16>(x)", "f16": "q = Cast<to = 10>(x)"}[q]
    scales = {"s": np.random.default_rng(3).uniform(0.5, 1, n).astype(np.float32)} if scaled else {}
    finish = finish.replace("w)", "w, s)") if scaled else finish
    return parse(f"""g (float[3, 7, 50] x, float[3, 7, {n}] r) => (float[3, 7, {n}] y) {{
        {cast}   y = infc.QuantizedLinear{finish}
    }}""", b=draw(n, seed=2), w=draw(50, n, seed=4).astype(TYPES[w]), **scales)


FINISHES = ["(q, , , w)", "(q, , , w, , , b)", '<activation = "gelu_erf">(q, , , w, , , b, r)',
            '<activation = "relu", residual_first = 1>(q, , , w, , , b, r)']


@pytest.mark.parametrize("finish", FINISHES)
@pytest.mark.parametrize(("q", "w"), [("bf16", "bf16"), ("f32", "f16"), ("f16", "f16"), ("bf16", "f16"), ("bf16", "f8e4m3fn"),
                                      ("f32", "f8e4m3fn")])
def test_products(q: str, w: str, finish: str) -> None:
    model = product(q, w, finish)
    found = steps(model)
    assert found["gemm_16"] == 1
    assert not found["gemm"]
    check(model, {"x": draw(3, 7, 50), "r": draw(3, 7, 70, seed=1)}, 1e-4)


@pytest.mark.parametrize(("q", "w"), [("bf16", "f8e4m3fn"), ("f32", "f8e4m3fn")])
def test_scales_of_columns(q: str, w: str) -> None:
    model = product(q, w, scaled=True)
    assert steps(model)["gemm_16"] == 1
    check(model, {"x": draw(3, 7, 50), "r": draw(3, 7, 70, seed=1)}, 1e-4)


def test_products_without_a_kernel_of_their_own() -> None:
    model = product("f32", "bf16")
    assert steps(model)["gemm"] == 1
    check(model, {"x": draw(3, 7, 50), "r": draw(3, 7, 70, seed=1)}, 1e-4)


def test_a_weight_of_f8_that_is_no_number() -> None:
    model = product("bf16", "f8e4m3fn")
    w = draw(50, 70, seed=4).astype(ml_dtypes.float8_e4m3fn)
    w[3, 5] = np.nan
    tensor = next(t for t in model.graph.initializer if t.name == "w")
    tensor.raw_data = w.tobytes()
    assert steps(model)["gemm"] == 1


def test_activations_in_f8() -> None:
    model = parse("""g (float[9, 50] x) => (float[9, 70] y) {
        q = QuantizeLinear(x, s0, z0)   y = infc.QuantizedLinear(q, s0, z0, w, s)
    }""", s0=np.array(0.02, np.float32), z0=np.zeros((), ml_dtypes.float8_e4m3fn), s=np.full(70, 0.5, np.float32),
                  w=draw(50, 70, seed=4).astype(ml_dtypes.float8_e4m3fn))
    assert steps(model)["gemm_16"] == 1
    check(model, {"x": draw(9, 50)}, 1e-4)


SPARSE = parse("""g (float[9, 96] x) => (float[9, 70] y) {
    q = Cast<to = 16>(x)   y = infc.QuantizedLinear<activation = "relu">(q, , , w, , , b)
}""", b=draw(70, seed=2), w=two_in_four(96, 70))


def test_sparse_weights_are_stored_without_zeros() -> None:
    sizes = {}
    for disabled in ((), ("sparse-weights",)):
        compiled = compile_model(SPARSE, native_isas(), disabled=disabled)[1]
        sizes[disabled] = compiled.memory["weights"]
        assert bool(compiled.notes) == (not disabled)
    assert sizes[()] < 0.6 * sizes["sparse-weights",]
    check(SPARSE, {"x": draw(9, 96)}, 1e-4)


@pytest.mark.parametrize(("times", "force", "kept"), [
    ([2.0, 1.0], False, True), ([1.0, 2.0], False, False), ([1.0, 0.995], False, False), ([1.0, 2.0], True, True)])
def test_what_is_not_faster_is_stored_whole(times: list[float], force: bool, kept: bool) -> None:
    left = iter(times)
    base = context(["x86-64-v4"], interface_of(ir.from_proto(SPARSE)))
    lent = replace(base, measure=lambda artifact, threads: 1.0, measure_steps=lambda artifact, threads: [next(left)] * 9,
                   native_isa="x86-64-v4", tune=True, timing_cache={}, force=force)
    compiled = CpuTarget().compile([ProgramGraph(Profile(()), ir.from_proto(SPARSE), {})], lent)
    step = next(s for s in decode(compiled.sections[0].data).steps if "gemm_16" in s.kernel)
    assert step.words[5] == kept
    assert ("stored without zeros" in compiled.notes[0]) == kept
    assert not any(str(time) in note for note in compiled.notes for time in times)
    (found,) = compiled.measured
    assert (found["layer"], found["dense"], found["sparse"], found["chosen"]) == (step.name, *times, kept)


TWO = parse("""g (float[9, 96] x) => (float[9, 70] y, float[9, 70] z) {
    q = Cast<to = 16>(x)   y = infc.QuantizedLinear(q, , , w, , , b)   z = infc.QuantizedLinear(q, , , v, , , b)
}""", b=draw(70, seed=2), w=two_in_four(96, 70), v=two_in_four(96, 70, 1))


def test_each_layer_is_chosen_by_its_own_times() -> None:
    base = context(["x86-64-v4"], interface_of(ir.from_proto(TWO)))
    runs = iter([(1.0, 1.0), (2.0, 0.5)])  # with zeros, then without

    def measure(artifact: bytes, threads: int) -> list[float]:
        times = iter(next(runs))
        return [next(times) if "gemm_16" in step.kernel else 9.0 for step in Artifact(artifact).programs()[0].steps]

    lent = replace(base, measure=lambda artifact, threads: 1.0, measure_steps=measure, native_isa="x86-64-v4", tune=True,
                   timing_cache={})
    compiled = CpuTarget().compile([ProgramGraph(Profile(()), ir.from_proto(TWO), {})], lent)
    assert [s.words[5] for s in decode(compiled.sections[0].data).steps if "gemm_16" in s.kernel] == [0, 1]
    assert [(m["dense"], m["sparse"], m["chosen"]) for m in compiled.measured] == [(1.0, 2.0, False), (1.0, 0.5, True)]
    again = CpuTarget().compile([ProgramGraph(Profile(()), ir.from_proto(TWO), {})], lent)  # runs has no more: times are known
    assert bytes(again.sections[0].data) == bytes(compiled.sections[0].data)
