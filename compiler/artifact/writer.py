"""Sections to the bytes of an artifact, and to a file."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from infc.compiler.artifact.layout import (
    HEADER,
    MAGIC,
    SECTION,
    SECTION_ALIGN,
    SECTION_KINDS,
    SECTION_REQUIRED,
    VERSION_MAJOR,
    VERSION_MINOR,
    WEIGHTS_ALIGN,
)
from infc.compiler.aside import whole

if TYPE_CHECKING:
    from infc.compiler.target import Section


def pack(sections: Sequence[Section]) -> bytes:
    """The artifact's bytes; they depend on nothing but the sections and their order."""
    return b"".join(_chunks(sections))


def write(path: str | os.PathLike[str], sections: Sequence[Section]) -> None:
    """Replaces ``path`` as one step. OSError passes through."""
    with whole(path) as aside, open(aside, "wb") as file:
        for chunk in _chunks(sections):
            file.write(chunk)


def _chunks(sections: Sequence[Section]) -> Iterator[bytes | memoryview]:
    table = np.zeros(len(sections), SECTION.dtype)
    end = HEADER.size + table.nbytes
    for record, section in zip(table, sections, strict=True):
        align = WEIGHTS_ALIGN if section.kind == "WEIGHTS" else SECTION_ALIGN
        data = memoryview(section.data).cast("B")
        record["kind"] = SECTION_KINDS[section.kind]
        record["flags"] = SECTION_REQUIRED if section.required else 0
        record["offset"] = -(-end // align) * align
        record["size"] = data.nbytes
        record["crc32"] = zlib.crc32(data)
        record["ordinal"] = section.ordinal
        name = section.name.encode()[: SECTION.dtype["name"].shape[0] - 1]
        record["name"][: len(name)] = list(name)
        end = int(record["offset"]) + data.nbytes
    yield _header(table, end)
    yield table.tobytes()
    position = HEADER.size + table.nbytes
    for record, section in zip(table, sections, strict=True):
        yield bytes(int(record["offset"]) - position)
        yield memoryview(section.data).cast("B")
        position = int(record["offset"]) + int(record["size"])


def _header(table: np.ndarray, size: int) -> bytes:
    header = np.zeros((), HEADER.dtype)
    header["magic"] = list(MAGIC)
    header["version_major"], header["version_minor"] = VERSION_MAJOR, VERSION_MINOR
    header["header_size"], header["file_size"] = HEADER.size, size
    header["section_table_offset"], header["section_count"] = HEADER.size, len(table)
    header["table_crc32"] = zlib.crc32(table.tobytes())
    header["header_crc32"] = zlib.crc32(header.tobytes())
    return header.tobytes()
