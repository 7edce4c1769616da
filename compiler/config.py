"""``infc.toml``: defaults for a project, one table a command, the options' names as on the command line.

    [build]
    profile = ["batch=1,seq=128"]
    isa = "native"

What the command line gives wins over the file, the file over the default.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from infc.compiler.errors import UsageError
from infc.compiler.options import unknown

FILE = "infc.toml"


def load(commands: Mapping[str, Collection[str]], path: str | Path | None = None) -> dict[str, dict[str, Any]]:
    """The tables of ``path``, or of infc.toml in the current directory if there is one; ``commands`` maps each command to its
    option names. Names come back with underscores for dashes.

    Raises UsageError E0019 for a file that cannot be read and E0016 for a table or option that no command has.
    """
    file = Path(path or FILE)
    if path is None and not file.is_file():
        return {}
    try:
        tables = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError("E0019", f"cannot be read: {error}", where=str(file), hint="see the documentation of infc.toml") from error
    return {command: _table(command, table, commands, file) for command, table in tables.items()}


def _table(command: str, table: Any, commands: Mapping[str, Collection[str]], file: Path) -> dict[str, Any]:
    if command not in commands:
        raise unknown("command", command, commands, where=str(file))
    if not isinstance(table, dict):
        raise UsageError("E0019", f"'{command}' is not a table", where=str(file), hint=f"write [{command}]")
    known = {name.replace("-", "_") for name in commands[command]}
    options = {name.replace("-", "_"): value for name, value in table.items()}
    for name in options:
        if name not in known:
            raise unknown(f"option of {command}", name, known, where=str(file))
    return options
