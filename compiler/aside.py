"""Files that are there whole or not at all: written beside their place, synced, and renamed into it."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole(path: str | os.PathLike[str]) -> Iterator[Path]:
    """The name under which to write what becomes ``path``, links followed. When the block ends well it takes its place, after all
    files that were written beside it, such as weights of its own; else nothing has changed. Where ``path`` is there and no file,
    as /dev/stdout, it is written as it is. OSError passes through."""
    target = Path(path).resolve()
    if target.exists() and not target.is_file():
        yield target
        return
    folder = Path(tempfile.mkdtemp(prefix=".infc-", dir=target.parent))
    try:
        yield folder / target.name
        written = sorted(folder.iterdir(), key=lambda file: file.name == target.name)
        for file in written:
            _sync(file)
        for file in written:
            os.replace(file, target.parent / file.name)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    _sync(target.parent)


def _sync(path: Path) -> None:
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
