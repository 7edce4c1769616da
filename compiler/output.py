"""The files that are made for the user. What would fail, or lose something, at the end of the work is refused at its start."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from infc.compiler import foreign
from infc.compiler.artifact import writer
from infc.compiler.artifact.layout import MAGIC
from infc.compiler.aside import whole
from infc.compiler.errors import UsageError
from infc.compiler.target import Section


def check(path: Path, report: str | None = None) -> None:
    """Raises UsageError E0021 or E0022 if the artifact, or the report, cannot go there. A rename replaces even devices."""
    folder = path.resolve().parent
    if not folder.is_dir():
        raise UsageError("E0021", "the directory for the artifact does not exist", where=str(path), hint="create it first")
    if not os.access(folder, os.W_OK):
        raise UsageError("E0021", "the directory for the artifact is not writable", where=str(folder), hint="choose another one")
    if path.exists() and not (path.is_file() and _is_replaceable(path)):
        raise UsageError("E0022", "it exists and is not an artifact, so it is not replaced", where=str(path),
                         hint="choose another name with -o, or remove it first")
    if report:
        _check_report(Path(report), path)


def check_file(path: Path, inputs: Sequence[Path], option: str = "-o") -> None:
    """Raises UsageError E0021 for a file that cannot go there, E0022 for one that would replace an artifact or one of ``inputs``: a
    file, or a directory of a model, of which ONNX files may be replaced."""
    if not path.resolve().parent.is_dir():
        raise UsageError("E0021", "its directory does not exist", where=str(path), hint="create it first")
    if path.is_dir():
        raise UsageError("E0022", "it is a directory", where=str(path), hint=f"give the name of a file with {option}")
    if not path.is_file():
        return
    inside = [i for i in inputs if i.is_dir() and path.suffix != ".onnx" and path.resolve().is_relative_to(i.resolve())]
    if inside or any(i.exists() and path.samefile(i) for i in inputs):
        raise UsageError("E0022", "it is a file that the command reads, so it is not replaced", where=str(path),
                         hint=f"choose another name with {option}")
    if foreign.begins(path, MAGIC):
        raise UsageError("E0022", "it is an artifact, so it is not replaced", where=str(path),
                         hint=f"choose another name with {option}, or remove it first")


@contextmanager
def written(path: Path, option: str = "-o") -> Iterator[Path]:
    """As ``aside.whole``. Raises UsageError E0023 where the file cannot be written."""
    try:
        with whole(path) as aside:
            yield aside
    except OSError as error:  # it names the file aside
        raise UsageError("E0023", f"cannot be written: {error.strerror}", where=str(path),
                         hint=f"choose another place with {option}") from error


def dumps(folder: str | None) -> Callable[[str, bytes], object] | None:
    """What writes files of given names into a folder, which it makes. They raise UsageError E0023."""
    if folder is None:
        return None

    def write(name: str, data: bytes) -> None:
        try:
            Path(folder).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError("E0023", f"cannot be made: {error.strerror}", where=str(folder),
                             hint="choose another place with --dump-graphs") from error
        with written(Path(folder) / name, "--dump-graphs") as aside:
            aside.write_bytes(data)

    return write


def _check_report(report: Path, artifact: Path) -> None:
    if not report.parent.is_dir():
        raise UsageError("E0021", "the directory for the report does not exist", where=str(report), hint="create it first")
    if report.resolve() == artifact.resolve():
        raise UsageError("E0022", "the report would replace the artifact", where=f"--report {report}", hint="give it another name")
    if report.exists() and not (report.is_file() and _is_report(report)) and not report.is_char_device():
        raise UsageError("E0022", "it exists and is no report, so it is not replaced", where=f"--report {report}",
                         hint="choose another name, or remove it first")


def _is_report(path: Path) -> bool:
    with open(path, "rb") as file:
        return file.read(1) in (b"", b"{")


def _is_replaceable(path: Path) -> bool:
    return path.stat().st_size == 0 or foreign.begins(path, MAGIC)


def write(path: Path, sections: Sequence[Section]) -> None:
    """Raises UsageError E0023."""
    with written(path):
        writer.write(path, sections)
