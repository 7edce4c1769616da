"""What commands share: options, data on stdout, talk on stderr, progress by stage."""

from __future__ import annotations

import functools
import json
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, is_dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click
import numpy as np

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.status import Status

    from infc.compiler.driver import Event

F = TypeVar("F", bound=Callable[..., Any])
_WIDE = 10_000  # width of a table that goes to a file: never cut
_ROOMY = 110  # width from which a terminal gets every column
_GAP = 2  # between columns
_LONG_WORD = 40  # longer ones, such as hashes and paths, may be folded
_UNITS = ((1.0, "s"), (1e3, "ms"), (1e6, "µs"), (1e9, "ns"))


def common_options(command: F) -> F:
    """``--json`` (argument ``as_json``) and ``--debug`` (read from the command line where errors are reported).

    The artifact a command was called on, its argument ``engine``, becomes a note of its errors: the runtime's name no file.
    """

    @functools.wraps(command)
    def noted(*args: Any, **options: Any) -> Any:
        try:
            return command(*args, **options)
        except Exception as e:
            if "engine" in options:
                e.add_note(str(options["engine"]))
            raise

    wrapped = click.option("--debug", is_flag=True, expose_value=False, help="Show a traceback with an error.")(noted)
    return cast(F, click.option("--json", "as_json", is_flag=True, help="Print data as JSON on stdout.")(wrapped))


def say(text: str = "") -> None:
    """One line for people, on stderr."""
    click.echo(text, err=True)


def emit(data: Any, indent: int | None = 1) -> None:
    """``data`` as JSON on stdout, in one line if ``indent`` is None. Arrays become nested lists, dataclasses objects; JSON has no
    NaN or infinity: they are null."""
    try:
        text = json.dumps(data, indent=indent, default=_plain, allow_nan=False)
    except ValueError:
        text = json.dumps(json.loads(json.dumps(data, default=_plain), parse_constant=lambda name: None), indent=indent)
    click.echo(text)


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else str(value)


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], title: str = "") -> None:
    """A table on stdout. A column whose name starts with '>' is set to the right and holds numbers, one that starts with '?' is
    left out of a terminal narrower than 110 columns; '?>' is both."""
    from rich.console import Console

    live = sys.stdout.isatty()
    text = draw(columns, rows, title, Console().width if live else _WIDE)
    click.echo(text if live else "\n".join(line.rstrip() for line in text.split("\n")), nl=False)


def draw(columns: Sequence[str], rows: Iterable[Sequence[Any]], title: str, width: int) -> str:
    """``table`` as text. Text wraps between words to fit ``width``; numbers never do, if need be lines are longer than that."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    kept = [n for n, name in enumerate(columns) if width >= _ROOMY or not name.startswith("?")]
    names = [columns[n].removeprefix("?") for n in kept]
    cells = [[str(row[n]) for n in kept] for row in rows]
    least = [_least(name, [row[n] for row in cells]) for n, name in enumerate(names)]
    drawn = Table(box=None, pad_edge=False, header_style="bold", show_header=any(columns))
    for name, narrowest in zip(names, least, strict=True):
        right = name.startswith(">")
        drawn.add_column(name.removeprefix(">"), justify="right" if right else "left", overflow="fold", no_wrap=right,
                         min_width=narrowest)
    for row in cells:
        drawn.add_row(*map(Text, row))
    console = Console(highlight=False, width=max(width, sum(least) + _GAP * len(least)))
    with console.capture() as lines:
        if title:
            console.print(Text(title, style="bold"))
        console.print(drawn)
    return lines.get()


def _least(name: str, cells: Sequence[str]) -> int:
    """The width a column cannot go below: of a whole number with its unit, of a text's longest word, within reason."""
    from rich.cells import cell_len

    if name.startswith(">"):
        return max(map(cell_len, (name[1:], *cells)))
    return min(_LONG_WORD, max(cell_len(word) for text in (name, *cells) for word in text.split() or [""]))


def size(count: float) -> str:
    """Bytes for people: 1536 is '1.5 KiB'."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def milliseconds(seconds: float) -> str:
    """'7.41 ms', '12.3 µs', '3.20 s'."""
    factor, unit = unit_of(seconds)
    return f"{seconds * factor:.0f} ns" if unit == "ns" else f"{seconds * factor:.3g} {unit}"


def unit_of(seconds: float) -> tuple[float, str]:
    """The largest unit of which ``seconds`` is one or more: units in a second, and its name."""
    return next((u for u in _UNITS if seconds * u[0] >= 1), _UNITS[-1])


class Progress:
    """Stages with their times, on stderr: a live line on a terminal, plain lines otherwise.

    Call it with a stage's name when the stage begins; it ends when the next one begins or the ``with`` block is left. ``event``
    takes the driver's events instead.
    """

    def __init__(self) -> None:
        self._name = ""
        self._start = 0.0
        self._status: Status | None = None
        self._bar: Bar | None = None

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._end("failed" if kind else "")

    def __call__(self, stage: str) -> None:
        self._end()
        self._name, self._start = stage, time.perf_counter()
        if sys.stderr.isatty():
            from rich.console import Console

            self._status = Console(stderr=True, highlight=False).status(stage)
            self._status.start()

    def event(self, event: Event) -> None:
        if event.note:
            self._note(event.note)
        elif event.of:
            self._part(event.done, event.of)
        elif event.seconds is None:
            self(event.stage)
        else:
            self._end()

    def _note(self, line: str) -> None:
        if self._status:
            self._status.update(f"{self._name}: {line}")
        else:
            say(f"  {line}")

    def _part(self, done: int, of: int) -> None:
        """A bar on a terminal, nothing in a log."""
        if self._status is None:
            return
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        if self._bar is None:
            self._status.stop()
            self._bar = Bar(TextColumn(self._name), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
                            console=self._status.console, transient=True)
            self._bar.start()
            self._bar.add_task("")
        self._bar.update(self._bar.task_ids[0], completed=done, total=of)
        if done == of:
            self._bar.stop()
            self._bar = None
            self._status.start()

    def _end(self, outcome: str = "") -> None:
        if self._bar:
            self._bar.stop()
            self._bar = None
        if self._status:
            self._status.stop()
            self._status = None
        if self._name:
            say(f"{self._name:<24}{time.perf_counter() - self._start:8.2f} s{'  ' + outcome if outcome else ''}")
        self._name = ""
