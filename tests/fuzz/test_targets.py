"""The fuzz targets call the whole C API. That the kept corpus passes is a test of the C programs: see runtime/cmake/tests.cmake."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TARGETS = ("fuzz_artifact.c", "fuzz_calls.c", "fuzz_lm.c", "drive.h")


def test_each_function_of_the_header_is_called() -> None:
    header = re.sub(r"/\*.*?\*/", "", (ROOT / "runtime/include/infc/infc.h").read_text(), flags=re.DOTALL)
    declared = set(re.findall(r"INFC_API[^;(]*?(infc_\w+)\(", header))
    called = set(re.findall(r"(infc_\w+)\(", "".join((ROOT / "tests/c/fuzz" / name).read_text() for name in TARGETS)))
    assert len(declared) > 30
    assert declared - called == set()
