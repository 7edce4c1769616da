"""An ELF64 relocatable object for x86-64 that holds one blob in ``.rodata``, written without a toolchain.

Symbols: ``NAME_start`` and ``NAME_end`` are the bounds of the bytes, ``NAME_size`` is a 64-bit integer with their number.
"""

from __future__ import annotations

import struct
from pathlib import Path

ALIGN = 4096  # WEIGHTS is aligned to a page of the file, so the file must be to a page of memory

_EHDR = struct.Struct("<16sHHIQQQIHHHHHH")
_SHDR = struct.Struct("<IIQQQQIIQQ")
_SYM = struct.Struct("<IBBHQQ")
_IDENT = b"\x7fELF" + bytes([2, 1, 1]) + bytes(9)  # 64-bit, little-endian, version 1, System V
_ET_REL, _EM_X86_64 = 1, 62
_PROGBITS, _SYMTAB, _STRTAB = 1, 2, 3
_ALLOC = 2
_GLOBAL_OBJECT = 1 << 4 | 1
_RODATA = 1  # index of the section


def write(path: Path, blob: bytes, name: str) -> None:
    """Writes the object to ``path``. ``name`` must be a C identifier."""
    pad = -len(blob) % 8
    size_at = len(blob) + pad
    symbols = ((f"{name}_start", 0, len(blob)), (f"{name}_end", len(blob), 0), (f"{name}_size", size_at, 8))
    strings, table = b"\0", _SYM.pack(0, 0, 0, 0, 0, 0)
    for symbol, value, extent in symbols:
        table += _SYM.pack(len(strings), _GLOBAL_OBJECT, 0, _RODATA, value, extent)
        strings += symbol.encode() + b"\0"

    names = b"\0.rodata\0.symtab\0.strtab\0.shstrtab\0.note.GNU-stack\0"
    bodies = (table, strings, names)
    rodata_size = size_at + 8
    offsets, at = [], ALIGN + rodata_size
    for body in bodies:
        offsets.append(at)
        at += len(body) + -len(body) % 8
    sections = (
        _SHDR.pack(0, 0, 0, 0, 0, 0, 0, 0, 0, 0),
        _SHDR.pack(names.index(b".rodata"), _PROGBITS, _ALLOC, 0, ALIGN, rodata_size, 0, 0, ALIGN, 0),
        _SHDR.pack(names.index(b".symtab"), _SYMTAB, 0, 0, offsets[0], len(table), 3, 1, 8, _SYM.size),
        _SHDR.pack(names.index(b".strtab"), _STRTAB, 0, 0, offsets[1], len(strings), 0, 0, 1, 0),
        _SHDR.pack(names.index(b".shstrtab"), _STRTAB, 0, 0, offsets[2], len(names), 0, 0, 1, 0),
        _SHDR.pack(names.index(b".note.GNU-stack"), _PROGBITS, 0, 0, at, 0, 0, 0, 1, 0),  # says: no executable stack
    )
    header = _EHDR.pack(_IDENT, _ET_REL, _EM_X86_64, 1, 0, 0, at, 0, _EHDR.size, 0, 0, _SHDR.size, len(sections), 4)
    with path.open("wb") as f:
        f.write(header.ljust(ALIGN, b"\0"))
        f.write(blob)
        f.write(bytes(pad) + struct.pack("<Q", len(blob)))
        for body in bodies:
            f.write(body + bytes(-len(body) % 8))
        f.write(b"".join(sections))
