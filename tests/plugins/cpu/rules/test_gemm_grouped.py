"""Products with weights that have scales in groups along K against ONNX Runtime, and which kernels they take."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infc.plugins.cpu import pack_grouped
from tests.plugins.cpu.graphs import parse
from tests.plugins.cpu.harness import compile_model
from tests.plugins.cpu.rules.test_quantized_linear import check, steps
from tests.plugins.cpu.test_graphs import draw

TYPES = {"int4": (ml_dtypes.int4, -8, 8), "uint4": (ml_dtypes.uint4, 0, 16), "int8": (np.int8, -128, 128),
         "uint8": (np.uint8, 0, 256)}


def weight(k: int, n: int, block: int, name: str, zeros: bool, seed: int = 0, sparse: bool = False) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    dtype, low, high = TYPES[name]
    w = rng.integers(low, high, (k, n))
    zero = rng.integers(low, high, (k // block, n))
    if sparse:
        order = rng.permuted(np.arange(4).reshape(1, 4, 1).repeat(k // 4, 0).repeat(n, 2), axis=1)
        keep = order < rng.integers(0, 3, (k // 4, 1, n))
        middle = np.repeat(zero, block, axis=0) if zeros else (low + high) // 2
        w = np.where(keep.reshape(k, n), w, middle)
    scale = rng.uniform(0.5, 1.0, (k // block, n)).astype(np.float16).astype(np.float32) / 128
    return {"w": w.astype(dtype), "s": scale} | ({"z": zero.astype(dtype)} if zeros else {})


def sixteenths(k: int, n: int, block: int) -> np.ndarray:
    return np.random.default_rng(n).integers(0, 256, (k // block, n)).astype(np.uint8)


def restored(packed: np.ndarray, g: pack_grouped.Grouped, sparse: bool) -> np.ndarray:
    """What the scalar kernel reads, [K, N], less the zeros."""
    k, n, scale_bytes = *g.w.shape, 32 * (4 if g.wide else 2)
    groups = packed.reshape(packed.shape[0], k // g.group, -1)
    out = np.zeros((k, n), int)
    for row in range(k):
        for col in range(n):
            at = groups[col // 32, row // g.group]
            column, i = col % 32, row % g.group
            zero = int(at[scale_bytes + column]) if g.zero is not None else 1 << (g.bits - 1)
            dwords = at[scale_bytes + (32 if g.zero is not None else 0) :].reshape(-1, 32, 4)[:, column].astype(int)
            if sparse:
                unit, step, half = dwords[i // 32 * 3 :][:3], i % 32 // 8, i % 8 // 4 * 2
                for byte in (half, half + 1):
                    if unit[0, byte] >> 2 * step & 3 == i % 4:
                        out[row, col] += (unit[1 + step // 2, byte] >> 4 * (step % 2) & 15) - zero
            elif g.bits == 8:
                out[row, col] = dwords[i // 4, i % 4] - zero
            else:
                out[row, col] = (dwords[i // 8, i % 4] >> i % 8 // 4 * 4 & 15) - zero
    return out


@given(st.sampled_from(sorted(TYPES)), st.sampled_from([32, 64]), st.integers(1, 2), st.integers(1, 40), st.booleans(),
       st.booleans())
@settings(max_examples=25, deadline=None)
def test_packing_is_where_the_kernel_looks(name: str, block: int, groups: int, n: int, zeros: bool, sparse: bool) -> None:
    sparse = sparse and name.endswith("int4")
    given_ = weight(block * groups, n, block, name, zeros, seed=n, sparse=sparse)
    g = pack_grouped.grouped(given_["w"], given_["s"], given_.get("z"))
    assert g.group == block
    assert g.bits == (4 if "4" in name else 8)
    assert pack_grouped.is_sparse(g) or not sparse or name == "uint4"
    zero = np.repeat(given_["z"].astype(int), block, axis=0) if zeros else 0
    want = given_["w"].astype(int) - zero
    again = pack_grouped.undone(pack_grouped.pack(g), g.bits, g.wide, g.zero is not None, block, n)
    for part in ("w", "scale", "zero"):
        np.testing.assert_array_equal(getattr(again, part), getattr(g, part))
    if not sparse:
        np.testing.assert_array_equal(restored(pack_grouped.pack(g), g, False), want)
    elif pack_grouped.is_sparse(g):
        np.testing.assert_array_equal(restored(pack_grouped.pack(g, True), g, True), want)


def test_scales_are_f16_where_that_holds_them() -> None:
    given_ = weight(64, 40, 32, "uint4", True)
    narrow = pack_grouped.grouped(given_["w"], given_["s"], given_["z"])
    wide = pack_grouped.grouped(given_["w"], given_["s"] * np.float32(1.0001), given_["z"])
    huge = pack_grouped.grouped(given_["w"], given_["s"] * np.float32(1e9), given_["z"])
    assert [g.wide for g in (narrow, wide, huge)] == [False, True, True]
    size = 2 * 2 * 32 * (2 + 1 + 16)
    assert pack_grouped.pack(narrow).size == size
    assert pack_grouped.pack(wide).size == size + 2 * 2 * 32 * 2


@pytest.mark.parametrize("name", sorted(TYPES))
@pytest.mark.parametrize("block", [32, 128])
@pytest.mark.parametrize("zeros", [False, True])
def test_products(name: str, block: int, zeros: bool) -> None:
    z = "z" if zeros else ""
    model = parse(f"""g (float[3, 7, 256] x, float[3, 7, 70] r) => (float[3, 7, 70] y) {{
        q, s0 = infc.QuantizeRows<symmetric = 1, group = {block}>(x)
        y = infc.QuantizedLinear<activation = "gelu_erf", group = {block}, block = {block}>(q, s0, , w, s, {z}, b, r)
    }}""", b=draw(70, seed=2), **weight(256, 70, block, name, zeros))
    assert steps(model) == {"quantize_rows": 1, "gemm_grouped": 1}
    check(model, {"x": draw(3, 7, 256), "r": draw(3, 7, 70, seed=1)}, 1e-4)


@pytest.mark.parametrize("block", [32, 128])
@pytest.mark.parametrize("wide", [False, True])
def test_products_of_weights_with_fine_zeros(block: int, wide: bool) -> None:
    given_ = weight(256, 70, block, "uint4", False) | {"z": sixteenths(256, 70, block)}
    given_["s"] *= np.float32(1.0001 if wide else 1)
    model = parse(f"""g (float[3, 7, 256] x, float[3, 7, 70] r) => (float[3, 7, 70] y) {{
        q, s0 = infc.QuantizeRows<symmetric = 1, group = {block}>(x)
        y = infc.QuantizedLinear<activation = "gelu_erf", group = {block}, block = {block}, fine_zeros = 1>(q, s0, , w, s, z, b, r)
    }}""", b=draw(70, seed=2), **given_)
    assert steps(model) == {"quantize_rows": 1, "gemm_grouped": 1}
    g = pack_grouped.grouped(given_["w"], given_["s"], given_["z"], True)
    assert (g.zeros, g.wide, pack_grouped.is_sparse(g)) == ("sixteenths", wide, False)
    check(model, {"x": draw(3, 7, 256), "r": draw(3, 7, 70, seed=1)}, 1e-4)


def test_fine_zeros_of_what_no_kernel_takes() -> None:
    """Weights that are read alone, of bytes, or by rows of other groups: computed in f32."""
    model = parse("""g (float[7, 64] x) => (float[64, 70] f, float[7, 70] y, float[7, 70] u) {
        f = infc.DequantizeBlocks<axis = 0, block_size = 32>(w, s, z)
        q, s0 = infc.QuantizeRows<symmetric = 1, group = 32>(x)
        y = infc.QuantizedLinear<group = 32, block = 32, fine_zeros = 1>(q, s0, , b, s, z)
        q1, s1 = infc.QuantizeRows<symmetric = 1, group = 0>(x)
        u = infc.QuantizedLinear<group = 0, block = 32, fine_zeros = 1>(q1, s1, , w, s, z)
    }""", **weight(64, 70, 32, "uint4", False), b=weight(64, 70, 32, "uint8", False)["w"], z=sixteenths(64, 70, 32))
    assert "gemm_grouped" not in steps(model)
    check(model, {"x": draw(7, 64)}, 1e-4)


@pytest.mark.parametrize("zeros", [False, True])
def test_weights_of_two_in_four_are_stored_without_the_others(zeros: bool) -> None:
    z = "z" if zeros else ""
    model = parse(f"""g (float[7, 128] x) => (float[7, 70] y) {{
        q, s0 = infc.QuantizeRows<symmetric = 1, group = 64>(x)
        y = infc.QuantizedLinear<group = 64, block = 64>(q, s0, , w, s, {z})
    }}""", **weight(128, 70, 64, "uint4" if zeros else "int4", zeros, sparse=True))
    _, compiled = compile_model(model)
    assert any("stored without zeros" in note for note in compiled.notes)
    check(model, {"x": draw(7, 128)}, 1e-4)


def test_rows_are_quantised_once_for_all_products() -> None:
    model = parse("""g (float[7, 64] x) => (float[7, 70] y, float[7, 70] u) {
        q, s0 = infc.QuantizeRows<symmetric = 1, group = 32>(x)
        y = infc.QuantizedLinear<group = 32, block = 32>(q, s0, , w, s, z)
        u = infc.QuantizedLinear<group = 32, block = 32, activation = "silu">(q, s0, , w, s, z)
    }""", **weight(64, 70, 32, "uint4", True))
    assert steps(model) == {"quantize_rows": 1, "gemm_grouped": 2}
    check(model, {"x": draw(7, 64)}, 1e-4)


@pytest.mark.parametrize(("group", "block"), [(0, 32), (16, 16), (64, 32)])
def test_other_groups_are_computed_in_f32(group: int, block: int) -> None:
    model = parse(f"""g (float[7, 64] x) => (float[7, 70] y) {{
        q, s0 = infc.QuantizeRows<symmetric = 1, group = {group}>(x)
        y = infc.QuantizedLinear<group = {group}, block = {block}>(q, s0, , w, s, z)
    }}""", **weight(64, 70, block, "uint4", True))
    assert "gemm_grouped" not in steps(model)
    check(model, {"x": draw(7, 64)}, 1e-4)
