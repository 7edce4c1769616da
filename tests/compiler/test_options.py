"""Build options and infc.toml."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from infc.compiler.config import load
from infc.compiler.errors import UsageError
from infc.compiler.options import BuildOptions
from infc.compiler.profiles import parse

COMMANDS = {"build": ["profile", "isa", "no-tune"], "run": ["threads"]}


def test_strings_and_lists_mean_the_same() -> None:
    one = BuildOptions.of({"profiles": "batch=1,seq=8", "isa": "scalar,x86-64-v3", "timing_cache": Path("a")})
    two = BuildOptions.of({"profiles": [parse("batch=1,seq=8")], "isa": ["scalar", "x86-64-v3"], "timing_cache": "a"})
    assert one == two


def test_isas_are_ordered_and_native_is_resolved() -> None:
    assert BuildOptions.of({}).resolved_isas("x86-64-v3") == ("x86-64-v3",)
    assert BuildOptions.of({"isa": "native,scalar,x86-64-v4"}).resolved_isas("x86-64-v4") == ("scalar", "x86-64-v4")
    with pytest.raises(UsageError, match="avx9"):
        BuildOptions.of({"isa": "avx9"}).resolved_isas("scalar")


def test_threads() -> None:
    assert BuildOptions.of({"threads": 3}).resolved_threads() == 3
    assert BuildOptions.of({}).resolved_threads() == len(os.sched_getaffinity(0))
    with pytest.raises(UsageError, match="threads=0"):
        BuildOptions.of({"threads": 0})


def test_unknown_option_names_a_close_one() -> None:
    with pytest.raises(UsageError) as caught:
        BuildOptions.of({"profile": "batch=1"})
    assert "profiles" in caught.value.hint


def test_file_of_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert load(COMMANDS) == {}
    Path("infc.toml").write_text('[build]\nprofile = ["batch=1"]\nno-tune = true\n[run]\nthreads = 2\n')
    assert load(COMMANDS) == {"build": {"profile": ["batch=1"], "no_tune": True}, "run": {"threads": 2}}


@pytest.mark.parametrize(("text", "words"), [("[build]\nprofil = 1", "profile"), ("[biuld]\nisa = 1", "build"),
                                             ("build = 1", "table"), ("[build", "read")])
def test_mistakes_in_the_file(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        load(COMMANDS, path)
    assert words in f"{caught.value.message} {caught.value.hint}"
    assert str(path) in caught.value.where


def test_a_named_file_must_exist(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        load(COMMANDS, tmp_path / "none.toml")
