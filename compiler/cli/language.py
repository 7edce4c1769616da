"""What the commands of language models share: opening one, options of sampling, text as it comes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from infc.compiler.cli.console import emit, milliseconds, say
from infc.compiler.errors import UsageError

if TYPE_CHECKING:
    from infc.runtime.llm import LLM, Request

F = TypeVar("F", bound=Callable[..., Any])

_SAMPLING = (
    click.option("--max-new-tokens", type=click.IntRange(1), metavar="N", help="Stop after so many tokens; default: 256."),
    click.option("--temperature", type=click.FloatRange(0), metavar="T", help="0 (default) takes the most likely token."),
    click.option("--top-k", type=click.IntRange(0), metavar="K", help="Choose among the K most likely tokens."),
    click.option("--top-p", type=click.FloatRange(0, 1), metavar="P", help="Among those that have probability P together."),
    click.option("--min-p", type=click.FloatRange(0, 1), metavar="P", help="Among those at least P times as likely as the first."),
    click.option("--repetition-penalty", type=click.FloatRange(0, min_open=True), metavar="X",
                 help="Above 1: tokens that were there become less likely."),
    click.option("--seed", type=click.IntRange(0), metavar="N", help="Equal seeds give equal texts; default: 0."),
    click.option("--stop", multiple=True, metavar="TEXT", help="End the answer before this text; repeatable."),
    click.option("--prompt-lookup", is_flag=True, help="Guess that what followed before follows again; the text is the same."),
)
_DEFAULTS = {"max_new_tokens": 256}


def sampling_options(command: F) -> F:
    """Options of generation; ``sampling`` reads them."""
    for option in reversed(_SAMPLING):
        command = option(command)
    return command


def sampling(given: Mapping[str, Any]) -> dict[str, Any]:
    """What ``LLM.request`` takes, of what was given."""
    return _DEFAULTS | {name: value for name, value in given.items() if value not in (None, (), False)}


def is_language_model(engine: Path) -> bool:
    """Raises as ``Artifact.open``."""
    from infc.compiler.artifact.reader import Artifact

    return any(s.kind == "GENERATION" for s in Artifact.open(engine).sections)


def opened(engine: Path, threads: int | None, isa: str | None, device: str | None, **options: Any) -> LLM:
    """Why an automatic choice did not take the GPU goes to stderr. Raises UsageError E0060 for an artifact of another kind of
    model."""
    from infc.runtime.llm import LLM

    if not is_language_model(engine):
        raise UsageError("E0060", "the artifact is not a language model's: it generates no text", where=str(engine),
                         hint=f"infc inspect {engine} says what it is; a directory of a causal language model builds into one")
    lm = LLM(engine, threads, isa=isa, device=device, **options)
    if lm.engine.note:
        say(lm.engine.note)
    return lm


def _stream(lm: LLM, prompt: str | Sequence[Mapping[str, Any]], options: Mapping[str, Any]) -> tuple[str, Request]:
    """Prints a text as it comes. Ctrl-C ends the text, not the program."""
    request = lm.request(prompt, **options)
    pieces = []
    pending = request.pieces()
    while True:
        try:
            piece = next(pending, None)
        except KeyboardInterrupt:
            request.cancel()
            continue
        if piece is None:
            break
        pieces.append(piece)
        click.echo(piece, nl=False)
    click.echo()
    return "".join(pieces), request


def answer(lm: LLM, prompt: str | Sequence[Mapping[str, Any]], options: Mapping[str, Any], as_json: bool,
           indent: int | None = 1) -> str:
    """The text that follows, printed as it comes, or as an object at its end."""
    if as_json:
        request = lm.request(prompt, **options)
        text = request.text()
        emit({"text": text, "finish": request.finish.name.lower(), **request.stats}, indent)
        return text
    text, request = _stream(lm, prompt, options)
    _tell(request, lm)
    return text


def _tell(request: Request, lm: LLM) -> None:
    """Says how fast it was."""
    s = request.stats
    each = s["decode_seconds"] / (s["new_tokens"] - 1) if s["new_tokens"] > 1 else 0.0
    kept = f" ({s['cached_tokens']} of them known)" if s["cached_tokens"] else ""
    guessed = f", {s['accepted']} of {s['guessed']} guessed tokens right" if s["guessed"] else ""
    say(f"{s['prompt_tokens']} tokens of prompt{kept}, first token after {milliseconds(s['prefill_seconds'])}; "
        f"{s['new_tokens']} new tokens{f', {milliseconds(each)} each' if each else ''}{guessed}; "
        f"{lm.engine.threads} threads, {lm.engine.isa}")
