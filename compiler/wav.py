"""Reads WAV files: PCM of 8 to 32 bits and floats, also as WAVE_FORMAT_EXTENSIBLE, which some recorders write."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

_PCM, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE
_FMT = struct.Struct("<HHIIHH")  # format, channels, rate, bytes a second, bytes a frame, bits of a sample
_SUBFORMAT = 24  # of the extensible format: where it names the other one, in the first two bytes of a GUID
_GUID = bytes.fromhex("000000001000800000aa00389b71")  # the rest of it
_LONGEST = 1 << 10  # chunks before the samples


def read(path: Path, most: int) -> tuple[int, NDArray[np.float32]]:
    """The rate and [frames, channels] f32, PCM within ±1. Raises OSError; ValueError for what is no such file, or has more than
    ``most`` bytes of samples."""
    with open(path, "rb") as file:
        head = file.read(12)
        if head[:4] != b"RIFF" or head[8:] != b"WAVE":
            raise ValueError("it is no WAV file")
        about = b""
        for _ in range(_LONGEST):
            chunk = file.read(8)
            if len(chunk) < 8:
                break
            name, size = struct.unpack("<4sI", chunk)
            if name == b"fmt ":
                about = file.read(min(size, _SUBFORMAT + 16))
                file.seek(max(0, size - len(about)) + size % 2, 1)
            elif name == b"data":
                return _samples(file, size, about, most)
            else:
                file.seek(size + size % 2, 1)
    raise ValueError("it has no samples")


def _samples(file: BinaryIO, size: int, about: bytes, most: int) -> tuple[int, NDArray[np.float32]]:
    if len(about) < _FMT.size:
        raise ValueError("it does not say of what format its samples are")
    kind, channels, rate, _, frame, bits = _FMT.unpack_from(about)
    if kind == _EXTENSIBLE and about[_SUBFORMAT + 2:] == _GUID:
        kind = int.from_bytes(about[_SUBFORMAT:_SUBFORMAT + 2], "little")
    width = (bits + 7) // 8
    if kind not in (_PCM, _FLOAT) or width not in ((1, 2, 3, 4) if kind == _PCM else (4, 8)):
        raise ValueError(f"its samples are of format {kind} and {bits} bits, not PCM of 8 to 32 bits nor floats")
    if not channels or frame != width * channels:
        raise ValueError(f"{channels} channels of {width} bytes in frames of {frame} bytes")
    data = file.read(min(size, most + 1))
    if len(data) > most:
        raise ValueError(f"it has more than {most} bytes of samples")
    if len(data) < frame:
        raise ValueError("it holds no samples")
    data = data[:len(data) // frame * frame]
    values = np.frombuffer(data, f"<f{width}").astype(np.float32) if kind == _FLOAT else _decoded(data, width)
    if not np.isfinite(values).all():
        raise ValueError("it holds samples that are no numbers")
    return rate, values.reshape(-1, channels)


def _decoded(data: bytes, width: int) -> NDArray[Any]:
    """Bytes of 8 bits are unsigned, wider ones signed, little-endian."""
    if width == 1:
        return (np.frombuffer(data, np.uint8).astype(np.float32) - 128) / 128
    wide = np.zeros((len(data) // width, 4), np.uint8)
    wide[:, 4 - width:] = np.frombuffer(data, np.uint8).reshape(-1, width)
    return np.asarray(wide.view("<i4")[:, 0] / 2.0 ** 31, np.float32)
