"""Patches of images are what a convolution multiplies; GPTQ on them; pixels with scales of their own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from infc.compiler.calibrate.collect import Gram
from infc.passes.quant.gptq import gptq_conv
from infc.passes.quant.numbers import INT8, store
from infc.passes.quant.patches import MOST, Patches, moments
from infc.passes.quant.products import find
from tests.passes.quant.test_quantise import model, quantised
from tests.passes.support import normal, ops, session

Array = np.ndarray[Any, Any]


def smooth(*shape: int) -> Array:
    """Images whose neighbours are much alike."""
    return np.cumsum(np.cumsum(np.random.default_rng(0).standard_normal(shape), -1), -2).astype(np.float32) / 8 + 3


@pytest.mark.parametrize("attributes", ["pads=[1,0,2,1], strides=[2,1]", "dilations=[2,1], group=3", "group=6, pads=[1,1,1,1]"])
def test_patches_are_what_a_convolution_multiplies(attributes: str) -> None:
    groups = 3 if "=3" in attributes else 6 if "=6" in attributes else 1
    weight = normal(12, 6 // groups, 3, 2)
    made = model(f"(float[2,6,9,8] x) => (float[] y) {{ y = Conv<{attributes}>(x, w) }}", {"w": weight})
    patches = find(made)[0][0].patches()
    assert patches is not None
    x = normal(2, 6, 9, 8, seed=1)
    rows = patches.rows(x)
    assert rows.shape[2] == patches.width
    assert (rows[:, :, -1] == 1).all()
    got = np.einsum("gpk,gnk->pgn", rows[:, :, :-1], weight.reshape(groups, -1, patches.width - 1)).reshape(rows.shape[1], 12)
    want: Array = session(made).run(None, {"x": x})[0]
    np.testing.assert_allclose(got.reshape(2, *want.shape[2:], 12).transpose(0, 3, 1, 2), want, atol=1e-4)


def test_of_many_patches_some_are_taken_always_the_same_ones() -> None:
    patches = Patches((1, 1), (1, 1), (1, 1), (0, 0, 0, 0), 1, 4)
    x = normal(1, 4, 40, 40)
    assert patches.rows(x).shape == (1, MOST, 5)
    assert np.array_equal(patches.rows(x), patches.rows(x))
    assert Patches((9, 9), (1, 1), (1, 1), (0,) * 4, 2, 4).rows(normal(1, 4, 3, 3)).shape == (2, 0, 163)


@pytest.mark.parametrize("groups", [1, 4, 8])
def test_gptq_of_convolutions_loses_less_than_rounding(groups: int) -> None:
    patches = Patches((3, 3), (1, 1), (1, 1), (1, 1, 1, 1), groups, 8)
    collected = Gram(patches)
    for image in smooth(6, 8, 14, 14):
        collected.add(image[None])
    gram = collected.sum
    assert gram is not None
    weight = normal(patches.width - 1, 16)
    _, _, covariance = moments(gram)
    columns = covariance[np.arange(16) // (16 // groups)]

    def lost(restored: Array) -> float:
        change = restored - weight
        return float(np.einsum("kn,nkj,jn->", change, columns, change))

    before = weight.copy()
    done = gptq_conv(weight, gram, INT8)
    assert np.array_equal(weight, before)
    assert lost(done.restore()) < 0.5 * lost(store(weight, INT8).restore())


def test_pixels_of_a_widening_convolution_have_scales_of_their_own() -> None:
    text = """(float[batch,8,9,9] x) => (float[batch,16,9,9] y) {
        a = Mul(x, x) c = Mul(a, x) w = Conv(c, wide, b) r = Relu(w) n = Conv(r, narrow, d) s = Add(n, c) y = Conv(s, last, e) }"""
    weights = {"wide": normal(32, 8, 1, 1), "b": normal(32), "narrow": normal(8, 32, 1, 1), "d": normal(8),
               "last": normal(16, 8, 3, 3), "e": normal(16)}
    made, records, change = quantised("int8", made=model(text, weights))
    assert [r.actual for r in records] == ["int8", "int8-static", "int8-static"]
    assert {"QuantizedLinear": 1, "QuantizedConv": 2, "QuantizeRows": 1}.items() <= ops(made).items()
    assert change < 0.03
    assert "each pixel has its own" in quantised("int8-static", made=model(text, weights))[1][0].why
