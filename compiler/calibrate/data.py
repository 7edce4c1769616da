"""Data in files of anybody: texts, arrays, photos and recordings, read as a stream, with limits on all that could grow."""

from __future__ import annotations

import csv
import hashlib
import importlib
import json
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from infc.compiler import audio, image
from infc.compiler.calibrate import archive
from infc.compiler.errors import UsageError

Arrays = dict[str, NDArray[Any]]
_LONGEST_LINE = 1 << 24  # bytes
_LONGEST_TEXT = 1 << 17  # characters that are kept: a model's tokens never need as many
_MOST_FILES = 1 << 20
_CHUNK = 1 << 20
TEXT_KINDS = (".txt", ".cor")
KINDS = (*TEXT_KINDS, ".jsonl", ".csv", ".tsv", ".parquet", ".npz")


@dataclass(frozen=True)
class Item:
    """One sample before it is prepared: a text, a file, or arrays by input name without the batch dimension. ``slice`` is its value
    in the column that divides the data, "" without one; ``digest`` depends on the content alone."""

    content: str | Path | Arrays
    digest: bytes
    slice: str = ""


@dataclass(frozen=True)
class Data:
    """``path`` and, of tables, the ``column`` that holds the text."""

    path: Path
    column: str = ""

    @property
    def kind(self) -> str:
        return "folder" if self.path.is_dir() else self.path.suffix.lower()

    def sha256(self) -> str:
        """Of the file; of a folder's files and their names."""
        if self.kind != "folder":
            return hash_file(self.path).hex()
        whole = hashlib.sha256()
        for file in _files(self.path):
            whole.update(str(file.relative_to(self.path)).encode() + b"\0" + hash_file(file))
        return whole.hexdigest()

    def items(self, slices: str = "") -> Iterator[Item]:
        """In the file's order, empty texts left out. ``slices`` names a column; of a folder "folder", by the folder within it.

        Raises UsageError E0801 for a file that cannot be read as what its name says, E0802 for a column that there is not, E0803
        for what is beyond a limit.
        """
        try:
            yield from _READERS[self.kind](self, slices)
        except OSError as error:
            raise _unreadable(self.path, error.strerror or type(error).__name__) from error
        except csv.Error as error:
            raise _unreadable(self.path, str(error)) from error


def find(text: str | Path) -> Data:
    """FILE or FILE:COLUMN. Raises UsageError E0800 for what is not there or of no kind that infc reads."""
    text, column = str(text), ""
    if not Path(text).expanduser().exists() and ":" in text:
        text, _, column = text.rpartition(":")
    path = Path(text).expanduser()
    if not path.exists():
        raise UsageError("E0800", "no such file or folder of data", where=str(path), hint="check the path")
    data = Data(path, column)
    if data.kind not in _READERS or not (path.is_dir() or stat.S_ISREG(path.stat().st_mode)):
        raise UsageError("E0800", f"data of the kind '{data.kind}' is not read", where=str(path),
                         hint=f"give a file of the kind {', '.join(KINDS)}, or a folder of .jpg, .png or .wav files")
    if column and data.kind not in _COLUMNS:
        raise UsageError("E0802", f"a {data.kind} has no columns", where=f"{path}:{column}",
                         hint=f"name a column of {', '.join(_COLUMNS)} files only")
    return data


def hash_file(path: Path) -> bytes:
    found = hashlib.sha256()
    try:
        with open(path, "rb") as file:
            while part := file.read(_CHUNK):
                found.update(part)
    except OSError as error:
        raise _unreadable(path, error.strerror or type(error).__name__) from error
    return found.digest()


def hash_arrays(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    found = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        found.update(f"{name}\0{array.dtype.str}\0{array.shape}\0".encode())
        found.update(array.data)
    return found.digest()


def _unreadable(path: Path, reason: str) -> UsageError:
    return UsageError("E0801", f"the data cannot be read: {reason}", where=str(path),
                      hint="check that the file is what its name says")


def _text(text: str, part: str = "") -> Item | None:
    text = text.strip()[:_LONGEST_TEXT]
    return Item(text, hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest(), part[:_LONGEST_TEXT]) if text else None


def _kept(items: Iterator[Item | None]) -> Iterator[Item]:
    return (item for item in items if item is not None)


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Numbered from 1, in UTF-8, or in Latin-1 where that is no UTF-8."""
    with open(path, "rb") as file:
        number = 0
        while line := file.readline(_LONGEST_LINE + 1):
            number += 1
            where = f"{path}, line {number}"
            if len(line) > _LONGEST_LINE:
                raise UsageError("E0803", f"the line is longer than {_LONGEST_LINE >> 20} MiB", where=where,
                                 hint="write a text a line")
            if b"\0" in line:
                raise UsageError("E0801", "the data cannot be read: it is not text", where=where,
                                 hint="give a text file in UTF-8")
            try:
                yield number, line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError:
                yield number, line.decode("latin-1")


def _column(data: Data, names: list[str], wanted: str, option: str) -> str:
    if wanted in names:
        return wanted
    if not wanted and len(names) == 1:
        return names[0]
    usual = next((n for n in names if n.lower() in ("text", "sentence")), None)
    if not wanted and usual is not None:
        return usual
    what = f"there is no column '{wanted}'" if wanted else f"which column holds the texts? There are {len(names)}"
    raise UsageError("E0802", what[:500], where=str(data.path),
                     hint=f"give {option}; the columns are: {', '.join(names[:20])}"[:500] if names else "the file has no columns")


def _no_slices(data: Data, slices: str) -> None:
    if slices:
        raise UsageError("E0802", f"a {data.kind} has no columns to divide it by", where=f"--slices {slices}",
                         hint=f"give the data as {', '.join(_COLUMNS)}, or as a folder of folders with --slices folder")


def _text_lines(data: Data, slices: str) -> Iterator[Item]:
    _no_slices(data, slices)
    return _kept(_text(line) for _, line in _lines(data.path))


def _json_lines(data: Data, slices: str) -> Iterator[Item]:
    for number, line in _lines(data.path):
        if not line.strip():
            continue
        where = f"{data.path}, line {number}"
        try:
            found = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UsageError("E0801", f"the data cannot be read: not valid JSON: {error}", where=where,
                             hint='write a string or {"text": "…"} a line') from None
        if not isinstance(found, str | dict):
            raise UsageError("E0801", "the data cannot be read: neither a string nor an object", where=where,
                             hint='write a string or {"text": "…"} a line')
        row = found if isinstance(found, dict) else {"text": found}
        column = _column(data, [str(k) for k in row], data.column, "FILE:COLUMN")
        if not isinstance(row[column], str):
            raise UsageError("E0801", f"the data cannot be read: '{column}' is no text", where=where,
                             hint='write a string or {"text": "…"} a line')
        if slices and slices not in row:
            raise UsageError("E0802", f"there is no column '{slices}'", where=where,
                             hint=f"--slices takes one of: {', '.join(row)}"[:500])
        item = _text(row[column], str(row[slices]) if slices else "")
        if item:
            yield item


def _table(data: Data, slices: str) -> Iterator[Item]:
    csv.field_size_limit(_LONGEST_LINE)
    rows = csv.reader((line for _, line in _lines(data.path)), delimiter="\t" if data.kind == ".tsv" else ",", strict=True)
    names = [name.strip() for name in next(rows, [])]
    at = names.index(_column(data, names, data.column, "FILE:COLUMN"))
    by = names.index(_column(data, names, slices, "--slices")) if slices else -1
    for row in rows:
        if not row:
            continue
        if len(row) != len(names):
            raise UsageError("E0801", f"the data cannot be read: a row of {len(row)} fields under {len(names)} names",
                             where=f"{data.path}, line {rows.line_num}", hint='put texts with commas between quotes ("…")')
        item = _text(row[at], row[by] if slices else "")
        if item:
            yield item


def _parquet(data: Data, slices: str) -> Iterator[Item]:
    try:
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise UsageError("E0804", "reading .parquet needs a package that is missing: pyarrow", where=str(data.path),
                         hint="pip install pyarrow, or give the data as .jsonl or .csv") from None
    try:
        file = parquet.ParquetFile(data.path)
        names = list(file.schema_arrow.names)
        column = _column(data, names, data.column, "FILE:COLUMN")
        by = _column(data, names, slices, "--slices") if slices else column
        for batch in file.iter_batches(batch_size=256, columns=list(dict.fromkeys((column, by)))):
            rows = batch.to_pydict()
            for text, part in zip(rows[column], rows[by], strict=True):
                if text is not None and not isinstance(text, str):
                    raise _unreadable(data.path, f"the column '{column}' holds no texts")
                item = _text(text or "", str(part) if slices else "")
                if item:
                    yield item
    except UsageError:
        raise
    except Exception as error:  # of pyarrow, which has no class of its own for damaged files
        raise _unreadable(data.path, next(iter(str(error).splitlines()), type(error).__name__)) from error


def _arrays(data: Data, slices: str) -> Iterator[Item]:
    _no_slices(data, slices)
    for row in archive.rows(data.path):
        yield Item(row, hash_arrays(row))


def _files(folder: Path) -> list[Path]:
    found = []
    for root, folders, names in os.walk(folder):
        folders.sort()
        found += [Path(root, n) for n in sorted(names) if n.lower().endswith(image.SUFFIXES + audio.SUFFIXES)]
        if len(found) > _MOST_FILES:
            raise UsageError("E0803", f"the folder holds more than {_MOST_FILES} files", where=str(folder),
                             hint="give a part of it")
    return sorted(found)


def _folder(data: Data, slices: str) -> Iterator[Item]:
    if slices not in ("", "folder"):
        raise UsageError("E0802", f"there is no column '{slices}'", where="--slices", hint="a folder is divided by --slices folder")
    for file in _files(data.path):
        if file.is_file():
            yield Item(file, hash_file(file), str(file.parent.relative_to(data.path)) if slices else "")


_READERS: dict[str, Callable[[Data, str], Iterator[Item]]] = {
    **dict.fromkeys(TEXT_KINDS, _text_lines), ".jsonl": _json_lines, ".csv": _table, ".tsv": _table, ".parquet": _parquet,
    ".npz": _arrays, "folder": _folder}
_COLUMNS = (".jsonl", ".csv", ".tsv", ".parquet")
