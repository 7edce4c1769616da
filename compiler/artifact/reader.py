"""Reads an artifact; everything is validated before it is used."""

from __future__ import annotations

import json
import mmap
import os
import zlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from infc.compiler import foreign
from infc.compiler.artifact import io, tensorrt
from infc.compiler.artifact.cursor import REBUILD, Cursor
from infc.compiler.artifact.layout import (
    HEADER,
    MAGIC,
    SECTION,
    SECTION_ALIGN,
    SECTION_KINDS,
    SECTION_REQUIRED,
    VERSION_MAJOR,
    WEIGHTS_ALIGN,
)
from infc.compiler.artifact.program import Program, decode
from infc.compiler.artifact.tensorrt import TensorRtEngine
from infc.compiler.errors import ArtifactError, UsageError

KIND_NAMES = {code: name for name, code in SECTION_KINDS.items()}


@dataclass(frozen=True)
class SectionInfo:
    """``kind`` is a key of layout.SECTION_KINDS; ``offset`` and ``size`` in bytes."""

    kind: str
    name: str
    ordinal: int
    required: bool
    offset: int
    size: int
    crc32: int


class Artifact:
    """The structure of an artifact over bytes that stay where they are.

    The constructor validates header and section table; a section's checksum is compared when it is first asked for, that of
    weights and engines in ``verify``. Every failure is an ArtifactError E06xx that names the offset in the file.
    """

    def __init__(self, data: bytes | memoryview | mmap.mmap) -> None:
        self.data = memoryview(data).toreadonly().cast("B")
        self.sections = _table(self.data)
        self._checked: set[int] = set()

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Artifact:
        """Maps the file. Raises UsageError E0101 if there is none that can be read, E0131 if it is known to be something else; else
        as the class does."""
        if (found := Path(path)).exists() and not found.is_file():  # opening a pipe would wait
            raise foreign.instead_of_artifact(found) or UsageError("E0101", "it is no file", where=os.fspath(path),
                                                                   hint="check the path")
        try:
            with open(path, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                return cls(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b"")
        except OSError as error:
            raise UsageError("E0101", f"cannot read the file: {error.strerror}", where=os.fspath(path),
                             hint="check the path") from None
        except ArtifactError as error:
            if not foreign.begins(found, MAGIC) and (other := foreign.instead_of_artifact(found)) is not None:
                raise other from None
            error.where = f"{os.fspath(path)}: {error.where}"
            raise

    def section(self, kind: str, ordinal: int = 0) -> memoryview | None:
        """The bytes of a section, or None."""
        info = self._find(kind, ordinal)
        return self._bytes(info, check=kind not in ("WEIGHTS", "TENSORRT")) if info else None

    def verify(self) -> None:
        """Compares every section's checksum, weights included."""
        for info in self.sections:
            self._bytes(info, check=True)

    @cached_property
    def meta(self) -> dict[str, Any]:
        """The META section's JSON object."""
        info = self._need("META")
        try:
            meta = json.loads(bytes(self._bytes(info, check=True)))
        except (ValueError, RecursionError):
            meta = None
        if not isinstance(meta, dict):
            raise ArtifactError("E0608", "META is not a JSON object", where=f"offset {info.offset} of the file", hint=REBUILD)
        return meta

    @cached_property
    def io(self) -> io.IoSpec:
        info = self._need("IO")
        return io.decode(self._bytes(info, check=True), info.offset)

    def programs(self) -> list[Program]:
        """One program a profile and ISA, in the file's order."""
        return [decode(self._bytes(info, check=True), info.offset) for info in self.sections if info.kind == "PROGRAM"]

    def engines(self) -> list[TensorRtEngine]:
        """One for each TENSORRT section, in the file's order; plans are views of the file, checked in ``verify`` only."""
        count = len(self.io.profiles)
        return [tensorrt.decode(self._bytes(info, check=False), count, info.offset) for info in self.sections
                if info.kind == "TENSORRT"]

    def _find(self, kind: str, ordinal: int) -> SectionInfo | None:
        return next((s for s in self.sections if s.kind == kind and s.ordinal == ordinal), None)

    def _need(self, kind: str) -> SectionInfo:
        info = self._find(kind, 0)
        if info is None:
            raise ArtifactError("E0603", f"the artifact has no section {kind}", where="the section table", hint=REBUILD)
        return info

    def _bytes(self, info: SectionInfo, check: bool) -> memoryview:
        data = self.data[info.offset : info.offset + info.size]
        if check and info.offset not in self._checked:
            if zlib.crc32(data) != info.crc32:
                raise ArtifactError("E0604", f"the checksum of section {info.kind} differs",
                                    where=f"offset {info.offset} of the file", hint=REBUILD)
            self._checked.add(info.offset)
        return data


def _table(data: memoryview) -> list[SectionInfo]:
    cursor = Cursor(data, "E0601", "header")
    header = cursor.one(HEADER)
    cursor.require(bytes(header["magic"]) == MAGIC, "the file is not an infc artifact")
    bare = header.copy()
    bare["header_crc32"] = 0
    cursor.require(zlib.crc32(bare.tobytes()) == int(header["header_crc32"]), "the header's checksum differs")
    if int(header["version_major"]) != VERSION_MAJOR or int(header["required_features"]):
        raise ArtifactError("E0602", f"format {header['version_major']}.{header['version_minor']} with features "
                            f"{int(header['required_features']):#x}; this infc reads {VERSION_MAJOR}.x",
                            where="offset 8 of the file", hint="rebuild the artifact with this version, or upgrade infc")
    cursor.require(int(header["file_size"]) == len(data), f"the file has {len(data)} bytes, its header says {header['file_size']}")
    cursor.require(int(header["header_size"]) == HEADER.size and int(header["section_table_offset"]) == HEADER.size,
                   "the section table is not where it should be")
    cursor.code, cursor.section = "E0603", "section table"
    records = cursor.array(SECTION, int(header["section_count"]))
    cursor.require(zlib.crc32(records.tobytes()) == int(header["table_crc32"]), "the section table's checksum differs")
    sections = []
    end = cursor.position
    for record in records:
        info = _section(cursor, record)
        cursor.require(info.offset >= end and info.offset + info.size <= len(data),
                       f"section {info.kind} at {info.offset} overlaps another or leaves the file")
        align = WEIGHTS_ALIGN if info.kind == "WEIGHTS" else SECTION_ALIGN
        cursor.require(info.offset % align == 0, f"section {info.kind} is not at a multiple of {align}")
        cursor.require(not bytes(data[end : info.offset]).strip(b"\0"), f"the gap before section {info.kind} is not zero")
        end = info.offset + info.size
        sections.append(info)
    cursor.require(end == len(data), f"{len(data) - end} bytes follow the last section")
    return sections


def _section(cursor: Cursor, record: np.void) -> SectionInfo:
    kind, flags = int(record["kind"]), int(record["flags"])
    required = bool(flags & SECTION_REQUIRED)
    if kind not in KIND_NAMES and required:
        raise ArtifactError("E0602", f"a required section of unknown kind {kind}", where=f"offset {cursor.position} of the file",
                            hint="upgrade infc")
    name = bytes(record["name"]).split(b"\0")[0].decode(errors="replace")
    return SectionInfo(KIND_NAMES.get(kind, f"kind {kind}"), name, int(record["ordinal"]), required, int(record["offset"]),
                       int(record["size"]), int(record["crc32"]))
