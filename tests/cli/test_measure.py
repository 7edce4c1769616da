from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infc.compiler.cli import measure


@given(st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=50))
def test_percentiles_lie_in_their_intervals_and_in_order(times: list[float]) -> None:
    s = measure.summarise(times)
    assert s.runs == len(times)
    assert s.minimum == min(times)
    assert s.minimum <= s.median <= s.p95 <= s.p99 <= max(times)
    for low, high in (s.median_interval, s.p95_interval, s.p99_interval):
        assert min(times) <= low <= high <= max(times)
    assert s.median == pytest.approx(np.median(times))


def test_the_interval_of_the_median_covers_it_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(7)
    hits = 0
    for _ in range(60):
        low, high = measure.summarise(list(rng.gamma(2.0, 1.0, 80))).median_interval
        hits += low <= 1.678347 <= high  # the distribution's true median
    assert 50 <= hits < 60


def test_the_interval_narrows_with_more_runs() -> None:
    rng = np.random.default_rng(3)
    few, many = (measure.summarise(list(rng.normal(1.0, 0.1, n))).median_interval for n in (30, 3000))
    assert many[1] - many[0] < (few[1] - few[0]) / 4


def test_the_ratio_is_that_of_the_medians() -> None:
    ours = [1.0, 1.1, 0.9] * 30
    ratio, low, high = measure.ratio_interval(ours, [2 * t for t in ours])
    assert ratio == pytest.approx(2.0)
    assert low <= ratio <= high


class FakeWorker:
    def __init__(self, label: str, log: list[str]) -> None:
        self.label, self.log = label, log

    def burst(self, runs: int) -> list[float]:
        self.log.append(self.label)
        return [1.0] * runs


def test_workers_take_turns() -> None:
    log: list[str] = []
    workers: Any = [FakeWorker("a", log), FakeWorker("b", log)]
    times = measure.alternate(workers, runs=10, rounds=3, settled=lambda: None)
    assert log == ["a", "b"] * 3
    assert [len(t) for t in times.values()] == [12, 12]


class SlowWorker(FakeWorker):
    """Its clock stands still between runs of ``each`` seconds."""

    def __init__(self, label: str, each: float, clock: list[float]) -> None:
        super().__init__(label, [])
        self.each, self.clock = each, clock

    def burst(self, runs: int) -> list[float]:
        self.clock[0] += (runs + measure.WARM_RUNS) * self.each
        return [self.each] * runs


@pytest.mark.parametrize(("each", "fewest", "most"),
                         [(0.001, 301, 301), (0.2, 100, 130), (1.0, 10, 20), (5.0, 2, 6), (100.0, 1, 1)])
def test_a_slow_system_runs_less_often(each: float, fewest: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(measure.time, "perf_counter", lambda: clock[0])
    workers: Any = [SlowWorker("slow", each, clock), SlowWorker("quick", 0.001, clock)]
    times = measure.alternate(workers, runs=300, rounds=10, budget=30, settled=lambda: None)
    assert fewest <= len(times["slow"]) <= most
    assert len(times["quick"]) == 301
    assert clock[0] <= max(30, 3 * each) + 2 * each + 1


def test_a_system_that_fails_says_why(tmp_path: Any) -> None:
    worker = measure.Worker({"label": "x", "system": "onnxruntime", "threads": 1, "inputs": str(tmp_path / "absent.npz"),
                             "outputs": str(tmp_path / "o.npz"), "onnx": "absent.onnx"})
    assert not worker.head["ok"]
    assert "absent.npz" in worker.head["error"]
    worker.close()
