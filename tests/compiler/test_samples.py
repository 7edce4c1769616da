"""Sample inputs respect ranges and masks, and are the same every time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infc.compiler import samples
from infc.compiler.interface import Interface, TensorSpec
from infc.compiler.source import resolve

DIMS = ("batch", "seq")
TEXT = Interface((TensorSpec("input_ids", "i64", DIMS, range=(0, 63)), TensorSpec("attention_mask", "i64", DIMS, 1, (0, 1)),
                  TensorSpec("token_type_ids", "i64", DIMS, 0, (0, 1)), TensorSpec("image", "f32", ("batch", 3))), (),
                 mask="attention_mask")


@settings(deadline=None)
@given(st.integers(1, 9), st.integers(1, 40), st.booleans())
def test_shapes_ranges_and_masks(batch: int, seq: int, trim: bool) -> None:
    found = list(samples.cases(TEXT, {"batch": batch, "seq": seq}, trim=trim))
    assert found
    for case in found:
        rows, columns = case.inputs["attention_mask"].shape
        assert (rows, columns) <= (batch, seq)
        assert trim or (rows, columns) == (batch, seq)
        for spec in TEXT.inputs:
            array = case.inputs[spec.name]
            assert array.dtype == spec.numpy
            assert array.shape == spec.shape({"batch": rows, "seq": columns})
            assert spec.range is None or (array.min() >= spec.range[0] and array.max() <= spec.range[1])
        mask = case.inputs["attention_mask"]
        assert (mask[:, 0] == 1).all(), "every row has a token"
        assert (np.diff(mask, axis=1) <= 0).all(), "padding is at the end"


def test_all_kinds_appear() -> None:
    found = {c.name: c.inputs["attention_mask"] for c in samples.cases(TEXT, {"batch": 4, "seq": 20})}
    assert found["full"].all()
    assert not found["padded"].all()
    lengths = found["mixed lengths"].sum(1)
    assert len(set(lengths)) == 4
    assert lengths.max() == found["mixed lengths"].shape[1] < 20
    assert found["shortest"].shape == (1, 3)


def test_texts_fill_exactly_their_length(bert: Path) -> None:
    tokenize = samples.tokenizer(resolve(bert))
    assert tokenize is not None
    for case in samples.cases(TEXT, {"batch": 2, "seq": 30}, tokenize):
        if case.name == "random":
            continue
        for ids, mask in zip(case.inputs["input_ids"], case.inputs["attention_mask"], strict=True):
            length = mask.sum()
            assert (ids[0], ids[length - 1]) == (2, 3), "[CLS] … [SEP]"
            assert not ids[length:].any()
        assert not case.inputs["token_type_ids"].any()


def test_seeded() -> None:
    one, two = (list(samples.cases(TEXT, {"batch": 2, "seq": 8})) for _ in range(2))
    for a, b in zip(one, two, strict=True):
        for name in a.inputs:
            np.testing.assert_array_equal(a.inputs[name], b.inputs[name])


@pytest.mark.parametrize("dtype", ["f32", "f64", "u8", "i8", "i32", "bool"])
def test_every_type(dtype: str) -> None:
    interface = Interface((TensorSpec("x", dtype, (2, "n")),), ())
    array = samples.random_inputs(interface, {"n": 5}, np.random.default_rng(0))["x"]
    assert array.shape == (2, 5)
    assert array.dtype == interface.inputs[0].numpy
