"""Engines of the commands that run them: where they run, and what is said about it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from infc.compiler.cli.console import say

if TYPE_CHECKING:
    from infc.runtime import Engine

DEVICE = click.option("--device", metavar="DEVICE",
                      help="auto (default): a GPU that can run it, else the CPU; cpu; cuda; cuda:N.")


def opened(path: Path, threads: int | None, isa: str | None, device: str | None) -> Engine:
    """The engine. Why an automatic choice did not take the GPU goes to stderr."""
    import infc

    engine = infc.Engine(path, threads=threads, isa=isa, device=device)
    if engine.note:
        say(engine.note)
    return engine


def place(engine: Engine) -> str:
    """Where it runs, for people."""
    return f"{engine.threads} threads, {engine.isa}" if engine.isa else f"{engine.device}, TensorRT"
