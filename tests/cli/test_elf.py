from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infc.compiler.cli import elf

GCC = shutil.which("gcc")
PROGRAM = """
#include <stdio.h>
extern const unsigned char blob_start[], blob_end[];
extern const unsigned long blob_size;
int main(void) {
  if ((unsigned long)(blob_end - blob_start) != blob_size) return 1;
  if ((unsigned long)blob_start % 4096 || (unsigned long)&blob_size % 8) return 2;
  return fwrite(blob_start, 1, blob_size, stdout) != blob_size;
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not GCC:
        pytest.skip("no gcc")
    source = tmp_path_factory.mktemp("elf") / "main.c"
    source.write_text(PROGRAM)
    subprocess.run([GCC, "-Wall", "-Werror", "-c", source.name], cwd=source.parent, check=True)
    return source.with_suffix(".o")


@settings(max_examples=8, deadline=None)
@given(blob=st.binary(min_size=1, max_size=9000))
def test_a_linked_program_finds_the_bytes_aligned(blob: bytes, program: Path) -> None:
    folder = program.parent
    elf.write(folder / "blob.o", blob, "blob")
    assert GCC
    # --fatal-warnings: the linker must find nothing odd, an executable stack for one
    subprocess.run([GCC, program.name, "blob.o", "-o", "main", "-Wl,--fatal-warnings"], cwd=folder, check=True)
    assert subprocess.run([folder / "main"], capture_output=True, check=True).stdout == blob


def test_the_object_links_into_a_shared_library(program: Path) -> None:
    elf.write(program.parent / "shared.o", b"x" * 5000, "other")
    assert GCC
    subprocess.run([GCC, "-shared", "shared.o", "-o", "other.so", "-Wl,--fatal-warnings"], cwd=program.parent, check=True)
