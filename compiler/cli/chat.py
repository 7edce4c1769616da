"""``infc chat``: a conversation with a language model."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from infc.compiler.cli import language
from infc.compiler.cli.console import common_options, say


@click.command()
@click.argument("engine", type=click.Path(path_type=Path))
@click.option("--system", metavar="TEXT", help="What the model is told first.")
@click.option("--threads", type=click.IntRange(1, 1024), help="Default: what affinity and cgroup quota allow.")
@click.option("--isa", help="Run the programs of this instruction set.")
@language.sampling_options
@common_options
def command(engine: Path, system: str | None, threads: int | None, isa: str | None, as_json: bool, **given: Any) -> None:
    """Talk with ENGINE: a line is a message, its answer comes as it is made. Ctrl-C ends an answer, Ctrl-D the conversation.

    /reset forgets what was said, /exit ends. What was said before is not computed again.
    """
    lm = language.opened(engine, threads, isa)
    options = language.sampling(given)
    begin: list[dict[str, str]] = [{"role": "system", "content": system}] if system else []
    said = list(begin)
    live = sys.stdin.isatty()
    if live:
        say(f"{lm}. /reset begins anew, /exit ends.")
    while (line := _line(live)) is not None:
        if line == "/exit":
            break
        if line == "/reset":
            said = list(begin)
        elif line:
            said.append({"role": "user", "content": line})
            said.append({"role": "assistant", "content": language.answer(lm, said, options, as_json)})


def _line(live: bool) -> str | None:
    """The next line without spaces around it; None at the end."""
    try:
        return input("> " if live else "").strip()
    except EOFError:
        return None
