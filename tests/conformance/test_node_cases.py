"""Every node case of onnx agrees, or is refused for a reason from the short list, or is known to come later (pending.txt)."""

from __future__ import annotations

import os
import time

import pytest

from tests.conformance import workers
from tests.conformance.node_cases import NOT_YET, Outcome, collect
from tests.conformance.run import COUNTS, counts, pending, run, summary, table

MAJORITY = 1800  # of 1,884; a newer onnx has more


@pytest.fixture(scope="module")
def found() -> list[Outcome]:
    outcomes = run(collect())
    print(summary(outcomes))
    return outcomes


def test_all_cases_were_taken(found: list[Outcome]) -> None:
    assert len(found) >= MAJORITY


@pytest.mark.parametrize("kind", ["wrong", "crash"])
def test_none_is(kind: str, found: list[Outcome]) -> None:
    assert not [f"{r.case}: {r.detail}" for r in found if r.kind == kind]


def test_refusals_have_a_reason_or_are_pending(found: list[Outcome]) -> None:
    known = pending()
    unknown = [f"{r.case}: {r.detail}" for r in found if r.reason == NOT_YET and r.case not in known]
    assert not unknown


def test_nothing_is_pending_that_is_done(found: list[Outcome]) -> None:
    kinds = {r.case: r for r in found}
    done = [name for name in pending() if name not in kinds or kinds[name].reason != NOT_YET]
    assert not done, "take these lines out of pending.txt"


def test_the_published_counts_are_these(found: list[Outcome]) -> None:
    assert COUNTS.read_text() == counts(table(found)), "run `python -m tests.conformance.run --write` and `python docs/generate.py`"


def _misbehave(item: int) -> int:
    if item == 1:
        os.abort()
    if item == 3:
        time.sleep(60)
    return item


def test_a_case_that_kills_its_process_is_a_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "SECONDS", 0.5)
    assert workers.run(_misbehave, range(6), lambda item, why: -item, jobs=2) == [0, -1, 2, -3, 4, 5]
