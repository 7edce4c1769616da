"""Lines of docs/families.md are all architectures that tests build, in their order, and say of sizes what the tests hold."""

from __future__ import annotations

from tests.models import families, perception
from tests.models.table import members, read


def test_every_architecture_has_its_line() -> None:
    assert list(read()) == [name for name, _ in members()]


def test_lines_say_what_is_tested() -> None:
    sizes = {name + (" + pooling" if sentence else ""): family.sizes for name, family, sentence in families.members()}
    sizes |= dict.fromkeys(perception.VISION | perception.AUDIO, "exact")
    for name, cells in read().items():
        assert cells[2] == sizes[name]
        assert float(cells[4]) <= families.PARITY
