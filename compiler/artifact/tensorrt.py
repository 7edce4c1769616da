"""The TENSORRT section: a serialised engine, what built it, and which devices and profiles it serves."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from infc.compiler.artifact.cursor import Cursor, StringTable
from infc.compiler.artifact.layout import MAX_SMS, SECTION_ALIGN, TENSORRT_FLAVOURS, TENSORRT_HEADER

_FLAVOUR_NAMES = {number: name for name, number in TENSORRT_FLAVOURS.items()}


@dataclass(frozen=True)
class TensorRtEngine:
    """``flavour`` is a key of layout.TENSORRT_FLAVOURS, ``version`` that of the library that built ``plan``, ``cuda`` the least
    CUDA version of a driver (1000 * major + 10 * minor), ``sms`` the compute capabilities it serves, ascending. ``profiles`` holds,
    for each optimisation profile of the plan, the index of the artifact's profile. ``command`` is the build's command line without
    --target and --sm, for the message that tells how to build again."""

    flavour: str
    version: tuple[int, int, int, int]
    cuda: int
    sms: tuple[int, ...]
    profiles: tuple[int, ...]
    command: str
    plan: bytes | memoryview


def encode(engine: TensorRtEngine) -> bytes:
    """The bytes of a TENSORRT section."""
    assert 0 < len(engine.sms) <= MAX_SMS
    assert list(engine.sms) == sorted(set(engine.sms))
    strings = StringTable()
    header = np.zeros((), TENSORRT_HEADER.dtype)
    header["flavour"], header["version"], header["cuda_version"] = TENSORRT_FLAVOURS[engine.flavour], engine.version, engine.cuda
    header["sm_count"], header["sms"][: len(engine.sms)] = len(engine.sms), engine.sms
    header["profile_count"], header["command"] = len(engine.profiles), strings.add(engine.command)
    header["strings_size"], header["plan_size"] = len(strings.data), len(engine.plan)
    end = TENSORRT_HEADER.size + 4 * len(engine.profiles) + len(strings.data)
    start = -(-end // SECTION_ALIGN) * SECTION_ALIGN
    header["plan_offset"] = start
    return b"".join((header.tobytes(), np.array(engine.profiles, "<u4").tobytes(), strings.data, bytes(start - end), engine.plan))


def decode(data: memoryview | bytes, profile_count: int, base: int = 0) -> TensorRtEngine:
    """Raises ArtifactError E0609. ``base`` is the section's offset in its file, ``profile_count`` IO's; the plan is a view of
    ``data``."""
    cursor = Cursor(memoryview(data), "E0609", "section TENSORRT", base)
    header = cursor.one(TENSORRT_HEADER)
    cursor.require(int(header["flavour"]) in _FLAVOUR_NAMES, f"flavour {header['flavour']} is unknown")
    count = int(header["sm_count"])
    sms = tuple(map(int, header["sms"]))
    cursor.require(0 < count <= MAX_SMS and not any(sms[count:]) and list(sms[:count]) == sorted(set(sms[:count])) and sms[0] > 0,
                   "the list of SMs is not ascending")
    cursor.require(not any(header["reserved"]), "a reserved field is not zero")
    cursor.require(0 < int(header["profile_count"]) <= profile_count, f"{header['profile_count']} profiles, IO has {profile_count}")
    profiles = tuple(map(int, cursor.words(int(header["profile_count"]))))
    cursor.require(len(set(profiles)) == len(profiles) and max(profiles) < profile_count, "a profile is unknown or served twice")
    command = cursor.strings(int(header["strings_size"]))[int(header["command"])]
    start = int(header["plan_offset"])
    cursor.require(start == -(-cursor.position // SECTION_ALIGN) * SECTION_ALIGN, f"the plan starts at {start}")
    gap = cursor.bytes(start - cursor.position, "the gap before the plan")
    cursor.require(not any(gap), "the gap before the plan is not zero")
    plan = cursor.bytes(int(header["plan_size"]), "the plan")
    cursor.require(len(plan) > 0, "the plan is empty")
    cursor.end()
    major, minor, patch, build = map(int, header["version"])
    return TensorRtEngine(_FLAVOUR_NAMES[int(header["flavour"])], (major, minor, patch, build), int(header["cuda_version"]),
                          sms[:count], profiles, command, plan)
