"""Arrays in an .npz file, a row at a time. What numpy stores uncompressed stays in the file, so it may be larger than memory."""

from __future__ import annotations

import math
import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from infc.compiler.errors import UsageError

Arrays = dict[str, NDArray[Any]]
_MOST_BYTES = 1 << 30  # of compressed arrays, which are held in memory
_MOST_ARRAYS = 1000
_LOCAL = struct.Struct("<4s5H3L2H")  # a zip file's header in front of each member (APPNOTE.TXT 4.3.7)
_HINT = ("write it with np.savez(path, input_ids=…): a sample a row; arrays of objects are not loaded. If it was a "
         "calibration record: infc calibrate makes it again")


def rows(path: Path) -> Iterator[Arrays]:
    """By input name, without the first dimension, in which all arrays must have the same size.

    Raises UsageError E0801 for what is no such file, E0803 for compressed arrays of more than 1 GiB.
    """
    try:
        with zipfile.ZipFile(path) as file:
            arrays = _read(path, file)
    except UsageError:
        raise
    except (ValueError, EOFError, zipfile.BadZipFile, NotImplementedError, RuntimeError, struct.error, SyntaxError) as error:
        raise _broken(path, str(error) or type(error).__name__) from None
    alone = next((name for name, a in arrays.items() if not a.ndim), None)
    if alone is not None:
        raise _broken(path, f"'{alone}' is a single number")
    counts = sorted({a.shape[0] for a in arrays.values()})
    if len(counts) != 1:
        raise _broken(path, f"the arrays have {' and '.join(map(str, counts[:5]))} rows" if counts else "it holds no arrays")
    for number in range(counts[0]):
        yield {name: np.array(array[number]) for name, array in arrays.items()}


def _broken(path: Path, reason: str) -> UsageError:
    return UsageError("E0801", f"the data cannot be read: {reason}"[:500], where=str(path), hint=_HINT)


def _read(path: Path, file: zipfile.ZipFile) -> Arrays:
    members = file.infolist()
    if len(members) > _MOST_ARRAYS:
        raise _broken(path, f"it holds {len(members)} members")
    packed = sum(m.file_size for m in members if m.compress_type != zipfile.ZIP_STORED)
    if packed > _MOST_BYTES:
        raise UsageError("E0803", f"{packed >> 20} MiB of compressed arrays are more than {_MOST_BYTES >> 20}", where=str(path),
                         hint="write it with np.savez instead of np.savez_compressed, or in parts")
    return {m.filename.removesuffix(".npy"): _member(path, file, m) for m in members}


def _member(path: Path, file: zipfile.ZipFile, member: zipfile.ZipInfo) -> NDArray[Any]:
    with file.open(member) as stream:
        version = npy.read_magic(stream)
        read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}.get(version)
        if read is None:
            raise _broken(path, f"'{member.filename}' is of version {version}")
        shape, fortran, dtype = read(stream)
        if dtype.hasobject or dtype.kind not in "biuf":
            raise _broken(path, f"'{member.filename}' holds no numbers")
        size, start = math.prod(shape) * dtype.itemsize, stream.tell()
        if size == 0:
            raise _broken(path, f"'{member.filename}' is {list(shape)}: it holds no sample")
        if size != member.file_size - start:
            raise _broken(path, f"'{member.filename}' does not hold what it says")
        if member.compress_type != zipfile.ZIP_STORED:
            return np.frombuffer(stream.read(), dtype).reshape(shape, order="F" if fortran else "C")
    return np.memmap(path, dtype, "r", _start(path, member) + start, shape, "F" if fortran else "C")


def _start(path: Path, member: zipfile.ZipInfo) -> int:
    """Where the member's bytes begin."""
    with open(path, "rb") as raw:
        raw.seek(member.header_offset)
        fields = _LOCAL.unpack(raw.read(_LOCAL.size))
    if fields[0] != b"PK\x03\x04":
        raise zipfile.BadZipFile("a member's header is missing")
    return member.header_offset + _LOCAL.size + int(fields[9]) + int(fields[10])
