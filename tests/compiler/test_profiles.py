"""Profiles: parsing, order, defaults, limits, and graphs specialised to them."""

from __future__ import annotations

import contextlib

import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infc.compiler.errors import UsageError
from infc.compiler.profiles import Profile, check, check_limits, default, parse, specialise

NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True)
SIZES = st.dictionaries(NAMES, st.integers(1, 1 << 20), min_size=1, max_size=4)


@given(SIZES)
def test_parse_reads_what_str_writes(sizes: dict[str, int]) -> None:
    profile = Profile(tuple(sizes.items()))
    assert parse(str(profile)) == profile


@given(st.text(max_size=20))
def test_parse_takes_nothing_else(text: str) -> None:
    with contextlib.suppress(UsageError):
        profile = parse(text)
        assert parse(str(profile)) == profile


@given(st.lists(st.tuples(st.integers(1, 64), st.integers(1, 64)), min_size=1, max_size=6))
def test_check_orders_and_drops_duplicates(sizes: list[tuple[int, int]]) -> None:
    found = check([Profile((("seq", s), ("batch", b))) for b, s in sizes], ["batch", "seq"])
    products = [p["batch"] * p["seq"] for p in found]
    assert products == sorted(products)
    assert {tuple(p.as_dict().values()) for p in found} == set(sizes)
    assert len(found) == len(set(sizes))


def test_errors_name_the_dimension() -> None:
    with pytest.raises(UsageError, match="'time'"):
        check([parse("batch=1,time=2")], ["batch", "seq"])
    with pytest.raises(UsageError, match="seq"):
        check([parse("batch=1")], ["batch", "seq"])
    with pytest.raises(UsageError, match="512") as caught:
        check_limits([parse("batch=1,seq=513")], {"seq": 512})
    assert caught.value.code == "INFC-E0207"
    check_limits([parse("batch=1,seq=512")], {"seq": 512})


def test_defaults_stay_within_the_model() -> None:
    symbols = ["batch", "seq"]
    found = default("sentence-embedding", symbols, {"seq": 512}, {"seq": 256})
    assert list(map(str, found)) == ["batch=1,seq=128", "batch=8,seq=256"]
    assert list(map(str, default("text-classification", symbols, {"seq": 64}, {}))) == ["batch=1,seq=64", "batch=8,seq=64"]
    assert list(map(str, default("fill-mask", symbols, {"seq": 512}, {}))) == ["batch=1,seq=128"]
    assert list(map(str, default("onnx", [], {}, {}))) == [""]
    with pytest.raises(UsageError, match="frames"):
        default("onnx", ["batch", "frames"], {}, {})
    with pytest.raises(UsageError, match="E0206"):  # names that a language model's dimensions have
        default("onnx", ["tokens", "rows"], {}, {})
    assert list(map(str, default("text-generation", ["tokens", "rows"], {"tokens": 100}, {}))) == [
        "tokens=1,rows=1", "tokens=8,rows=8", "tokens=100,rows=64"]


def graph() -> ir.Model:
    return ir.from_onnx_text("""
        <ir_version: 10, opset_import: ["" : 23]>
        g (float[batch, seq, 4] x) => (float[batch, seq, 4] y) { y = Tanh (x) }""")


def test_specialise_leaves_the_original_alone() -> None:
    model = graph()
    fixed = specialise(model, parse("batch=2,seq=3"), set())
    assert [str(v.shape) for v in (*fixed.graph.inputs, *fixed.graph.outputs)] == ["[2,3,4]", "[2,3,4]"]
    assert str(model.graph.inputs[0].shape) == "[batch,seq,4]"
    assert str(specialise(model, parse("batch=2,seq=3"), {"batch", "seq"}).graph.inputs[0].shape) == "[batch,seq,4]"
    assert str(specialise(model, parse("batch=2,seq=3"), {"seq"}).graph.inputs[0].shape) == "[2,seq,4]"
