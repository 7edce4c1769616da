"""``infc eval``: how well a language model predicts texts."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from infc.compiler.calibrate import data
from infc.compiler.cli import language
from infc.compiler.cli.console import common_options, emit, say, table
from infc.compiler.cli.engines import DEVICE
from infc.compiler.errors import UsageError

if TYPE_CHECKING:
    from infc.runtime.llm import LLM


@click.command("eval")
@click.argument("engine", type=click.Path(path_type=Path))
@click.option("--perplexity", "file", required=True, metavar="FILE",
              help="Texts: .txt (one a line), .jsonl, .csv (FILE:COLUMN) or .parquet.")
@click.option("--against", metavar="ENGINE", type=click.Path(path_type=Path), help="Another artifact of the model, such as the f32 "
              "one: its perplexity too, and the difference.")
@click.option("--window", default=512, show_default=True, type=click.IntRange(2), metavar="N",
              help="Tokens that a text is cut into; each piece is predicted from nothing.")
@click.option("--limit", type=click.IntRange(1), metavar="N", help="Read no more than N texts.")
@click.option("--threads", type=click.IntRange(1, 1024), help="Default: what affinity and cgroup quota allow.")
@click.option("--isa", help="Run the programs of this instruction set.")
@DEVICE
@common_options
def command(engine: Path, file: str, against: Path | None, window: int, limit: int | None, threads: int | None, isa: str | None,
            device: str | None, as_json: bool) -> None:
    """Measure the perplexity of ENGINE on texts: e to the mean negative log-likelihood of each token after the first of a piece."""
    texts = _texts(file, limit)
    rows: list[dict[str, Any]] = []
    for path in (engine, against):
        if path is not None:
            lm = language.opened(path, threads, isa, device, prefix_cache=False)
            rows.append({"engine": str(path), **_measure(lm, texts, min(window, lm.context))})
    if as_json:
        emit({"texts": file, "window": window, "results": rows})
        return
    base = rows[-1]["perplexity"]
    apart = [f"{r['perplexity'] / base - 1:+.2%}" for r in rows[:-1]]
    table(("engine", ">tokens", ">perplexity", ">"),
          [(r["engine"], r["tokens"], f"{r['perplexity']:.4f}", *more) for r, *more in zip(rows, [*apart, ""], strict=True)])


def _texts(file: str, limit: int | None) -> list[str]:
    """Raises UsageError as ``calibrate.data``, E0061 for a file without texts."""
    found = [item.content for item in itertools.islice(data.find(file).items(), limit)]
    texts = [text for text in found if isinstance(text, str)]
    if not texts or len(texts) < len(found):
        raise UsageError("E0061", "the file has no texts", where=file, hint="give a .txt, .jsonl, .csv or .parquet file of texts")
    return texts


def _measure(lm: LLM, texts: list[str], window: int) -> dict[str, Any]:
    """Perplexity and the number of tokens that were predicted. Raises UsageError E0061 if there is none."""
    import numpy as np

    from infc.compiler.calibrate.accuracy import surprise

    total, count = 0.0, 0
    for number, text in enumerate(texts):
        ids = lm.encode(text)
        for start in range(0, len(ids), window):
            piece = ids[start : start + window]
            if len(piece) < 2:
                continue
            total += float(surprise(lm.logits(piece)[:-1], np.asarray(piece[1:])).sum())
            count += len(piece) - 1
        if (number + 1) % 50 == 0:
            say(f"{number + 1} of {len(texts)} texts")
    if count == 0:
        raise UsageError("E0061", "no text has two tokens", where="--perplexity", hint="give longer texts")
    return {"perplexity": float(np.exp(total / count)), "tokens": count}
