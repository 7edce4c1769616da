"""The GOLDEN section: inputs and the outputs that an engine must give for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from infc.compiler.artifact.cursor import Cursor
from infc.compiler.artifact.io import DTYPE_NAMES, IoSpec
from infc.compiler.artifact.layout import DTYPE_SIZES, DTYPES, GOLDEN_ENTRY, GOLDEN_HEADER, MAX_RANK, SECTION_ALIGN

# Types that numpy lacks are carried as their bits, or their values, in integers of their size.
NUMPY = {"f32": "<f4", "u8": "u1", "i8": "i1", "u16": "<u2", "i16": "<i2", "i32": "<i4", "i64": "<i8", "bool": "?", "f16": "<f2",
         "f64": "<f8", "u32": "<u4", "u64": "<u8", "bf16": "<u2", "f8e4m3fn": "u1", "f8e4m3fnuz": "u1", "f8e5m2": "u1",
         "f8e5m2fnuz": "u1", "u4": "u1", "i4": "i1", "f4e2m1": "u1", "f8e8m0": "u1", "u2": "u1", "i2": "i1"}


@dataclass
class GoldenCase:
    """Arrays by tensor name; ``tolerance`` is the largest accepted absolute difference of an output."""

    inputs: dict[str, np.ndarray]
    outputs: dict[str, np.ndarray]
    tolerance: float


def encode(cases: Sequence[GoldenCase], io: IoSpec) -> bytes:
    """The bytes of a GOLDEN section. Raises KeyError for a name that ``io`` lacks."""
    indices = [{t.name: (i, t.dtype) for i, t in enumerate(side)} for side in (io.inputs, io.outputs)]
    items = [(number, is_output, case.tolerance if is_output else 0.0, *indices[is_output][name], array)
             for number, case in enumerate(cases)
             for is_output, arrays in enumerate((case.inputs, case.outputs)) for name, array in arrays.items()]
    header = np.zeros((), GOLDEN_HEADER.dtype)
    header["case_count"], header["entry_count"] = len(cases), len(items)
    entries = np.zeros(len(items), GOLDEN_ENTRY.dtype)
    end = GOLDEN_HEADER.size + entries.nbytes
    chunks: list[bytes] = []
    for record, (number, is_output, tolerance, index, dtype, array) in zip(entries, items, strict=True):
        start = -(-end // SECTION_ALIGN) * SECTION_ALIGN
        data = np.ascontiguousarray(array, NUMPY[dtype]).tobytes()
        record["case_index"], record["is_output"], record["tensor"] = number, is_output, index
        record["dtype"], record["rank"], record["tolerance"] = DTYPES[dtype], array.ndim, tolerance
        record["offset"] = start
        record["dims"][: array.ndim] = array.shape
        chunks += [bytes(start - end), data]
        end = start + len(data)
    return b"".join((header.tobytes(), entries.tobytes(), *chunks))


def decode(data: memoryview | bytes, io: IoSpec, base: int = 0) -> list[GoldenCase]:
    """Raises ArtifactError E0607; ``base`` is the section's offset in its file. The arrays are views of ``data``."""
    cursor = Cursor(memoryview(data), "E0607", "section GOLDEN", base)
    header = cursor.one(GOLDEN_HEADER)
    entries = cursor.array(GOLDEN_ENTRY, int(header["entry_count"]))
    count = int(header["case_count"])
    cursor.require(count <= len(entries), f"{count} cases in {len(entries)} entries")
    cases = [GoldenCase({}, {}, 0.0) for _ in range(count)]
    for record in entries:
        number, is_output, index = int(record["case_index"]), int(record["is_output"]), int(record["tensor"])
        side = io.outputs if is_output else io.inputs
        cursor.require(number < count and is_output < 2 and index < len(side), "an entry of an unknown case or tensor")
        dtype = int(record["dtype"])
        cursor.require(dtype in DTYPE_NAMES and int(record["rank"]) <= MAX_RANK, "an entry has an unknown type or rank")
        shape = tuple(map(int, record["dims"][: int(record["rank"])]))
        elements = 1
        for d in shape:
            elements *= d
        start, size = int(record["offset"]), elements * DTYPE_SIZES[dtype]
        cursor.require(start % SECTION_ALIGN == 0 and cursor.position <= start and start + size <= len(cursor.data),
                       f"the array at {start} leaves the section")
        array = np.frombuffer(cursor.data[start : start + size], NUMPY[DTYPE_NAMES[dtype]]).reshape(shape)
        case = cases[number]
        if is_output:
            case.outputs[side[index].name] = array
            case.tolerance = float(record["tolerance"])
        else:
            case.inputs[side[index].name] = array
    return cases
