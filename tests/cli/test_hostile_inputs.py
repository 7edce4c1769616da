"""Files of inputs and archives within artifacts that claim more than they are: a clear error, in bounded memory."""

from __future__ import annotations

import gzip
import io
import json
import struct
import tarfile
import wave
import zipfile
import zlib
from pathlib import Path

import numpy as np
import onnx
import pytest

import infc
from infc.compiler.artifact import reader, writer
from infc.compiler.target import Section
from tests import bounded

MODEL = """<ir_version: 9, opset_import: ["": 18]>
tiny (float[2, 3] x) => (float[2, 3] y) { y = Neg (x) }
"""
LARGE = 3 << 30  # bytes that a bomb unpacks to


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hostile")
    onnx.save(onnx.parser.parse_model(MODEL), folder / "tiny.onnx")
    infc.build(folder / "tiny.onnx", folder / "tiny.infc", tune=False, isa=["scalar"])
    return folder / "tiny.infc"


def refused(result: bounded.Result, code: str) -> None:
    assert (result.exit_code, result.code) == (2, f"INFC-{code}"), result
    assert result.grown < bounded.MEMORY, result


def npy(shape: tuple[int, ...], version: int = 1) -> bytes:
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".encode()
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY" + bytes((version, 0)) + struct.pack("<H", len(text)) + text


def zip_of(path: Path, name: str, head: bytes, zeros: int) -> None:
    with (zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
          archive.open(name, "w", force_zip64=True) as member):
        member.write(head)
        for _ in range(zeros >> 24):
            member.write(bytes(1 << 24))


def test_npz_bombs(engine: Path, tmp_path: Path) -> None:
    zip_of(tmp_path / "bomb.npz", "x.npy", npy((LARGE // 4,)), LARGE)
    assert (tmp_path / "bomb.npz").stat().st_size < LARGE // 100
    refused(bounded.run("run", engine, tmp_path / "bomb.npz"), "E0033")


def test_zips_that_lie_about_their_size(engine: Path, tmp_path: Path) -> None:
    """The directory says ten bytes where there are many."""
    zip_of(tmp_path / "bomb.npz", "x.npy", npy((1 << 24,)), 1 << 26)
    data = bytearray((tmp_path / "bomb.npz").read_bytes())
    size = struct.pack("<I", (1 << 26) + len(npy((1 << 24,))))
    assert size in data
    (tmp_path / "bomb.npz").write_bytes(data.replace(size, struct.pack("<I", 10)))
    refused(bounded.run("run", engine, tmp_path / "bomb.npz"), "E0033")


@pytest.mark.parametrize("shape", [(1 << 40,), (1 << 62, 4), (-1,), (1 << 31, 1 << 31, 1 << 31)])
def test_arrays_that_lie_about_their_shape(shape: tuple[int, ...], engine: Path, tmp_path: Path) -> None:
    zip_of(tmp_path / "x.npz", "x.npy", npy(shape) + bytes(100), 0)
    refused(bounded.run("run", engine, tmp_path / "x.npz"), "E0033")


def test_damaged_npz(engine: Path, tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "whole.npz", x=np.random.default_rng(0).normal(size=(2, 3)).astype(np.float32))
    data = (tmp_path / "whole.npz").read_bytes()
    for place in range(0, len(data), 5):
        (tmp_path / "x.npz").write_bytes(data[:place] + bytes((data[place] ^ 0x55,)) + data[place + 1:])
        result = bounded.run("run", engine, tmp_path / "x.npz")
        assert result.exit_code in (0, 2), (place, result)
        assert bool(result.code) == bool(result.exit_code), (place, result)


@pytest.mark.parametrize("text", ["[" * 1_000_000, '{"x": ' + "[" * 100_000, '{"x": 1' + "0" * 5000 + "}",
                                  '{"x": [' + "1," * (1 << 22) + "1]}",
                                  '{"x": "' + "a" * (1 << 24) + '"}', '{"x": [[1e999, 0, 0], [0, 0, NaN]]}'])
def test_json(text: str, engine: Path, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(text)
    result = bounded.run("run", engine, tmp_path / "x.json")
    assert (result.exit_code, result.code) in ((0, ""), (2, "INFC-E0033")), result
    assert result.grown < bounded.MEMORY


def png(width: int, height: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)) +
            chunk(b"IDAT", zlib.compress(bytes(1 << 20))) + chunk(b"IEND", b""))


@pytest.fixture(scope="module")
def sees(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An engine that takes photos."""
    text = """<ir_version: 9, opset_import: ["": 18]>
    sees (float[1, 3, 32, 32] pixel_values) => (float[1, 3, 32, 32] y) { y = Neg (pixel_values) }"""
    return with_files(tmp_path_factory.mktemp("sees"), text, "preprocessor_config.json",
                      b'{"image_processor_type": "ViTImageProcessor", "size": {"height": 32, "width": 32}, "do_resize": true}')


@pytest.fixture(scope="module")
def hears(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An engine that takes recordings."""
    text = """<ir_version: 9, opset_import: ["": 18]>
    hears (float[1, 16000] input_values) => (float[1, 16000] y) { y = Neg (input_values) }"""
    return with_files(tmp_path_factory.mktemp("hears"), text, "preprocessor_config.json",
                      b'{"feature_extractor_type": "Wav2Vec2FeatureExtractor", "sampling_rate": 16000}')


def with_files(folder: Path, text: str, name: str, data: bytes) -> Path:
    member, packed = tarfile.TarInfo(name), io.BytesIO()
    member.size = len(data)
    with tarfile.open(fileobj=packed, mode="w") as archive:
        archive.addfile(member, io.BytesIO(data))
    return with_tokenizer(folder, text, packed.getvalue())


def with_tokenizer(folder: Path, text: str, section: bytes) -> Path:
    """An artifact with this TOKENIZER section."""
    onnx.save(onnx.parser.parse_model(text), folder / "model.onnx")
    infc.build(folder / "model.onnx", folder / "plain.infc", tune=False, isa=["scalar"])
    plain = reader.Artifact.open(folder / "plain.infc")
    sections = [Section(s.kind, bytes(plain.section(s.kind, s.ordinal) or b"")) for s in plain.sections]
    (folder / "model.infc").write_bytes(writer.pack([*sections, Section("TOKENIZER", section)]))
    return folder / "model.infc"


@pytest.mark.parametrize(("width", "height"), [(100_000, 100_000), (1 << 30, 1), (0, 5), (20_000, 20_000)])
def test_photos(width: int, height: int, sees: Path, tmp_path: Path) -> None:
    (tmp_path / "photo.png").write_bytes(png(width, height))
    refused(bounded.run("run", sees, tmp_path / "photo.png"), "E0041")


def test_recordings(hears: Path, tmp_path: Path) -> None:
    with wave.open(str(tmp_path / "whole.wav"), "wb") as file:
        file.setparams((1, 2, 16000, 0, "NONE", ""))
        file.writeframes(bytes(32000))
    data = (tmp_path / "whole.wav").read_bytes()
    assert bounded.run("run", hears, tmp_path / "whole.wav").exit_code == 0
    for place, kind, value in ((40, "<I", 0xFFFFFFFF), (4, "<I", 3), (16, "<I", 0xFFFFFFFF), (22, "<H", 0), (22, "<H", 65535),
                               (34, "<H", 65535), (34, "<H", 0), (24, "<I", 0), (24, "<I", 0xFFFFFFFF), (20, "<H", 85)):
        changed = bytearray(data)
        struct.pack_into(kind, changed, place, value)
        (tmp_path / "x.wav").write_bytes(changed)
        result = bounded.run("run", hears, tmp_path / "x.wav")
        assert result.exit_code == 0 or result.code == "INFC-E0044", (place, value, result)
        assert result.grown < bounded.MEMORY


IDS = """<ir_version: 9, opset_import: ["": 18]>
ids (int64[1, 8] input_ids) => (int64[1, 8] y) { y = Neg (input_ids) }"""


def test_archives_in_artifacts(tmp_path: Path) -> None:
    hole = tarfile.TarInfo("tokenizer.json")
    hole.size = 0
    hole.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "tokenizer.json",
                        "GNU.sparse.realsize": str(LARGE)}
    sparse = io.BytesIO()
    with tarfile.open(fileobj=sparse, mode="w", format=tarfile.PAX_FORMAT) as archive:
        hole.size = 512
        archive.addfile(hole, io.BytesIO(b"0\n".ljust(512, b"\0")))
    bomb = io.BytesIO()
    with gzip.GzipFile(fileobj=bomb, mode="wb", compresslevel=1) as packed:
        member = tarfile.TarInfo("tokenizer.json")
        member.size = LARGE
        packed.write(member.tobuf())
        for _ in range(LARGE >> 24):
            packed.write(bytes(1 << 24))
    for name, section, code in (("sparse", sparse.getvalue(), "E0030"), ("gzip", bomb.getvalue(), "E0610"),
                                ("noise", bytes(range(256)) * 40, "E0610"), ("cut", bomb.getvalue()[:600], "E0610")):
        folder = tmp_path / name
        folder.mkdir()
        result = bounded.run("run", with_tokenizer(folder, IDS, section), "--text", "hello")
        assert result.code == f"INFC-{code}", (name, result)
        assert result.grown < bounded.MEMORY, (name, result)


def test_tokenizers_in_artifacts(tmp_path: Path) -> None:
    for number, text in enumerate((b"{", b"\xff\xfe", b"[" * 100_000, json.dumps({"version": "1.0"}).encode())):
        folder = tmp_path / str(number)
        folder.mkdir()
        result = bounded.run("run", with_files(folder, IDS, "tokenizer.json", text), "--text", "hello")
        assert (result.exit_code, result.code) == (2, "INFC-E0030"), (text[:20], result)
