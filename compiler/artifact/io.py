"""The IO section: inputs, outputs, named dimensions and profiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from infc.compiler.artifact.cursor import Cursor, Strings, StringTable
from infc.compiler.artifact.layout import DIM_EXACT, DIM_PADS, DTYPES, IO_HEADER, IO_SYMBOL, IO_TENSOR, MAX_RANK, TENSOR_OPTIONAL

MAX_SYMBOLS = 16
MAX_TENSORS = 1024  # inputs and outputs together
DTYPE_NAMES = {code: name for name, code in DTYPES.items()}


@dataclass(frozen=True)
class IoTensor:
    """``dtype`` is a key of layout.DTYPES; a dimension is a size or a symbol's name; ``range`` is inclusive."""

    name: str
    dtype: str
    dims: tuple[int | str, ...]
    optional: bool = False
    fill: int = 0
    range: tuple[int, int] | None = None


@dataclass(frozen=True)
class IoSymbol:
    """``policy`` is layout.DIM_EXACT or layout.DIM_PADS."""

    name: str
    policy: int


@dataclass
class IoSpec:
    """``profiles`` go from smallest to largest; each gives every symbol's size."""

    inputs: Sequence[IoTensor]
    outputs: Sequence[IoTensor]
    symbols: Sequence[IoSymbol] = ()
    profiles: Sequence[dict[str, int]] = field(default_factory=lambda: [{}])

    def shape(self, tensor: IoTensor, profile: int) -> tuple[int, ...]:
        """The tensor's dimensions in a profile."""
        return tuple(d if isinstance(d, int) else self.profiles[profile][d] for d in tensor.dims)


def encode(spec: IoSpec) -> bytes:
    """The bytes of an IO section."""
    strings = StringTable()
    numbers = {symbol.name: i for i, symbol in enumerate(spec.symbols)}
    tensors = np.zeros(len(spec.inputs) + len(spec.outputs), IO_TENSOR.dtype)
    for record, tensor in zip(tensors, [*spec.inputs, *spec.outputs], strict=True):
        record["name"] = strings.add(tensor.name)
        record["dtype"] = DTYPES[tensor.dtype]
        record["rank"] = len(tensor.dims)
        record["flags"] = TENSOR_OPTIONAL if tensor.optional else 0
        if tensor.range is not None:
            record["has_range"] = 1
            record["range_min"], record["range_max"] = tensor.range
        record["fill"] = tensor.fill
        record["dims"][: len(tensor.dims)] = [d if isinstance(d, int) else -(numbers[d] + 1) for d in tensor.dims]
    symbols = np.zeros(len(spec.symbols), IO_SYMBOL.dtype)
    for record, symbol in zip(symbols, spec.symbols, strict=True):
        record["name"], record["policy"] = strings.add(symbol.name), symbol.policy
    bounds = np.array([[profile[s.name] for s in spec.symbols] for profile in spec.profiles], "<u4")
    header = np.zeros((), IO_HEADER.dtype)
    header["input_count"], header["output_count"] = len(spec.inputs), len(spec.outputs)
    header["symbol_count"], header["profile_count"] = len(spec.symbols), len(spec.profiles)
    header["strings_size"] = len(strings.data)
    return b"".join((header.tobytes(), tensors.tobytes(), symbols.tobytes(), bounds.tobytes(), bytes(strings.data)))


def decode(data: memoryview | bytes, base: int = 0) -> IoSpec:
    """Raises ArtifactError E0605; ``base`` is the section's offset in its file."""
    cursor = Cursor(memoryview(data), "E0605", "section IO", base)
    header = cursor.one(IO_HEADER)
    inputs, outputs = int(header["input_count"]), int(header["output_count"])
    count, profiles = int(header["symbol_count"]), int(header["profile_count"])
    cursor.require(count <= MAX_SYMBOLS, f"{count} symbols, at most {MAX_SYMBOLS} are allowed")
    cursor.require(profiles > 0, "there is no profile")
    tensors = cursor.array(IO_TENSOR, inputs + outputs)
    records = cursor.array(IO_SYMBOL, count)
    bounds = cursor.words(count * profiles).reshape(profiles, count)
    strings = cursor.strings(int(header["strings_size"]))
    cursor.end()
    symbols = [_symbol(cursor, strings, r) for r in records]
    names = [s.name for s in symbols]
    cursor.require(bool((bounds > 0).all()), "a profile has a dimension of zero")
    specs = [_tensor(cursor, strings, names, r) for r in tensors]
    return IoSpec(specs[:inputs], specs[inputs:], symbols, [dict(zip(names, map(int, row), strict=True)) for row in bounds])


def _symbol(cursor: Cursor, strings: Strings, record: np.void) -> IoSymbol:
    policy = int(record["policy"])
    cursor.require(policy in (DIM_EXACT, DIM_PADS), f"unknown dimension policy {policy}")
    return IoSymbol(strings[int(record["name"])], policy)


def _tensor(cursor: Cursor, strings: Strings, symbols: list[str], record: np.void) -> IoTensor:
    dtype, rank = int(record["dtype"]), int(record["rank"])
    cursor.require(dtype in DTYPE_NAMES, f"unknown element type {dtype}")
    cursor.require(rank <= MAX_RANK, f"rank {rank}, at most {MAX_RANK} is allowed")
    dims: list[int | str] = []
    for d in map(int, record["dims"][:rank]):
        cursor.require(d >= 0 or -d <= len(symbols), f"dimension {d} is neither a size nor a symbol")
        dims.append(d if d >= 0 else symbols[-d - 1])
    bounds = (int(record["range_min"]), int(record["range_max"])) if record["has_range"] else None
    return IoTensor(strings[int(record["name"])], DTYPE_NAMES[dtype], tuple(dims), bool(record["flags"] & TENSOR_OPTIONAL),
                    int(record["fill"]), bounds)
