"""Recordings as recorders write them: what a plain header cannot say is in an extensible one."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from infc.compiler import wav

VALUES = np.random.default_rng(0).uniform(-1, 1, (50, 2))
GUID = bytes.fromhex("000000001000800000aa00389b71")


def write(path: Path, kind: int, data: bytes, bits: int, extensible: bool, *, guid: bytes = GUID, channels: int = 2) -> Path:
    frame = channels * bits // 8
    about = struct.pack("<HHIIHH", 0xFFFE if extensible else kind, channels, 8000, 8000 * frame, frame, bits)
    if extensible:
        about += struct.pack("<HHIH", 22, bits, 3, kind) + guid
    chunks = b"".join(name + struct.pack("<I", len(body)) + body + bytes(len(body) % 2)
                      for name, body in ((b"LIST", b"odd"), (b"fmt ", about), (b"fact", bytes(4)), (b"data", data)))
    path.write_bytes(b"RIFF" + struct.pack("<I", 4 + len(chunks)) + b"WAVE" + chunks)
    return path


def encoded(kind: int, bits: int) -> bytes:
    if kind == 3:
        return VALUES.astype(f"<f{bits // 8}").tobytes()
    whole = np.round(VALUES * (2.0 ** (bits - 1) - 1)).astype("<i8")
    return np.ascontiguousarray((whole + 128).astype(np.uint8) if bits == 8 else
                                whole[..., None].view(np.uint8)[..., :bits // 8]).tobytes()


@pytest.mark.parametrize("extensible", [True, False])
@pytest.mark.parametrize(("kind", "bits"), [(1, 8), (1, 16), (1, 24), (1, 32), (3, 32), (3, 64)])
def test_every_format(kind: int, bits: int, extensible: bool, tmp_path: Path) -> None:
    rate, found = wav.read(write(tmp_path / "a.wav", kind, encoded(kind, bits), bits, extensible), 1 << 20)
    assert (rate, found.dtype) == (8000, np.float32)
    np.testing.assert_allclose(found, VALUES, atol=2.0 ** (2 - min(bits, 24)))


@pytest.mark.parametrize(("kind", "bits", "guid", "why"), [
    (7, 8, GUID, "format 7"), (3, 16, GUID, "format 3 and 16 bits"), (1, 64, GUID, "64 bits"), (1, 16, bytes(14), "format 65534"),
    (1, 0, GUID, "0 bits")])
def test_what_is_not_read(kind: int, bits: int, guid: bytes, why: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=why):
        wav.read(write(tmp_path / "a.wav", kind, bytes(64), bits, extensible=True, guid=guid), 1 << 20)


def test_limits(tmp_path: Path) -> None:
    path = write(tmp_path / "a.wav", 1, bytes(64), 16, extensible=False)
    assert wav.read(path, 64)[1].shape == (16, 2)
    with pytest.raises(ValueError, match="more than 63 bytes"):
        wav.read(path, 63)
    path.write_bytes(path.read_bytes().replace(struct.pack("<I", 64) + bytes(8), struct.pack("<I", 0xFFFFFFFF) + bytes(8)))
    assert wav.read(path, 64)[1].shape == (16, 2), "as a pipe writes it, which cannot say how long it will be"
    with pytest.raises(ValueError, match="no numbers"):
        wav.read(write(path, 3, np.full(4, np.nan, "<f4").tobytes(), 32, extensible=False), 64)
    with pytest.raises(ValueError, match="no samples"):
        wav.read(write(path, 1, b"", 16, extensible=False), 64)
    with pytest.raises(ValueError, match="0 channels"):
        wav.read(write(path, 1, bytes(4), 16, extensible=False, channels=0), 64)
