"""What counts as worse between two artifacts, and the Markdown of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from infc.compiler.inspection.compare import Finding, Side, Thresholds, compare, markdown, ratio_interval

TIMES = list(1e-3 * np.random.default_rng(0).uniform(1, 1.2, 200))


def side(kernel: str = "infc_gemm_i8__avx512", actual: str = "int8", requested: str = "int8", mean: float | None = 0.999,
         slice_mean: float = 0.99, size: int = 1000, memory: int = 1000, golden: float | None = 0.999, slower: float = 1.0,
         program: str = "batch=1/x86-64-v4") -> Side:
    found = {"metric": "cosine", "mean": mean, "worst": 0.9, "samples": 3, "slices": {"a": {"mean": slice_mean, "samples": 1}}}
    meta: dict[str, Any] = {
        "options": {"precision": {"cpu": requested}}, "layers": {program: [{"name": "dense", "kernel": kernel}]},
        "quantisation": {"cpu": {"layers": [{"node": "dense", "requested": requested, "actual": actual}],
                                 "accuracy": {"engine": found}}}}
    return Side(meta, size, memory, golden, [t * slower for t in TIMES])


def worse(new: Side, old: Side | None = None) -> set[str]:
    return {f.kind for f in compare(old or side(), new, Thresholds(), 20) if f.worse}


def test_nothing_is_worse_than_itself() -> None:
    assert worse(side()) == set()


@pytest.mark.parametrize(("changes", "kind"), [
    ({"mean": 0.998}, "accuracy"), ({"slice_mean": 0.9}, "accuracy"), ({"golden": 0.9}, "accuracy"),
    ({"golden": float("nan")}, "accuracy"),
    ({"actual": "f32"}, "precision"), ({"kernel": "infc_gemm_i8__scalar"}, "kernel"), ({"program": "batch=2/scalar"}, "kernel"),
    ({"size": 1100}, "size"), ({"memory": 1100}, "size"), ({"slower": 1.1}, "latency")])
def test_each_loss_is_found_and_no_gain_is_one(changes: dict[str, Any], kind: str) -> None:
    assert worse(side(**changes)) == {kind}
    if "program" not in changes and not np.isnan(changes.get("golden", 0)):
        assert worse(side(), side(**changes)) == set()


def test_what_lies_within_the_thresholds_is_not_worse() -> None:
    assert worse(side(mean=0.9988, size=1005, slower=1.01)) == set()
    strict = compare(side(), side(mean=0.9988, size=1005, slower=1.01), Thresholds(0, 0, 0), 20)
    assert {f.kind for f in strict if f.worse} == {"accuracy", "size", "latency"}


def test_another_wish_is_told_and_not_held_against_it() -> None:
    found = compare(side(actual="f32", requested="f32"), side(), Thresholds(), 20)
    assert any(f.kind == "precision" and f.new == "int8" and not f.worse for f in found)


def test_pairs_that_drift_together_give_a_ratio_of_one() -> None:
    drift = np.repeat(np.linspace(1, 4, 20), 10)
    noise = np.random.default_rng(1).normal(1, 0.02, (2, 200))
    ratio, low, high = ratio_interval(list(drift * noise[0]), list(drift * noise[1]), 20)
    assert low <= ratio <= high
    assert low < 1 < high
    assert high - low < 0.04


def test_markdown_puts_what_is_worse_first_and_escapes_names() -> None:
    text = markdown([Finding("size", "the file", "1", "2", False), Finding("kernel", "a|b <img> @all\n# x", "1", "2", True)],
                    "old.infc", "new.infc")
    lines = text.splitlines()
    assert "1 worse" in lines[0]
    assert lines[4].startswith("| kernel | a\\|b &lt;img&gt; &#64;all \\# x |")
    assert lines[4].endswith("**worse** |")
    assert len(lines) == 6
