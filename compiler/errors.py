"""Errors that a user can act on.

Each has a code, says what is wrong, where, and what to do next. The command line prints them without a
traceback and exits with ``exit_code``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

EXIT_CHECK_FAILED = 1
EXIT_USAGE = 2
EXIT_UNSUPPORTED = 3
EXIT_BUG = 101


# Names come from files of anybody: what would steer a terminal is written as its number.
_CONTROL = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\t\n"}


def _printable(text: str) -> str:
    return text.translate(_CONTROL)


class InfcError(Exception):
    """``code`` such as ``"E0101"``; ``where`` a node, file or option; ``hint`` what to do next; ``node`` the name of the graph's
    node that is at fault, for programs."""

    exit_code = EXIT_USAGE

    def __init__(self, code: str, message: str, *, where: str = "", hint: str = "", node: str = "") -> None:
        super().__init__(_printable(message))
        self.code = f"INFC-{code}"
        self.message = _printable(message)
        self.where = _printable(where)
        self.hint = _printable(hint)
        self.node = node

    def __str__(self) -> str:
        lines = [f"{self.code}: {self.message}"]
        if self.where:
            lines.append(f"  where: {self.where}")
        if self.hint:
            lines.append(f"  try: {self.hint}")
        return "\n".join(lines)


class UsageError(InfcError):
    """E00xx command line and options, E01xx source, E02xx profiles and shapes, E08xx data of calibration."""


class ExportError(InfcError):
    """E03xx: the model could not be exported, or the export disagrees with the model."""

    exit_code = EXIT_UNSUPPORTED


class UnsupportedError(InfcError):
    """E04xx: an operator, type or shape that a target does not take."""

    exit_code = EXIT_UNSUPPORTED


class CheckError(InfcError):
    """E05xx: a comparison failed: pass check, golden replay, verify."""

    exit_code = EXIT_CHECK_FAILED


class ArtifactError(InfcError):
    """E06xx: an artifact that cannot be read, or not on this machine."""

    exit_code = EXIT_UNSUPPORTED


class InternalError(InfcError):
    """E09xx: a bug in infc."""

    exit_code = EXIT_BUG


def exit_code(action: Callable[[], object]) -> int:
    """For scripts: prints what the action returns, or its InfcError to stderr; gives the process's exit code."""
    try:
        print(action())
    except InfcError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0
