"""Element types. NumPy has neither bf16 nor fp8: arrays hold their bits, as uint16 and uint8."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Dtype:
    """``onnx`` is the value of ONNX's TensorProto.DataType, ``tensorrt`` the name in nvinfer1::DataType."""

    storage: type[np.generic]
    onnx: int
    tensorrt: str


DTYPES = {
    "f32": Dtype(np.float32, 1, "kFLOAT"),
    "f16": Dtype(np.float16, 10, "kHALF"),
    "bf16": Dtype(np.uint16, 16, "kBF16"),
    "int8": Dtype(np.int8, 3, "kINT8"),
    "uint8": Dtype(np.uint8, 2, "kUINT8"),
    "int32": Dtype(np.int32, 6, "kINT32"),
    "fp8": Dtype(np.uint8, 17, "kFP8"),
}
E4M3_MAX = 448.0


def to_f32(array: np.ndarray, dtype: str) -> np.ndarray:
    """The values of an array of any type, exactly."""
    if dtype == "bf16":
        return np.asarray(array.astype(np.uint32) << 16).view(np.float32)
    if dtype == "fp8":
        return np.asarray(_E4M3[array])
    return array.astype(np.float32)


def from_f32(values: np.ndarray, dtype: str) -> np.ndarray:
    """Rounded to the nearest, ties to even. int8 and fp8 saturate; NaN gives 0 in int8 and 0x7f in fp8."""
    values = np.asarray(values, np.float32)
    if dtype == "bf16":
        bits = values.view(np.uint32)
        rounded = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
        return np.where(np.isnan(values), 0x7FFF, rounded).astype(np.uint16)
    if dtype == "int8":
        return np.asarray(np.nan_to_num(np.clip(np.rint(values), -128, 127), nan=0), np.int8)
    if dtype == "fp8":
        return _to_e4m3(values)
    with np.errstate(over="ignore"):
        return values.astype(DTYPES[dtype].storage)


def _to_e4m3(values: np.ndarray) -> np.ndarray:
    magnitude = np.minimum(np.abs(values), np.float32(E4M3_MAX))
    exponent = np.maximum(np.frexp(magnitude)[1] - 1, -6)  # below 2**-6 the step no longer shrinks
    step = np.ldexp(np.float32(1), exponent - 3)
    rounded = np.minimum(np.rint(magnitude / step) * step, np.float32(E4M3_MAX))
    code = np.searchsorted(_E4M3[:0x7F], np.nan_to_num(rounded)).astype(np.uint8)
    return np.where(np.isnan(values), np.uint8(0x7F), code | np.where(np.signbit(values), np.uint8(0x80), np.uint8(0)))


def _e4m3_table() -> np.ndarray:
    code = np.arange(256)
    exponent, mantissa = (code >> 3) & 15, code & 7
    magnitude = np.where(exponent == 0, mantissa / 8 * 2.0**-6, (1 + mantissa / 8) * 2.0 ** (exponent - 7.0))
    magnitude[(code & 0x7F) == 0x7F] = np.nan
    return np.where(code >= 128, -magnitude, magnitude).astype(np.float32)


_E4M3 = _e4m3_table()
