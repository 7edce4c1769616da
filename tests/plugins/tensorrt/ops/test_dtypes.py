from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tests.gpu.operators import dtypes

LIBRARY = {"bf16": ml_dtypes.bfloat16, "fp8": ml_dtypes.float8_e4m3fn}


@pytest.mark.parametrize("dtype", LIBRARY)
def test_every_code_has_the_value_that_ml_dtypes_gives_it(dtype: str) -> None:
    storage = dtypes.DTYPES[dtype].storage
    codes = np.arange(2 ** (8 * np.dtype(storage).itemsize)).astype(storage)
    np.testing.assert_array_equal(dtypes.to_f32(codes, dtype), codes.view(LIBRARY[dtype]).astype(np.float32))


@pytest.mark.parametrize("dtype", LIBRARY)
def test_rounding_is_that_of_ml_dtypes(dtype: str) -> None:
    rng = np.random.default_rng(0)
    values = np.concatenate(
        [
            rng.integers(0, 2**32, 200_000, np.uint64).astype(np.uint32).view(np.float32),
            rng.standard_normal(100_000).astype(np.float32) * 100,
            np.float32([0, -0.0, 2**-10, 3 * 2**-10, 17, 18, 19]),
        ]
    )
    with np.errstate(all="ignore"):
        if dtype == "fp8":
            values = values[np.abs(values) <= 448]  # beyond, ml_dtypes does not saturate
        expected = values.astype(LIBRARY[dtype])
    got = dtypes.from_f32(values, dtype).view(LIBRARY[dtype])
    np.testing.assert_array_equal(got.astype(np.float32), expected.astype(np.float32))
    np.testing.assert_array_equal(np.signbit(got.astype(np.float32))[~np.isnan(values)], np.signbit(values)[~np.isnan(values)])


def test_what_does_not_fit_saturates() -> None:
    values = np.float32([np.nan, np.inf, -np.inf, 1e9, -1e9, 447, 460, 127.5, 126.5, -128.5, 0.5, 1.5])
    assert dtypes.from_f32(values, "int8").tolist() == [0, 127, -128, 127, -128, 127, 127, 127, 126, -128, 0, 2]
    assert dtypes.from_f32(values[:7], "fp8").tolist() == [0x7F, 0x7E, 0xFE, 0x7E, 0xFE, 0x7E, 0x7E]
