"""What is no Whisper model of CTranslate2 is refused; real weights are converted in test_real.py."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from infc.models import ctranslate2

HEAD = struct.pack("<IH4sI", 6, 4, b"abc\0", 1)


@pytest.mark.parametrize("data", [
    b"", HEAD, HEAD + struct.pack("<I", 1), HEAD + struct.pack("<IH", 1, 60000),
    HEAD + struct.pack("<IH2sBIBI", 1, 2, b"w\0", 1, 1 << 31, 0, 4) + bytes(4),
    HEAD + struct.pack("<IH2sBIBI", 1, 2, b"w\0", 1, 1, 99, 4) + bytes(4),
    HEAD + struct.pack("<IH2sBIBI", 1, 2, b"w\0", 1, 1, 0, 4) + bytes(4),
])
def test_other_files(data: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "model.bin").write_bytes(data)
    assert ctranslate2.main([str(tmp_path), str(tmp_path / "out")]) == 2
    assert "INFC-E0125" in capsys.readouterr().err
