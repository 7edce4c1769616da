"""Values of options as people write them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infc.compiler import driver, values
from infc.compiler.cli import build
from infc.compiler.cli.flags import build_options
from infc.compiler.cli.group import group
from infc.compiler.errors import UsageError
from infc.compiler.options import BuildOptions


def test_compute_capabilities() -> None:
    assert values.sms(["120", "8.6", "sm_89", "SM89", 86, "12.0"]) == (86, 89, 120)
    assert BuildOptions.of({"sm": "89, 8.6"}).sms == BuildOptions.of({"sms": [86, 89]}).sms == (86, 89)
    for wrong in ("", "ampere", "8", "8.60", "-89", "89x"):
        with pytest.raises(UsageError, match="no compute capability"):
            values.sms([wrong])
    with pytest.raises(UsageError, match="more than the 16"):
        values.sms(range(70, 90))


@pytest.mark.parametrize(("text", "size"), [("8G", 8 << 30), ("512MiB", 512 << 20), ("1.5k", 1536), (4096, 4096),
                                              ("2 GB", 2 << 30)])
def test_sizes(text: str | int, size: int) -> None:
    assert values.memory(text) == size


@pytest.mark.parametrize("text", ["", "0", "G", "-1G", "8X", "99999999T", "1e3"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(UsageError, match="no size"):
        values.memory(text)


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "soon", None])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(UsageError, match="no time"):
        values.seconds(text)


def test_precision_by_target() -> None:
    options = BuildOptions.of({"target": "cpu,tensorrt-rtx", "precision": "cpu=f32,tensorrt-rtx=f16"})
    assert [options.precision_of(t) for t in options.targets] == ["f32", "f16"]
    assert BuildOptions.of({"target": ["cpu", "tensorrt-rtx"], "precision": {"tensorrt-rtx": "f16"}}).precision_of("cpu") == "f32"
    assert BuildOptions.of({"target": "tensorrt-rtx", "precision": ["int8"]}).precision_of("tensorrt-rtx") == "int8"
    for given_, words in (("f17", "no precision is named 'f17'"), ("f16,f32", "twice"), ("cpu=f32,cpu=f32", "twice"),
                          ("tensorrt=f16", "not built for")):
        with pytest.raises(UsageError, match=words):
            BuildOptions.of({"precision": given_})


@given(st.dictionaries(st.text(max_size=5), st.tuples(st.floats(-1e30, 1e30), st.floats(0, 1e30)), max_size=4))
def test_ranges_come_back(found: dict[str, tuple[float, float]]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "r.json"
        wanted = {name: (low, low + width) for name, (low, width) in found.items()}
        path.write_text(json.dumps(wanted))
        assert values.ranges(path) == wanted


@pytest.mark.parametrize("text", ["", "[]", "3", '{"a": 1}', '{"a": [1]}', '{"a": [2, 1]}', '{"a": [1, 2, 3]}', '{"a": [1, "b"]}',
                                  '{"a": [NaN, 1]}', '{"a": [0, Infinity]}', '{"a": [true, 2]}', '{"a": [0, 1e39]}', "[" * 100_000])
def test_what_are_no_ranges(text: str, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        values.ranges(path)
    assert caught.value.code == "INFC-E0764"
    assert str(path) in caught.value.where


def test_a_file_of_ranges_must_exist_and_be_small(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        values.ranges(tmp_path / "none.json")
    with (tmp_path / "large.json").open("wb") as file:
        file.truncate(65 << 20)
    with pytest.raises(UsageError, match="larger than"):
        values.ranges(tmp_path / "large.json")


def test_the_command_that_builds_again_is_quoted_and_names_no_place() -> None:
    options = BuildOptions.of({"target": "cpu,tensorrt-rtx", "sm": 89, "isa": "scalar", "threads": 1, "only": "dead_code,normalise",
                               "precision": "tensorrt-rtx=fp8", "ranges": "/a b/r s.json", "engine_layout": "each",
                               "timing_cache": "/a/t.json", "report": "/a/r.json", "trust_remote_code": True})
    assert options.command("a model;rm", "tensorrt-rtx") == (
        "infc build 'a model;rm' --precision fp8 --precision cpu=f32 --isa scalar --threads 1 --engine-layout each "
        "--ranges 'r s.json' --only dead_code,normalise --trust-remote-code")


@pytest.mark.parametrize(("targets", "added"), [
    ("cpu,tensorrt-rtx", "--target cpu,tensorrt-rtx --sm 86,89"), ("cpu,tensorrt-rtx", "--target cpu,tensorrt --sm 90"),
    ("tensorrt-rtx", "--target tensorrt-rtx --sm 86,89"), ("tensorrt-rtx", "--target tensorrt --sm 90"),
    ("tensorrt-rtx", "--target cpu,tensorrt-rtx --sm 89 --precision cpu=f32"),
])
def test_the_command_that_builds_again_can_be_typed(targets: str, added: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what the runtime adds for the machine that it finds (preflight.c)."""
    typed: dict[str, Any] = {}
    monkeypatch.setattr(build.command, "callback", lambda **options: typed.update(options))
    options = BuildOptions.of({"target": targets, "sm": 89, "precision": "tensorrt-rtx=f16", "sparsity": "2:4",
                               "profiles": ["batch=1"], "disable": "merge_qkv" if "cpu" in targets else "sparse-weights"})
    words = f"{options.command('model', 'tensorrt-rtx')} {added}".split()
    group.main(words[1:], prog_name="infc", standalone_mode=False)
    del typed["model"], typed["output"], typed["as_json"]
    again = BuildOptions.of(build_options(typed))
    driver.check_names(again)
    assert again.precision_of(again.targets[-1]) == "f16"
    assert again.profiles == options.profiles
