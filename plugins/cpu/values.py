"""What lowering works on: buffers, strided tensors over them, and steps."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import ml_dtypes
import numpy as np

from infc.compiler.artifact.layout import ARENA_ALIGN, DTYPE_SIZES, DTYPES

NUMPY: dict[str, np.dtype[Any]] = {
    "f32": np.dtype("<f4"), "u8": np.dtype("u1"), "i8": np.dtype("i1"), "u16": np.dtype("<u2"), "i16": np.dtype("<i2"),
    "i32": np.dtype("<i4"), "i64": np.dtype("<i8"), "bool": np.dtype("?"), "f16": np.dtype("<f2"), "f64": np.dtype("<f8"),
    "u32": np.dtype("<u4"), "u64": np.dtype("<u8"), **{name: np.dtype(getattr(ml_dtypes, long)) for name, long in {
        "bf16": "bfloat16", "f8e4m3fn": "float8_e4m3fn", "f8e4m3fnuz": "float8_e4m3fnuz", "f8e5m2": "float8_e5m2",
        "f8e5m2fnuz": "float8_e5m2fnuz", "f8e8m0": "float8_e8m0fnu", "f4e2m1": "float4_e2m1fn", "u4": "uint4", "i4": "int4",
        "u2": "uint2", "i2": "int2"}.items()}}
NAMES = {dtype: name for name, dtype in NUMPY.items()}
DYNAMIC = ("ARENA", "OUTPUT")  # spaces that steps write


def itemsize(dtype: str) -> int:
    return DTYPE_SIZES[DTYPES[dtype]]


def product(dims: Sequence[int]) -> int:
    result = 1
    for d in dims:
        result *= d
    return result


def dense_strides(dims: Sequence[int]) -> tuple[int, ...]:
    strides = [1] * len(dims)
    for i in reversed(range(len(dims) - 1)):
        strides[i] = strides[i + 1] * dims[i + 1]
    return tuple(strides)


@dataclass(eq=False)
class Buffer:
    """A piece of memory: ``index`` of the input or output, ``data`` of a constant (packed already if ``packing`` says so)."""

    space: str
    nbytes: int
    index: int = 0
    data: np.ndarray | None = None
    packing: str = "ROW_MAJOR"

    @cached_property
    def content(self) -> tuple[object, ...]:
        """Equal for constants that are stored the same."""
        assert self.data is not None
        digest = hashlib.sha256(self.data.reshape(-1).view(np.uint8).data).digest()
        return digest, self.data.shape if self.packing != "ROW_MAJOR" else (), str(self.data.dtype), self.packing


@dataclass(frozen=True)
class Tensor:
    """A strided view of a buffer; strides and offset in elements.

    ``symbols`` names the dimensions that are run-time scalars; ``dims`` then holds their bounds.
    """

    buffer: Buffer
    dtype: str
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0
    symbols: tuple[str | None, ...] = ()

    def __post_init__(self) -> None:
        if not self.symbols:
            object.__setattr__(self, "symbols", (None,) * len(self.dims))

    @property
    def symbol(self) -> str | None:
        """The run-time scalar that gives dims[0]."""
        return self.symbols[0] if self.symbols else None

    @property
    def size(self) -> int:
        return product(self.dims)

    @property
    def is_dense(self) -> bool:
        return all(d == 1 or s == e for d, s, e in zip(self.dims, self.strides, dense_strides(self.dims), strict=True))

    @property
    def is_aligned(self) -> bool:
        """Whether an operand may start here."""
        if self.buffer.space in ("INPUT", "OUTPUT"):
            return self.offset == 0
        return self.offset * itemsize(self.dtype) % ARENA_ALIGN == 0

    @property
    def is_whole(self) -> bool:
        """Whether it is all of its buffer in order."""
        return self.is_dense and self.offset == 0 and self.size * itemsize(self.dtype) == self.buffer.nbytes

    @property
    def constant(self) -> np.ndarray | None:
        """The values, where they are known; a view."""
        data = self.buffer.data
        if data is None:
            return None
        flat = data.reshape(-1)[self.offset :]
        return np.lib.stride_tricks.as_strided(flat, self.dims, [s * data.itemsize for s in self.strides], writeable=False)

    def view(self, dims: Sequence[int], strides: Sequence[int], symbols: Sequence[str | None] = (),
             offset: int | None = None) -> Tensor:
        return replace(self, dims=tuple(dims), strides=tuple(strides), symbols=tuple(symbols) or (None,) * len(dims),
                       offset=self.offset if offset is None else offset)

    def rows(self, split: int) -> tuple[int, int, int] | None:
        """(rows, inner, row stride) when read as a matrix whose rows are the first ``split`` dimensions and whose inner dimension
        is dense; None if the strides do not allow that."""
        inner, expected = 1, 1
        for d, s in zip(reversed(self.dims[split:]), reversed(self.strides[split:]), strict=True):
            if d != 1 and s != expected:
                return None
            expected *= d
            inner *= d
        rows, stride, reach = 1, inner, 0
        for d, s in zip(reversed(self.dims[:split]), reversed(self.strides[:split]), strict=True):
            if d == 1:
                continue
            if rows == 1:
                stride = s
            elif s != reach:
                return None
            rows *= d
            reach = s * d
        return (rows, inner, stride) if stride >= inner else None

    def ref(self, dims: Sequence[int], row_stride: int | None = None) -> Ref:
        """This memory as an operand of other dimensions; the leading one keeps the symbol if it keeps the size."""
        dims = tuple(dims) or (1,)
        symbol = self.symbol if self.symbol and dims[0] == self.dims[0] else None
        return Ref(self.buffer, self.dtype, dims, self.offset, product(dims[1:]) if row_stride is None else row_stride, symbol)


@dataclass(frozen=True)
class Ref:
    """An operand before memory is planned; ``offset`` in elements from the buffer's start, ``packing`` where steps pack it."""

    buffer: Buffer
    dtype: str
    dims: tuple[int, ...]
    offset: int
    row_stride: int
    symbol: str | None = None
    packing: str = ""

    @property
    def start(self) -> int:
        """Bytes from the buffer's start."""
        return self.offset * itemsize(self.dtype)

    @property
    def pitch(self) -> int:
        """Bytes between rows."""
        return self.row_stride * itemsize(self.dtype)

    @property
    def row_bytes(self) -> int:
        return product(self.dims[1:]) * itemsize(self.dtype)

    @property
    def span(self) -> int:
        """Bytes from the first element to the end of the last."""
        return (self.dims[0] - 1) * self.pitch + self.row_bytes


@dataclass(eq=False)
class Step:
    """A kernel call over virtual memory. ``rows``, ``symbol`` and ``cols`` are the extents of the splits."""

    op: str
    inputs: list[Ref]
    outputs: list[Ref]
    words: tuple[int, ...]
    rows: int
    symbol: str | None = None
    cols: int = 1
    name: str = ""
    fused: list[str] = field(default_factory=list)

    @property
    def refs(self) -> list[Ref]:
        return self.inputs + self.outputs

    @property
    def rows_key(self) -> str | int:
        """Steps with equal keys have the same boundaries when split by rows."""
        return self.symbol or self.rows
