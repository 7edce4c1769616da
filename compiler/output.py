"""The file a build makes. What would fail, or lose something, at the end of a build is refused at its start."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from infc.compiler.artifact import writer
from infc.compiler.artifact.layout import MAGIC
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
    with open(path, "rb") as file:
        return file.read(len(MAGIC)) in (b"", MAGIC)


def write(path: Path, sections: Sequence[Section]) -> None:
    """Raises UsageError E0023."""
    try:
        writer.write(path, sections)
    except OSError as error:  # it names the file aside
        raise UsageError("E0023", f"cannot be written: {error.strerror}", where=str(path),
                         hint="choose another place with -o") from error
