"""The cache of measured times around a build."""

from __future__ import annotations

from pathlib import Path

import pytest

from infc.compiler import cache, tuning
from infc.compiler.errors import UsageError


def test_what_was_measured_is_kept_and_found_again(tmp_path: Path) -> None:
    file = str(tmp_path / "t.json")
    for value in ({"a": 1.0}, {"b": 2.0}):
        with tuning.timings(file, True, pytest.fail) as found:
            found.update(value)
    assert cache.load_timings(Path(file)) == {"a": 1.0, "b": 2.0}
    with tuning.timings(file, False, pytest.fail) as found:
        assert found == {}


def test_a_cache_that_cannot_be_written_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "infc").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    said: list[str] = []
    with tuning.timings(None, True, said.append) as found:
        found["a"] = 1.0
    assert "not kept" in said[0]
    inside = str(tmp_path / "infc" / "t.json")
    with pytest.raises(UsageError, match="cannot be written"), tuning.timings(inside, True, said.append) as found:
        found["a"] = 1.0
