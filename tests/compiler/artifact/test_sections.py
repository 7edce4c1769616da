"""Sections survive encoding and decoding; no bytes whatever give anything but an ArtifactError."""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infc.compiler.artifact import golden, io
from infc.compiler.artifact import program as encoding
from infc.compiler.artifact.document import example
from infc.compiler.artifact.golden import GoldenCase
from infc.compiler.artifact.layout import DTYPES, HEADER, SECTION, WEIGHTS_ALIGN
from infc.compiler.artifact.program import Operand, Program, Step
from infc.compiler.artifact.reader import Artifact
from infc.compiler.artifact.writer import pack, write
from infc.compiler.errors import ArtifactError, InfcError
from infc.compiler.target import Section

NAMES = st.text(min_size=1, max_size=8).filter(lambda s: "\0" not in s)


@st.composite
def specs(draw: st.DrawFn) -> io.IoSpec:
    symbols = draw(st.lists(NAMES, max_size=4, unique=True))
    dims = st.one_of(st.integers(1, 1 << 30), st.sampled_from(symbols)) if symbols else st.integers(1, 1 << 30)
    integers = st.integers(-(1 << 63), (1 << 63) - 1)
    tensors = st.builds(io.IoTensor, NAMES, st.sampled_from(list(DTYPES)), st.lists(dims, max_size=8).map(tuple), st.booleans(),
                        integers, st.one_of(st.none(), st.tuples(integers, integers)))
    profile = st.fixed_dictionaries({s: st.integers(1, 1 << 20) for s in symbols})
    return io.IoSpec(draw(st.lists(tensors, max_size=3)), draw(st.lists(tensors, max_size=3)),
                     [io.IoSymbol(s, draw(st.integers(0, 1))) for s in symbols], draw(st.lists(profile, min_size=1, max_size=3)))


@st.composite
def programs(draw: st.DrawFn) -> Program:
    symbols = draw(st.lists(st.tuples(NAMES, st.integers(1, 1000)), max_size=3))
    symbol = st.integers(-1, len(symbols) - 1)
    u4 = st.integers(0, (1 << 32) - 1)
    operands = st.builds(Operand, st.integers(0, 3), st.sampled_from(list(DTYPES.values())),
                         st.lists(st.integers(1, 1 << 31), min_size=1, max_size=8).map(tuple), st.integers(0, 1 << 40), u4, symbol,
                         st.integers(0, 1))
    several = st.lists(operands, max_size=4).map(tuple)
    pair = st.tuples(st.integers(0, 2), st.integers(0, 2))
    steps = st.builds(Step, NAMES, several, several, st.lists(u4, max_size=9).map(tuple), u4, symbol, u4, pair,
                      st.tuples(st.integers(0, 1), st.integers(0, 1)), NAMES)
    found = draw(st.lists(steps, max_size=5))
    return Program(draw(st.integers(0, 9)), draw(st.sampled_from([0, 3, 4])), symbols, found, 64 * draw(st.integers(0, 99)),
                   draw(st.integers(0, len(found))), draw(st.integers(1, 2)), draw(symbol), draw(u4), draw(st.tuples(u4, u4)))


@given(specs())
def test_io_comes_back(spec: io.IoSpec) -> None:
    assert io.decode(io.encode(spec)) == spec


@settings(max_examples=50)
@given(programs())
def test_programs_come_back(program: Program) -> None:
    data = encoding.encode(program)
    assert encoding.decode(data) == program
    assert encoding.encode(encoding.decode(data)) == data


GOLDEN_IO = io.IoSpec([io.IoTensor("ids", "i64", ("batch",)), io.IoTensor("flag", "bool", ())],
                      [io.IoTensor("y", "f32", ("batch", 3))], [io.IoSymbol("batch", 1)], [{"batch": 4}])


def golden_cases() -> list[GoldenCase]:
    return [GoldenCase({"ids": np.arange(n), "flag": np.array(True)}, {"y": np.full((n, 3), n / 7, np.float32)}, 0.25)
            for n in (1, 4)]


def test_golden_comes_back() -> None:
    found = golden.decode(golden.encode(golden_cases(), GOLDEN_IO), GOLDEN_IO)
    for want, got in zip(golden_cases(), found, strict=True):
        assert got.tolerance == want.tolerance
        for side in ("inputs", "outputs"):
            for name, array in getattr(want, side).items():
                np.testing.assert_array_equal(getattr(got, side)[name], array)
                assert getattr(got, side)[name].dtype == array.dtype


SECTIONS = [Section("META", b'{"a": 1}'), Section("IO", io.encode(GOLDEN_IO)), Section("WEIGHTS", bytes(100), "w"),
            Section("GOLDEN", golden.encode(golden_cases(), GOLDEN_IO), required=False)]


def test_files_are_deterministic_and_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.infc"
    path.write_bytes(b"old")
    write(path, SECTIONS)
    assert path.read_bytes() == pack(SECTIONS)
    assert [p.name for p in tmp_path.iterdir()] == ["a.infc"]
    artifact = Artifact.open(path)
    artifact.verify()
    assert artifact.meta == {"a": 1}
    assert artifact.io == GOLDEN_IO
    assert [bytes(artifact.section(s.kind) or b"") for s in SECTIONS] == [bytes(s.data) for s in SECTIONS]
    assert next(s.offset for s in artifact.sections if s.kind == "WEIGHTS") % WEIGHTS_ALIGN == 0
    assert artifact.section("TOKENIZER") is None


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.infc"
    path.write_bytes(b"old")
    with pytest.raises(KeyError):
        write(path, [Section("NONSENSE", b"")])
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.infc"]


@pytest.mark.parametrize(("change", "code"), [
    (lambda d: d[:10], "E0601"), (lambda d: b"PK" + d[2:], "E0601"), (lambda d: d[:-1], "E0601"), (lambda d: d + b"\0", "E0601"),
    (lambda d: d[:8] + b"\x02" + d[9:], "E0601"), (lambda d: d[:70] + b"\xff" + d[71:], "E0603"), (lambda d: b"", "E0601"),
    (lambda d: reseal(d, 8, b"\x02"), "E0602"), (lambda d: reseal(d, 16, b"\x01"), "E0602"),
    (lambda d: reseal(d, 72, b"\xff"), "E0603"), (lambda d: reseal(d, 64, b"\x63"), "E0602"),
])
def test_each_error_has_its_code(change: object, code: str) -> None:
    with pytest.raises(ArtifactError) as caught:
        Artifact(change(pack(SECTIONS)))  # type: ignore[operator]
    assert caught.value.code == f"INFC-{code}"
    assert "offset" in caught.value.where


def test_files_that_are_not_there(tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"")
    for name, code in (("missing", "E0101"), ("empty", "E0601"), (".", "E0131")):
        with pytest.raises(InfcError) as caught:
            Artifact.open(tmp_path / name)
        assert caught.value.code == f"INFC-{code}"


def test_a_changed_weight_is_found_on_request() -> None:
    data = bytearray(pack(SECTIONS))
    offset = next(s.offset for s in Artifact(bytes(data)).sections if s.kind == "WEIGHTS")
    data[offset + 7] ^= 1
    artifact = Artifact(bytes(data))
    assert artifact.section("WEIGHTS") is not None
    with pytest.raises(ArtifactError) as caught:
        artifact.verify()
    assert caught.value.code == "INFC-E0604"


def reseal(data: bytes, at: int, value: bytes) -> bytes:
    """The bytes with a change, and every checksum made right again."""
    changed = bytearray(data)
    changed[at : at + len(value)] = value
    table = np.frombuffer(changed, SECTION.dtype, len(SECTIONS), HEADER.size)
    for record in table:
        start, size = int(record["offset"]), int(record["size"])
        if start + size <= len(changed):
            record["crc32"] = zlib.crc32(changed[start : start + size])
    header = np.frombuffer(changed, HEADER.dtype, 1)[0:1]
    header["table_crc32"] = zlib.crc32(table.tobytes())
    header["header_crc32"] = 0
    header["header_crc32"] = zlib.crc32(header.tobytes())
    return bytes(changed)


def read_all(data: bytes) -> None:
    artifact = Artifact(data)
    artifact.verify()
    for section in artifact.sections:
        artifact.section(section.kind, section.ordinal)
    assert isinstance(artifact.meta, dict)
    artifact.programs()
    cases = artifact.section("GOLDEN")
    if cases is not None:
        golden.decode(cases, artifact.io)


MODEL = pack([*SECTIONS[:2], Section("PROGRAM", bytes(Artifact(example()).section("PROGRAM") or b"")), *SECTIONS[3:]])


@settings(max_examples=500, deadline=None)
@given(st.lists(st.tuples(st.integers(0, len(MODEL) - 1), st.integers(0, 255)), min_size=1, max_size=4), st.booleans())
def test_mutated_bytes_give_an_error_or_an_artifact(changes: list[tuple[int, int]], sealed: bool) -> None:
    data = MODEL
    for at, value in changes:
        data = reseal(data, at, bytes([value])) if sealed else data[:at] + bytes([value]) + data[at + 1 :]
    try:
        read_all(data)
    except ArtifactError:
        return
    assert sealed or data == MODEL


@settings(max_examples=100, deadline=None)
@given(st.integers(0, len(MODEL) - 1))
def test_truncated_bytes_give_an_error(size: int) -> None:
    with pytest.raises(ArtifactError):
        read_all(MODEL[:size])


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300))
def test_any_bytes_give_an_error(data: bytes) -> None:
    for decode in (io.decode, encoding.decode, lambda d: golden.decode(d, GOLDEN_IO)):
        try:
            decode(data)
        except ArtifactError:
            continue
