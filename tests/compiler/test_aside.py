"""Files take their place whole, or nothing has changed."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from infc.compiler.aside import whole


def test_a_file_and_those_beside_it_replace_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")
    with whole(tmp_path / "a") as aside:
        aside.write_text("new")
        aside.with_name("a.data").write_text("weights")
        assert (tmp_path / "a").read_text() == "old"
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == {"a": "new", "a.data": "weights"}


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt, SystemExit])
def test_an_end_before_the_time_changes_nothing(error: type[BaseException], tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")

    def write() -> None:
        with whole(tmp_path / "a") as aside:
            aside.write_text("ne")
            raise error

    with pytest.raises(error):
        write()
    assert [p.name for p in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_text() == "old"


def test_an_interrupt_after_the_rename_leaves_the_new_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace = os.replace

    def interrupted(source: Path, target: Path) -> None:
        replace(source, target)
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt), whole(tmp_path / "a") as aside:
        aside.write_text("new")
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("a", "new")]


def test_weights_are_in_place_before_what_refers_to_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    replace = os.replace
    monkeypatch.setattr(os, "replace", lambda source, target: (order.append(Path(target).name), replace(source, target)))
    with whole(tmp_path / "a") as aside:
        for name in ("a", "a.data", "Z"):
            aside.with_name(name).write_text("")
    assert order[-1] == "a"
    assert len(order) == 3


def test_links_and_devices_stay(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "a")
    with whole(tmp_path / "link") as aside:
        aside.write_text("new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "a").read_text() == "new"
    with whole("/dev/null") as aside:
        aside.write_text("new")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


def test_the_mode_is_what_the_mask_leaves(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        with whole(tmp_path / "a") as aside:
            aside.write_text("")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o640
