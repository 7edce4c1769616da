"""``infc``: the command table, and what becomes of an error."""

from __future__ import annotations

import sys


def main(argv: list[str] | None = None) -> int:
    """Runs one command and returns the exit code: 0 ok, 1 a check failed, 2 usage or input, 3 unsupported, 130 interrupted, 101 a
    bug of ours."""
    try:
        from infc.compiler.cli.group import run
    except KeyboardInterrupt:  # before there is a command that could say so
        return 130
    except ModuleNotFoundError as missing:
        if missing.name not in ("click", "rich"):
            raise
        print(f"INFC-E0006: the command line needs '{missing.name}', which is not installed\n  try: pip install 'infc[cli]'",
              file=sys.stderr)
        return 2
    return run(sys.argv[1:] if argv is None else argv)


if __name__ == "__main__":
    sys.exit(main())
