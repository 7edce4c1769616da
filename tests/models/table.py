"""Measures every family and head beside PyTorch: ``python -m tests.models.table`` prints the table, of all or of the architectures
whose names are given; with ``--write`` the lines go to families.txt, of which docs/generate.py makes docs/families.md."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.models import families, perception
from tests.models.row import Row

LINES = Path(__file__).with_name("families.txt")


def members() -> Iterator[tuple[str, Callable[[Path], Row]]]:
    """The name of each line and what measures it."""
    for name, text, sentence in families.members():
        yield Row(name, [], sentence).name, lambda folder, n=name, f=text, s=sentence: families.measure(n, f.config, folder, s)
    for name, family in (perception.VISION | perception.AUDIO).items():
        yield name, lambda folder, n=name, f=family: perception.measure(n, f, folder)


def read() -> dict[str, list[str]]:
    """The cells of each line, by its name."""
    lines = LINES.read_text(encoding="utf-8").splitlines() if LINES.is_file() else []
    return {cells[0]: cells for cells in (line.split("\t") for line in lines)}


def main(wanted: list[str], write: bool) -> None:
    for name, measure in members():
        if wanted and name not in wanted:
            continue
        with tempfile.TemporaryDirectory() as folder:
            row = measure(Path(folder))
        print(row, flush=True)
        assert row.largest <= families.PARITY
        if write:
            lines = read() | {row.name: row.cells()}
            LINES.write_text("".join("\t".join(lines[n]) + "\n" for n, _ in members() if n in lines), encoding="utf-8")


if __name__ == "__main__":
    main([a for a in sys.argv[1:] if a != "--write"], "--write" in sys.argv)
