"""WEIGHTS: the packing formula, and constants stored once."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from infc.plugins.cpu.pack import Constants, Weights, f32_k1n32
from infc.plugins.cpu.values import Buffer, Ref, Step


@given(st.integers(1, 7), st.integers(1, 100))
def test_f32_k1n32_follows_its_formula(k: int, n: int) -> None:
    b = np.random.default_rng(k * n).standard_normal((k, n)).astype(np.float32)
    packed = f32_k1n32(b).reshape(-1)
    rows, cols = np.meshgrid(np.arange(k), np.arange(n), indexing="ij")
    at = ((cols // 32) * k + rows) * 32 + cols % 32
    assert np.array_equal(packed[at], b)
    assert packed.size == -(-n // 32) * 32 * k
    rest = np.delete(packed, at.reshape(-1))
    assert not rest.any()


def step(*arrays: np.ndarray, packing: str = "ROW_MAJOR") -> Step:
    refs = [Ref(Buffer("WEIGHTS", a.nbytes, data=a, packing=packing), "f32", a.shape, 0, a.shape[-1]) for a in arrays]
    return Step("copy", refs, [], (), 1)


def test_equal_constants_are_stored_once() -> None:
    a, b = np.ones((4, 4), np.float32), np.zeros((3, 40), np.float32)
    steps = [step(a, b), step(a.copy()), step(a, packing="F32_K1N32"), step(a.reshape(2, 8), packing="F32_K1N32")]
    weights = Weights()
    weights.add(steps)
    places = [[weights.offsets[r.buffer] for r in s.inputs] for s in steps]
    assert places[0][0] == places[1][0]
    assert len({p for group in places for p in group}) == 4
    assert all(p % 64 == 0 for group in places for p in group)
    data = weights.tobytes()
    for s, group in zip(steps, places, strict=True):
        for ref, at in zip(s.inputs, group, strict=True):
            want = f32_k1n32(ref.buffer.data) if ref.buffer.packing == "F32_K1N32" else ref.buffer.data
            assert bytes(data[at : at + want.nbytes]) == want.tobytes()


def test_equal_constants_of_several_programs_lie_in_one_place() -> None:
    a = np.ones((4, 4), np.float32)
    arrays = (a, a.copy(), a.reshape(16).copy(), np.zeros((4, 4), np.float32))
    buffers = [Buffer("WEIGHTS", x.nbytes, data=x) for x in arrays]
    constants = Constants()
    for buffer in [*buffers, Buffer("ARENA", 64)]:
        constants.keep(buffer)
    assert buffers[1].data is buffers[0].data is a
    assert buffers[2].data is arrays[2]  # its shape is another
    assert buffers[3].data is arrays[3]
