"""``infc chat``: a conversation with a language model."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from infc.compiler.cli import language
from infc.compiler.cli.console import common_options, say
from infc.compiler.cli.engines import DEVICE
from infc.compiler.errors import UsageError

if TYPE_CHECKING:
    from infc.runtime.llm import LLM, Message


@click.command()
@click.argument("engine", type=click.Path(path_type=Path))
@click.option("--system", metavar="TEXT", help="What the model is told first.")
@click.option("--threads", type=click.IntRange(1, 1024), help="Default: what affinity and cgroup quota allow.")
@click.option("--isa", help="Run the programs of this instruction set.")
@DEVICE
@language.sampling_options
@common_options
def command(engine: Path, system: str | None, threads: int | None, isa: str | None, device: str | None, as_json: bool,
            **given: Any) -> None:
    """Talk with ENGINE: a line is a message, its answer comes as it is made. Ctrl-C ends an answer, Ctrl-D the conversation.
    After a message that cannot be answered, such as one that is too long, the next is read.

    /reset forgets what was said, /exit ends. What was said before is not computed again. When the context is full the oldest turns
    are forgotten, never what --system says. With --json each answer is an object on a line: text, finish (why it ended), counts of
    tokens, seconds.
    """
    from infc.runtime import Error

    lm = language.opened(engine, threads, isa, device)
    lm.tokenizer, lm.chat_template  # noqa: B018 – they raise if there is none
    unanswered = 0
    options = language.sampling(given)
    begin: list[Message] = [{"role": "system", "content": system}] if system else []
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
            try:
                asked = _remembered(lm, [*said, {"role": "user", "content": line}], len(begin), options["max_new_tokens"])
            except (UsageError, Error) as error:  # of this message: the conversation goes on
                say(str(error))
                unanswered += 1
                continue
            said = [*asked, {"role": "assistant", "content": language.answer(lm, asked, options, as_json, None)}]
    if unanswered and not live:
        raise UsageError("E0063", f"messages without an answer: {unanswered}", where="the conversation",
                         hint="see what was said above")


def _remembered(lm: LLM, said: Sequence[Message], first: int, answer: int) -> list[Message]:
    """What was said; without its oldest turns if they leave no room in the context for an answer of so many tokens, or for a
    quarter of the context. Then so many go that half of it is free, for all that stays has to be read anew. The ``first`` messages
    stay in any case, and the last. Raises UsageError E0063 if those alone are too long."""
    kept, most = list(said), lm.context - min(answer, lm.context // 4)
    while (tokens := len(lm.encode(lm.chat(kept), special=False))) > most and len(kept) > first + 1:
        del kept[first : first + 2]
        most = lm.context // 2
    if tokens >= lm.context:
        raise UsageError("E0063", f"the message makes a prompt of {tokens} tokens, and the context is {lm.context}",
                         hint="leave some of it out, or build with a larger --context")
    if forgotten := (len(said) - len(kept)) // 2:
        say(f"The context of {lm.context} tokens is full: the oldest {forgotten} of {len(said[first:]) // 2} turns are forgotten.")
    return kept


def _line(live: bool) -> str | None:
    """The next line without spaces around it; None at the end."""
    try:
        return input("> " if live else "").strip()
    except EOFError:
        return None
