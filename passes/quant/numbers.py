"""Stored number formats: rounding to them, and the scales that weights are stored with.

A weight is a matrix ``[K, N]``: K is what a product sums over, N its output channels. In blocks of B along K it is ``[G, B, N]``;
without blocks G is 1 and B is K. Scales and zeros are ``[G, 1, N]``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

Array = np.ndarray[Any, Any]

_CHUNK = 1 << 18  # weights that are searched at a time: what is computed on the way stays small
_PARTS = np.linspace(1.0, 0.6, 11)  # of a block's range, which a scale may stand for
_LEAST_SCALE = float(np.finfo(np.float16).tiny)  # of f16: smaller ones would lose digits there


@dataclass(frozen=True)
class Kind:
    """A number format. ``least`` and ``largest`` are what values are clamped to: symmetric formats do not use int8's -128, of
    which there is no counterpart. With ``zeros`` a block has a zero point."""

    dtype: ir.DataType
    least: float
    largest: float
    zeros: bool = False

    @property
    def numpy(self) -> Any:
        """What numbers are kept in until they are written: bytes for those of four bits."""
        return {ir.DataType.INT4: np.int8, ir.DataType.UINT4: np.uint8}.get(self.dtype) or self.dtype.numpy()

    def round(self, data: Array, scale: Array, zero: Array | None = None) -> Array:
        """``clip(rint(data / scale) + zero)``, as f32; of float formats ``clip(data / scale)``."""
        scaled = np.divide(data, scale, dtype=np.float32)
        if self.dtype != ir.DataType.FLOAT8E4M3FN:
            np.rint(scaled, out=scaled)
        if zero is not None:
            scaled += zero
        return np.clip(scaled, self.least, self.largest, out=scaled)

    def store(self, data: Array, scale: Array, zero: Array | None = None) -> Array:
        """The same in the format; floats round to nearest, ties to even, and saturate."""
        return np.asarray(self.round(data, scale, zero).astype(self.numpy))


INT8 = Kind(ir.DataType.INT8, -127, 127)
INT4 = Kind(ir.DataType.INT4, -8, 7)
UINT4 = Kind(ir.DataType.UINT4, 0, 15, zeros=True)
FP8 = Kind(ir.DataType.FLOAT8E4M3FN, -448, 448)
BF16 = Kind(ir.DataType.BFLOAT16, float(-np.inf), float(np.inf))
F16 = Kind(ir.DataType.FLOAT16, -65504, 65504)
KINDS = {"int8": INT8, "int4": INT4, "uint4": UINT4, "fp8": FP8}


@dataclass(frozen=True)
class Stored:
    """A weight ``[K, N]`` in numbers of ``kind``, with scales f32 ``[G, N]`` and zeros ``[G, N]``; ``block`` is K / G."""

    kind: Kind
    data: Array
    scale: Array
    zero: Array | None
    block: int

    def restore(self) -> Array:
        """f32 ``[K, N]``."""
        k, n = self.data.shape
        blocks = self.data.reshape(-1, self.block, n).astype(np.float32)
        if self.zero is not None:
            blocks -= self.zero[:, None].astype(np.float32)
        return (blocks * self.scale[:, None]).reshape(k, n)


def store(weight: Array, kind: Kind, block: int = 0, importance: Array | None = None) -> Stored:
    """Rounds a matrix ``[K, N]`` to nearest. In 4 bits each block has the f16 scale of least squared error, rows weighed by
    ``importance`` ``[K]``; otherwise the largest number of a column is kept."""
    return store_with(weight, kind, block, *scales(weight, kind, block, importance))


def store_with(weight: Array, kind: Kind, block: int, scale: Array, zero: Array | None) -> Stored:
    """Rounds to nearest with given scales and zeros ``[G, N]``."""
    k, n = weight.shape
    block = block or k
    data = np.empty((k, n), kind.numpy)
    step = max(1, _CHUNK // n)
    for g, start in enumerate(range(0, k, block)):
        for first in range(start, start + block, step):
            rows = slice(first, min(first + step, start + block))
            data[rows] = kind.store(weight[rows], scale[g], None if zero is None else zero[g])
    return Stored(kind, data, scale, zero, block)


def scales(weight: Array, kind: Kind, block: int = 0, importance: Array | None = None) -> tuple[Array, Array | None]:
    """Scales f32 ``[G, N]`` and, where the kind has them, zeros ``[G, N]`` in its numbers."""
    k, n = weight.shape
    block = block or k
    scale, zero = np.empty((k // block, n), np.float32), np.zeros((k // block, n), kind.numpy)
    weigh = np.ones((k // block, block, 1), np.float32)
    if importance is not None and float(np.max(importance)) > 0:
        weigh = np.maximum(importance / np.mean(importance), 1e-4).astype(np.float32).reshape(weigh.shape)
    columns = max(1, _CHUNK // k)
    for first in range(0, n, columns):
        part = slice(first, first + columns)
        blocks = np.asarray(weight[:, part], np.float32).reshape(k // block, block, -1)
        scale[:, part], zero[:, part] = _search(blocks, kind, weigh)
    return scale, zero if kind.zeros else None


def _search(blocks: Array, kind: Kind, weigh: Array) -> tuple[Array, Array]:
    low, high = np.minimum(blocks.min(axis=1, keepdims=True), 0), np.maximum(blocks.max(axis=1, keepdims=True), 0)
    if kind not in (INT4, UINT4):
        scale = _positive(np.maximum(high, -low) / kind.largest)
        return scale[:, 0], np.zeros_like(scale[:, 0])
    best_scale, best_zero = np.ones_like(low), np.zeros_like(low)
    least = np.full(low.shape, np.inf, np.float32)
    for part in _PARTS:
        scale, zero = _candidate(low * part, high * part, kind)
        error = kind.round(blocks, scale, zero)
        error -= zero
        error *= scale
        error -= blocks
        total = np.einsum("gbn,gbn,gb->gn", error, error, weigh[:, :, 0])[:, None]
        better = total < least
        np.copyto(best_scale, scale, where=better)
        np.copyto(best_zero, zero, where=better)
        np.copyto(least, total, where=better)
    return best_scale[:, 0], best_zero[:, 0]


def _candidate(low: Array, high: Array, kind: Kind) -> tuple[Array, Array]:
    """A scale that f16 holds, and a zero, for numbers from low to high."""
    if kind.zeros:
        scale = _half((high - low) / (kind.largest - kind.least))
        return scale, np.clip(np.rint(-low / scale), kind.least, kind.largest).astype(np.float32)
    return _half(np.maximum(high / kind.largest, low / kind.least)), np.zeros_like(low)


def _half(scale: Array) -> Array:
    """The next f16 number, as f32."""
    return np.where(scale > 0, np.clip(scale, _LEAST_SCALE, 65504).astype(np.float16), 1).astype(np.float32)


def _positive(scale: Array) -> Array:
    """Zeros, of which any scale is right, have 1."""
    return np.where(scale > 0, np.maximum(scale, np.finfo(np.float32).tiny), 1).astype(np.float32)


def activation_scale(low: float, high: float, symmetric: bool) -> tuple[float, int]:
    """Scale and zero of static 8-bit activations between low and high: int8 without a zero if ``symmetric``, else uint8."""
    low, high = min(low, 0.0), max(high, 0.0)
    scale = max(high, -low) / 127 if symmetric else (high - low) / 255
    scale = float(np.float32(scale)) or 1.0
    return scale, 0 if symmetric else int(np.clip(np.rint(-low / scale), 0, 255))


def pack4(data: Array) -> Array:
    """Two numbers a byte in row-major order, the first in the low four bits; an odd last byte has zero in the high ones."""
    nibbles = data.reshape(-1).astype(np.int8).view(np.uint8) & 0xF
    nibbles = np.append(nibbles, np.zeros(nibbles.size % 2, np.uint8))
    return nibbles[0::2] | nibbles[1::2] << 4


def tensor(data: Array, dtype: ir.DataType, name: str) -> ir.TensorProtocol:
    """The numbers as they are stored: two a byte where they have four bits."""
    data = np.ascontiguousarray(data)
    if dtype in (ir.DataType.INT4, ir.DataType.UINT4):
        return ir.PackedTensor(pack4(data), dtype, shape=ir.Shape(data.shape), name=name)
    return ir.tensor(data, dtype=dtype, name=name)
