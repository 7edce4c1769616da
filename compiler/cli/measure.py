"""Latencies that can be trusted: workers that take turns in short bursts, and intervals for every figure."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

WARM_RUNS = 2  # before each burst: other processes used the caches meanwhile
_RESAMPLES = 1000
_SETTLE_S = 0.1  # between bursts: idle threads of the last one must have gone to sleep


@dataclass(frozen=True)
class Summary:
    """Seconds. Each interval is the bootstrap's 95 % (percentile method, 1000 resamples, fixed seed)."""

    runs: int
    minimum: float
    median: float
    median_interval: tuple[float, float]
    p95: float
    p95_interval: tuple[float, float]
    p99: float
    p99_interval: tuple[float, float]


def summarise(times: Sequence[float]) -> Summary:
    """``times`` in seconds, at least one."""
    values = np.asarray(times, dtype=np.float64)
    draws = np.random.default_rng(0).choice(values, size=(_RESAMPLES, len(values)))
    points = (50, 95, 99)
    found = np.percentile(values, points)
    low, high = np.percentile(np.percentile(draws, points, axis=1), (2.5, 97.5), axis=1)
    median, p95, p99 = ((float(f), (float(a), float(b))) for f, a, b in zip(found, low, high, strict=True))
    return Summary(len(values), float(values.min()), *median, *p95, *p99)


class Worker:
    """A process that times one system: ``python -m infc.compiler.cli.peers CONFIG``. It answers one JSON line a request."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.label = str(config["label"])
        command = [sys.executable, "-m", "infc.compiler.cli.peers", json.dumps(config)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.head: dict[str, Any] = self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if line:
            return json.loads(line)
        _, talk = self._process.communicate()
        return {"ok": False, "error": f"the process died: {talk.strip().splitlines()[-1] if talk.strip() else 'no message'}"}

    def burst(self, runs: int) -> list[float]:
        """Seconds of ``runs`` runs, two runs of warm-up before them not counted."""
        assert self._process.stdin
        self._process.stdin.write(f"{runs}\n")
        self._process.stdin.flush()
        times: list[float] = self._answer()
        return times

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


def alternate(workers: Sequence[Worker], runs: int, rounds: int, budget: float = math.inf,
              settled: Callable[[], None] = lambda: time.sleep(_SETTLE_S)) -> dict[str, list[float]]:
    """At least ``runs`` times a worker, in ``rounds`` bursts by turns, so that drift of the machine's speed hits all alike. One
    that has used up its ``budget`` of seconds, warm-up included, stops with what it has: bursts are as short as that asks for."""
    times: dict[str, list[float]] = {w.label: [] for w in workers}
    spent = dict.fromkeys(times, 0.0)

    def measure(worker: Worker, count: int) -> None:
        settled()
        start = time.perf_counter()
        times[worker.label] += worker.burst(count)
        spent[worker.label] += time.perf_counter() - start

    whole = -(-runs // rounds)
    if budget < math.inf:
        for worker in workers:
            measure(worker, 1)
    for left in range(rounds, 0, -1):
        for worker in workers:
            seconds = (budget - spent[worker.label]) / left
            count = whole if seconds == math.inf else _affordable(whole, seconds, min(times[worker.label]))
            if count:
                measure(worker, count)
    return times


def _affordable(whole: int, seconds: float, each: float) -> int:
    """Runs of a burst that takes so many seconds, of which two are warm-up; one if that is too little, none if not even one is."""
    return min(whole, max(1, int(seconds / each) - WARM_RUNS)) if seconds > each else 0


def ratio_interval(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float, float]:
    """How many times longer ``theirs`` takes: the ratio of medians and its 95 % bootstrap interval."""
    rng = np.random.default_rng(0)

    def medians(times: Sequence[float]) -> NDArray[np.float64]:
        values = np.asarray(times, dtype=np.float64)
        return np.asarray(np.median(rng.choice(values, size=(_RESAMPLES, len(values))), axis=1))

    low, high = np.percentile(medians(theirs) / medians(ours), (2.5, 97.5))
    return float(np.median(theirs) / np.median(ours)), float(low), float(high)
