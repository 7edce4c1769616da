from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infc.compiler.cli import bench, console
from infc.compiler.cli.measure import summarise

NUMBERS = ("0.003089", "12.3 µs", "7.381-7.452", "1234567")


@pytest.mark.parametrize("width", [20, 80, 200])
def test_numbers_are_never_broken(width: int) -> None:
    columns = ("name", ">a", ">b", ">c", ">d", "about")
    drawn = console.draw(columns, [("encoder.layer.1.output.dense", *NUMBERS, "words " * 30)], "", width)
    assert all(any(number in line for line in drawn.split("\n")) for number in NUMBERS)
    assert "encoder.layer.1.output.dense" in drawn


@pytest.mark.parametrize(("width", "shown"), [(80, False), (109, False), (110, True)])
def test_narrow_terminals_get_fewer_columns(width: int, shown: bool) -> None:
    drawn = console.draw(("name", "?>extra"), [("x", "42")], "", width)
    assert ("extra" in drawn, "42" in drawn) == (shown, shown)


def test_the_comparison_fits_80_columns_and_each_row_has_one_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[str] = []
    monkeypatch.setattr(bench, "table", lambda columns, rows: drawn.append(console.draw(columns, rows, "", 80)))
    slow, fast = ({"latency": summarise([t, 1.1 * t, 1.2345 * t]), "ratio": (12.345, 11.345, 13.345),
                   "accuracy": {"max_abs_difference": 1e-6}} for t in (7.4123e-3, 9.123e-4))
    bench._show({"systems": {"infc": fast, "onnxruntime": slow}, "reference": "torch"})
    lines = drawn[0].rstrip().split("\n")
    assert len(lines) == 3
    assert max(map(len, lines)) <= 80
    assert lines[1].split()[:2] == ["infc", "ms"]
    assert "1.004" in lines[1]
    assert "8.154" in lines[2]


@given(st.floats(1e-10, 1e4))
def test_a_time_is_at_least_one_of_its_unit(seconds: float) -> None:
    factor, unit = console.unit_of(seconds)
    assert seconds * factor >= 1 or unit == "ns"
    assert console.milliseconds(seconds).endswith(unit)
