"""TENSORRT sections survive encoding and decoding; no bytes whatever give anything but an ArtifactError."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infc.compiler.artifact import io
from infc.compiler.artifact.layout import MAX_SMS, SECTION_ALIGN, TENSORRT_FLAVOURS, TENSORRT_HEADER
from infc.compiler.artifact.reader import Artifact
from infc.compiler.artifact.tensorrt import TensorRtEngine, decode, encode
from infc.compiler.artifact.writer import pack
from infc.compiler.errors import ArtifactError
from infc.compiler.target import Section

PROFILES = 5
U4 = st.integers(0, (1 << 32) - 1)
ENGINE = TensorRtEngine("tensorrt-rtx", (1, 7, 1, 116), 13000, (86, 89, 120), (2, 0), "infc build m", b"plan")


@st.composite
def engines(draw: st.DrawFn) -> TensorRtEngine:
    sms = draw(st.sets(st.integers(1, 999), min_size=1, max_size=MAX_SMS))
    profiles = draw(st.lists(st.integers(0, PROFILES - 1), min_size=1, max_size=PROFILES, unique=True))
    version = draw(st.tuples(U4, U4, U4, U4))
    command = draw(st.text(max_size=20).filter(lambda s: "\0" not in s))
    return TensorRtEngine(draw(st.sampled_from(list(TENSORRT_FLAVOURS))), version, draw(U4), tuple(sorted(sms)), tuple(profiles),
                          command, draw(st.binary(min_size=1, max_size=200)))


@given(engines())
def test_engines_come_back(engine: TensorRtEngine) -> None:
    data = encode(engine)
    assert decode(data, PROFILES) == engine
    assert (len(data) - len(engine.plan)) % SECTION_ALIGN == 0


def test_a_plan_is_a_view() -> None:
    data = bytearray(encode(ENGINE))
    plan = decode(memoryview(data), 3).plan
    data[-1] ^= 1
    assert bytes(plan) != ENGINE.plan


def changed(field: str, value: object, index: int | None = None) -> bytes:
    data = bytearray(encode(ENGINE))
    header = np.frombuffer(data, TENSORRT_HEADER.dtype, 1)[0].copy()
    if index is None:
        header[field] = value
    else:
        header[field][index] = value
    data[: TENSORRT_HEADER.size] = header.tobytes()
    return bytes(data)


@pytest.mark.parametrize(("field", "value", "index", "words"), [
    ("flavour", 2, None, "flavour 2"), ("sm_count", 0, None, "ascending"), ("sm_count", 17, None, "ascending"),
    ("sm_count", 2, None, "ascending"), ("sm_count", 4, None, "ascending"), ("sms", 90, 0, "ascending"),
    ("sms", 86, 1, "ascending"), ("sms", 1, 9, "ascending"), ("sms", 0, 0, "ascending"), ("reserved", 1, 1, "reserved"),
    ("profile_count", 0, None, "0 profiles"), ("profile_count", 4, None, "4 profiles"),
    ("profile_count", 1, None, "NUL|plan starts|string"), ("command", 99, None, "string 99"),
    ("strings_size", 1 << 31, None, "strings needs"), ("strings_size", 0, None, "string 0"),
    ("plan_offset", 0, None, "plan starts"), ("plan_offset", 1 << 60, None, "plan starts"),
    ("plan_size", 0, None, "plan is empty"), ("plan_size", 3, None, "1 bytes follow"),
    ("plan_size", 1 << 62, None, "the plan needs")])
def test_a_wrong_field_is_named(field: str, value: int, index: int | None, words: str) -> None:
    with pytest.raises(ArtifactError, match=words) as caught:
        decode(changed(field, value, index), 3, base=640)
    assert caught.value.code == "INFC-E0609"
    assert "section TENSORRT, offset" in caught.value.where


def test_profiles_must_be_the_artifacts_and_served_once() -> None:
    at = TENSORRT_HEADER.size
    for profiles in ((3, 0), (1, 1)):
        data = bytearray(encode(ENGINE))
        data[at : at + 8] = np.array(profiles, "<u4").tobytes()
        with pytest.raises(ArtifactError, match="served twice"):
            decode(bytes(data), 3)


def test_the_gap_must_be_zero() -> None:
    data = bytearray(encode(ENGINE))
    data[-len(ENGINE.plan) - 1] = 1
    with pytest.raises(ArtifactError, match="gap"):
        decode(bytes(data), 3)


@settings(max_examples=300)
@given(engines(), st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=8), st.integers(0, 400))
def test_damage_is_an_artifact_error_or_another_engine(engine: TensorRtEngine, writes: list[tuple[int, int]], cut: int) -> None:
    data = bytearray(encode(engine))
    for at, value in writes:
        data[at % len(data)] = value
    with contextlib.suppress(ArtifactError):
        found = decode(bytes(data[: len(data) - cut % len(data)]), PROFILES)
        assert found.plan
        assert set(found.profiles) <= set(range(PROFILES))
        assert list(found.sms) == sorted(set(found.sms))


@given(st.binary(max_size=300))
def test_any_bytes(data: bytes) -> None:
    with pytest.raises(ArtifactError):
        decode(data, PROFILES)


def test_an_artifact_gives_its_engines_and_verifies_their_checksums() -> None:
    spec = io.IoSpec([io.IoTensor("x", "f32", ("n",))], [io.IoTensor("y", "f32", ("n",))], [io.IoSymbol("n", 0)],
                     [{"n": n} for n in (1, 2, 3)])
    data = bytearray(pack([Section("META", b"{}"), Section("IO", io.encode(spec)),
                           *(Section("TENSORRT", encode(ENGINE), f"e{i}", i) for i in range(2))]))
    artifact = Artifact(bytes(data))
    assert artifact.engines() == [ENGINE, ENGINE]
    artifact.verify()
    data[-1] ^= 1
    with pytest.raises(ArtifactError, match="checksum of section TENSORRT"):
        Artifact(bytes(data)).verify()
