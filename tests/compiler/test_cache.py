"""The timing cache survives anything that may lie in its file."""

from __future__ import annotations

from pathlib import Path

import pytest

from infc.compiler.cache import load_timings, machine, save_timings, user_dir, write_atomic


def test_round_trip_keeps_what_others_stored(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "timing.json"
    save_timings(path, {"a": 1e-3, "b": 0.1 + 0.2})
    save_timings(path, {"a": 2e-3, "c": 3.0})
    assert load_timings(path) == {"a": 2e-3, "b": 0.1 + 0.2, "c": 3.0}


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"version": 99, "seconds": {"a": 1}}', b'{"version": 1, "seconds": 3}',
                                     b'{"version": 1, "seconds": {"a": "x"}}', b"\xff\x00"])
def test_unreadable_files_count_as_empty(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "timing.json"
    path.write_bytes(content)
    assert load_timings(path) == {}
    save_timings(path, {"a": 1.0})
    assert load_timings(path) == {"a": 1.0}


def test_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomic(path, b"old")
    with pytest.raises(TypeError):
        write_atomic(path, "not bytes")  # type: ignore[arg-type]
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
    assert path.read_bytes() == b"old"


def test_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert user_dir() == tmp_path / "infc"


def test_times_of_other_kernels_are_told_apart(tmp_path: Path) -> None:
    library = tmp_path / "lib.so"
    library.write_bytes(b"old")
    before = machine(str(library))
    assert machine(str(library)) == before
    library.write_bytes(b"new")
    assert machine(str(library)) != before
