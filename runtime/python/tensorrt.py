"""Where pip has put TensorRT's library. The package is found without being imported: only its file is needed."""

from __future__ import annotations

import importlib.util
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

TENSORRT = 9  # kind of a section
MAX_SECTIONS = 4096  # to look at: the count may be garbage
LIBRARIES = {0: ("tensorrt_libs", "libnvinfer.so.11"), 1: ("tensorrt_rtx_libs", "libtensorrt_rtx.so.1")}  # by flavour


def find_library(source: str | bytes | bytearray | memoryview) -> str | None:
    """Path of the installed library that runs an engine of the artifact, a file's path or its bytes; None if it holds none or no
    such library is installed. What is not an artifact is for the C library to refuse."""
    try:
        if not isinstance(source, str):
            return _find(lambda size, offset: bytes(memoryview(source)[offset : offset + size]))
        file = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return _find(lambda size, offset: os.pread(file, size, offset))
        finally:
            os.close(file)
    except (OSError, OverflowError, TypeError, ValueError, struct.error):
        return None


def _find(read: Callable[[int, int], bytes]) -> str | None:
    for flavour in _flavours(read):
        package, name = LIBRARIES.get(flavour, ("", ""))
        spec = importlib.util.find_spec(package) if package else None
        for folder in (spec.submodule_search_locations or ()) if spec else ():
            if (library := Path(folder) / name).is_file():
                return str(library)
    return None


def _flavours(read: Callable[[int, int], bytes]) -> Iterator[int]:
    """Of the TENSORRT sections, in order: layout.h's infc_header, infc_section and infc_tensorrt_header."""
    offset, count = struct.unpack("<QI", read(12, 32))
    for kind, _flags, start in struct.iter_unpack("<IIQ48x", read(64 * min(count, MAX_SECTIONS), offset)):
        if kind == TENSORRT:
            yield struct.unpack("<I", read(4, start))[0]
