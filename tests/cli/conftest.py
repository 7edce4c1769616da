from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from infc.compiler.cli import main


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """``cli("inspect", path)`` runs the command line in this process and gives its exit code and what it printed."""

    def run(*argv: object) -> Done:
        capfd.readouterr()
        code = main.main([str(a) for a in argv])
        said = capfd.readouterr()
        return Done(code, said.out, said.err)

    return run
