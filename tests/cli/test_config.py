from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest

from infc.compiler.cli import build


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """What `infc build` was given, without building; the current directory is a fresh one."""
    seen: dict[str, Any] = {}
    monkeypatch.setattr(build.command, "callback", lambda **options: seen.update(options))
    monkeypatch.chdir(tmp_path)
    return seen


def test_infc_toml_gives_defaults_and_the_command_line_wins(cli: Any, given: dict[str, Any]) -> None:
    Path("infc.toml").write_text('[build]\nprofile = ["batch=1,seq=16", "batch=1,seq=128"]\nno-tune = true\nthreads = 3\n')
    assert cli("build", "m", "--threads", "2").code == 0
    assert given["profile"] == ("batch=1,seq=16", "batch=1,seq=128")
    assert given["no_tune"] is True
    assert given["threads"] == 2


def test_another_file_can_be_named(cli: Any, given: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("[build]\njson = true\n")
    assert cli("--config", "mine.toml", "build", "m").code == 0
    assert given["as_json"] is True


def test_without_a_file_the_defaults_stand(cli: Any, given: dict[str, Any]) -> None:
    assert cli("build", "m").code == 0
    assert given["profile"] == ()
    assert given["threads"] is None


@pytest.mark.parametrize(("text", "hint"), [("[build]\nproflie = []\n", "profile"), ("[biuld]\n", "build"), ("[build\n", ""),
                                            ("build = 3\n", "[build]"), ('[build]\nthreads = "many"\n', "an integer"),
                                            ("[build]\nthreads = [1]\n", "an integer"), ("[build]\nthreads = true\n", "integer"),
                                            ("[build]\nno-tune = 3\n", "true or false"), ("[build]\noutput = 3\n", "a string"),
                                            ('[build]\nprofile = "batch=1"\n', "a list of strings"),
                                            ("[build]\nprofile = [1]\n", "list"), ("[build]\nreport = 2024-01-01\n", "string")])
def test_a_wrong_file_is_an_error_that_says_where(text: str, hint: str, cli: Any, given: dict[str, Any]) -> None:
    Path("infc.toml").write_text(text)
    done = cli("build", "m")
    assert done.code == 2
    assert hint in done.err
    assert "Traceback" not in done.err
    assert not given


def test_a_click_command_exists_for_every_name() -> None:
    from infc.compiler.cli.group import COMMANDS, group

    with click.Context(group) as context:
        assert all(isinstance(group.get_command(context, name), click.Command) for name in COMMANDS)
