"""What an error says."""

from __future__ import annotations

from infc.compiler.errors import UsageError


def test_control_characters_are_written_as_numbers() -> None:
    error = UsageError("E0112", "reads '\x1b[31mx\x7f'\u009b", where="a\rb", hint="one\ntwo\x00")
    assert str(error) == "INFC-E0112: reads '\\x1b[31mx\\x7f'\\x9b\n  where: a\\x0db\n  try: one\ntwo\\x00"
    assert error.args == ("reads '\\x1b[31mx\\x7f'\\x9b",)
