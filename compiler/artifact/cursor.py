"""Bounds-checked reading of the structures of layout.py."""

from __future__ import annotations

import numpy as np

from infc.compiler.artifact.layout import NO_STRING, Struct
from infc.compiler.errors import ArtifactError

REBUILD = "the file is truncated or corrupt: copy it again or rebuild it with `infc build`"


class Cursor:
    """Reads forward through one section's bytes. Each failure is an ArtifactError ``code`` that names the offset in the file."""

    def __init__(self, data: memoryview, code: str, section: str, base: int = 0) -> None:
        self.data = data
        self.code = code
        self.section = section
        self.base = base
        self.position = 0

    def fail(self, message: str, position: int | None = None) -> ArtifactError:
        at = self.base + (self.position if position is None else position)
        return ArtifactError(self.code, message, where=f"{self.section}, offset {at} of the file", hint=REBUILD)

    def require(self, condition: bool, message: str) -> None:
        if not condition:
            raise self.fail(message)

    def bytes(self, size: int, what: str) -> memoryview:
        if size < 0 or size > len(self.data) - self.position:
            raise self.fail(f"{what} needs {size} bytes, {len(self.data) - self.position} are left")
        start = self.position
        self.position += size
        return self.data[start : self.position]

    def array(self, struct: Struct, count: int) -> np.ndarray:
        return np.frombuffer(self.bytes(struct.size * count, struct.name), struct.dtype, count)

    def one(self, struct: Struct) -> np.void:
        record: np.void = self.array(struct, 1)[0]
        return record

    def words(self, count: int) -> np.ndarray:
        return np.frombuffer(self.bytes(4 * count, "words"), "<u4", count)

    def strings(self, size: int) -> Strings:
        return Strings(self, bytes(self.bytes(size, "strings")))

    def end(self) -> None:
        self.require(self.position == len(self.data), f"{len(self.data) - self.position} bytes follow the last field")


class Strings:
    """A table of NUL-terminated UTF-8 strings."""

    def __init__(self, cursor: Cursor, table: bytes) -> None:
        self.cursor = cursor
        self.table = table
        cursor.require(not table or table[-1] == 0, "the string table does not end with NUL")

    def __getitem__(self, offset: int) -> str:
        if offset == NO_STRING:
            return ""
        if offset >= len(self.table):
            raise self.cursor.fail(f"string {offset} lies outside the table")
        try:
            return self.table[offset : self.table.index(b"\0", offset)].decode()
        except UnicodeDecodeError:
            raise self.cursor.fail(f"string {offset} is not UTF-8") from None


class StringTable:
    """Collects strings for writing; equal strings share an offset."""

    def __init__(self) -> None:
        self.data = bytearray()
        self._offsets: dict[str, int] = {}

    def add(self, text: str) -> int:
        if text not in self._offsets:
            self._offsets[text] = len(self.data)
            self.data += text.encode().replace(b"\0", b"?") + b"\0"
        return self._offsets[text]
