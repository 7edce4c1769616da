"""Stored number formats: rounding to them, and the scales that weights are stored with.

A weight is a matrix ``[K, N]``: K is what a product sums over, N its output channels. In blocks of B along K it is ``[G, B, N]``;
without blocks G is 1 and B is K. Scales and zeros are ``[G, 1, N]``. A zero is the number that stands for 0, counted in whole
numbers or in parts of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

Array = np.ndarray[Any, Any]

_CHUNK = 1 << 18  # weights that are searched at a time: what is computed on the way stays small
_PARTS = np.linspace(1.0, 0.6, 11)  # of a block's range, which a scale may stand for
# Weights that were rounded before keep their own numbers if the steps from the least to the largest are counted right: fewer
# than 15 where not all numbers occur. Of fewer than 8 a multiple is here.
_STEPS = range(8, 15)
_REFINEMENTS = 2
_LEAST_SCALE = float(np.finfo(np.float16).tiny)  # of f16: smaller ones would lose digits there


@dataclass(frozen=True)
class Kind:
    """A number format. ``least`` and ``largest`` are what values are clamped to: symmetric formats do not use int8's -128, of
    which there is no counterpart. With ``zeros`` a block has a zero point: a number of the format, or a byte that counts ``parts``
    of one, so that the numbers begin where the block's weights do."""

    dtype: ir.DataType
    least: float
    largest: float
    zeros: bool = False
    parts: int = 1

    @property
    def zero_dtype(self) -> ir.DataType:
        return self.dtype if self.parts == 1 else ir.DataType.UINT8

    def empty_zeros(self, shape: tuple[int, ...]) -> Array | None:
        """Room for zeros; None of kinds without."""
        return np.empty(shape, self.numpy) if self.zeros else None

    @property
    def numpy(self) -> Any:
        """What numbers are kept in until they are written: bytes for those of four bits."""
        return {ir.DataType.INT4: np.int8, ir.DataType.UINT4: np.uint8}.get(self.dtype) or self.dtype.numpy()

    def round(self, data: Array, scale: Array, zero: Array | None = None) -> Array:
        """``clip(rint(data / scale) + zero)``, as f32; of float formats ``clip(data / scale)``, of zeros in parts
        ``clip(rint(data / scale + zero / parts))``."""
        scaled = np.divide(data, scale, dtype=np.float32)
        if zero is not None and self.parts > 1:
            scaled += self._whole(zero)
        if self.dtype != ir.DataType.FLOAT8E4M3FN:
            np.rint(scaled, out=scaled)
        if zero is not None and self.parts == 1:
            scaled += zero
        return np.clip(scaled, self.least, self.largest, out=scaled)

    def restore(self, numbers: Array, scale: Array, zero: Array | None = None) -> Array:
        """What numbers stand for, f32: ``(numbers - zero / parts) * scale``."""
        restored = np.array(numbers, np.float32)
        if zero is not None:
            restored -= self._whole(zero)
        restored *= scale
        return restored

    def _whole(self, zero: Array) -> Array:
        return np.asarray(zero, np.float32) / np.float32(self.parts)

    def store(self, data: Array, scale: Array, zero: Array | None = None) -> Array:
        """The same in the format; floats round to nearest, ties to even, and saturate."""
        return np.asarray(self.round(data, scale, zero).astype(self.numpy))


INT8 = Kind(ir.DataType.INT8, -127, 127)
INT4 = Kind(ir.DataType.INT4, -8, 7)
UINT4 = Kind(ir.DataType.UINT4, 0, 15, zeros=True)
UINT4_FINE = Kind(ir.DataType.UINT4, 0, 15, zeros=True, parts=16)
FP8 = Kind(ir.DataType.FLOAT8E4M3FN, -448, 448)
BF16 = Kind(ir.DataType.BFLOAT16, float(-np.inf), float(np.inf))
F16 = Kind(ir.DataType.FLOAT16, -65504, 65504)
KINDS = {"int8": INT8, "int4": INT4, "uint4": UINT4, "uint4-fine": UINT4_FINE, "fp8": FP8}


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
        zero = None if self.zero is None else self.zero[:, None]
        return self.kind.restore(self.data.reshape(-1, self.block, n), self.scale[:, None], zero).reshape(k, n)


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
    """Scales f32 ``[G, N]`` and, where the kind has them, zeros ``[G, N]``."""
    k, n = weight.shape
    block = block or k
    scale, zero = np.empty((k // block, n), np.float32), kind.empty_zeros((k // block, n))
    weigh = np.ones((k // block, block, 1), np.float32)
    if importance is not None and float(np.max(importance)) > 0:
        weigh = np.maximum(importance / np.mean(importance), 1e-4).astype(np.float32).reshape(weigh.shape)
    columns = max(1, _CHUNK // k)
    for first in range(0, n, columns):
        part = slice(first, first + columns)
        blocks = np.asarray(weight[:, part], np.float32).reshape(k // block, block, -1)
        scale[:, part], found = _search(blocks, kind, weigh)
        if zero is not None:
            zero[:, part] = found
    return scale, zero


def _search(blocks: Array, kind: Kind, weigh: Array) -> tuple[Array, Array]:
    """Of numbers of four bits those of least squared error."""
    least, most = blocks.min(axis=1, keepdims=True), blocks.max(axis=1, keepdims=True)
    low, high = np.minimum(least, 0), np.maximum(most, 0)
    if kind not in (INT4, UINT4, UINT4_FINE):
        scale = _positive(np.maximum(high, -low) / kind.largest)
        return scale[:, 0], np.zeros_like(scale[:, 0])
    best = _Best(blocks, kind, weigh)
    for part in _PARTS:
        best.propose(*_candidate(low, high, part, kind))
    for steps in _STEPS:
        scale = _half((most - least) / steps)
        best.propose(scale, _zero(least, scale, kind))
    for _ in range(_REFINEMENTS):
        best.propose(*best.fitted())
    return best.scale[:, 0], best.zero[:, 0]


class _Best:
    """The scales and zeros ``[G, 1, N]`` of least squared error, of those proposed for blocks ``[G, B, N]``."""

    def __init__(self, blocks: Array, kind: Kind, weigh: Array) -> None:
        self._blocks, self._kind, self._weigh = blocks, kind, weigh
        shape = (len(blocks), 1, blocks.shape[2])
        self.scale, self.zero = np.ones(shape, np.float32), np.zeros(shape, np.float32)
        self._least = np.full(shape, np.inf, np.float32)

    def propose(self, scale: Array, zero: Array) -> None:
        error = self._kind.restore(self._kind.round(self._blocks, scale, zero), scale, zero)
        error -= self._blocks
        total = self._sum(error, error)
        better = total < self._least
        np.copyto(self.scale, scale, where=better)
        np.copyto(self.zero, zero, where=better)
        np.copyto(self._least, total, where=better)

    def fitted(self) -> tuple[Array, Array]:
        """Scales, and zeros in parts, that fit the rounded numbers best: least squares."""
        numbers = self._kind.round(self._blocks, self.scale, self.zero)
        if self._kind.parts == 1:
            numbers -= self.zero
            square = self._sum(numbers, numbers)
            return _half(self._sum(numbers, self._blocks) / np.where(square > 0, square, 1)), self.zero
        whole, ones = np.sum(self._weigh, axis=1, keepdims=True), np.ones_like(numbers)
        total, square = self._sum(numbers, ones), self._sum(numbers, numbers)
        values, product = self._sum(self._blocks, ones), self._sum(numbers, self._blocks)
        spread = whole * square - total * total
        scale = _half((whole * product - total * values) / np.where(spread > 0, spread, 1))
        return scale, _zero((values - scale * total) / whole, scale, self._kind)

    def _sum(self, a: Array, b: Array) -> Array:
        total: Array = np.einsum("gbn,gbn,gb->gn", a, b, self._weigh[:, :, 0])
        return total[:, None]


def _candidate(low: Array, high: Array, part: float, kind: Kind) -> tuple[Array, Array]:
    """A scale that f16 holds, and a zero, for numbers of a part of what lies from low to high."""
    low, high = low * part, high * part
    if kind.zeros:
        scale = _half((high - low) / (kind.largest - kind.least))
        return scale, _zero(low, scale, kind)
    return _half(np.maximum(high / kind.largest, low / kind.least)), np.zeros_like(low)


def _zero(low: Array, scale: Array, kind: Kind) -> Array:
    """Where the least number stands for ``low``."""
    if not kind.zeros:
        return np.zeros_like(low)
    return np.clip(np.rint(-low / scale * kind.parts), kind.least, kind.largest if kind.parts == 1 else 255)


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
