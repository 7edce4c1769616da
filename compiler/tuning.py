"""Measuring for targets that choose by time, and the cache of what was measured."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from infc.compiler import cache, samples
from infc.compiler.errors import UsageError
from infc.compiler.interface import Interface

_RUNS = 5
_SECONDS = (0.05, 0.5)  # at least, and after which five runs are not waited for


def measurer(interface: Interface, engine: Callable[[bytes, int], Any]) -> Callable[[bytes, int], float]:
    """Seconds a run on full inputs of the largest profile: the minimum, which the machine's other work disturbs least.

    ``engine`` makes an infc.runtime.Engine of an artifact's bytes and a number of threads.
    """

    def measure(artifact: bytes, threads: int) -> float:
        context = _bound(interface, engine(artifact, threads))
        best = float("inf")
        for took in _runs(context):
            best = min(best, took)
        return best

    return measure


def step_measurer(interface: Interface, engine: Callable[[bytes, int], Any]) -> Callable[[bytes, int], list[float]]:
    """The same of each step."""

    def measure(artifact: bytes, threads: int) -> list[float]:
        context = _bound(interface, engine(artifact, threads))
        best: list[float] = []
        context.set_timing(True)
        for _ in _runs(context):
            found = [step.seconds for step in context.step_times()]
            best = list(map(min, best, found)) if best else found
            context.set_timing(True)  # from nothing again
        return best

    return measure


def _bound(interface: Interface, runner: Any) -> Any:
    inputs = samples.random_inputs(interface, runner.profiles[-1], np.random.default_rng(0))
    context = runner.context()
    context.bind({t.name: inputs[t.name] for t in runner.inputs})
    return context


def _runs(context: Any) -> Iterator[float]:
    """Runs, and yields the seconds of each."""
    spent, runs = 0.0, 0
    while spent < _SECONDS[0] or (runs < _RUNS and spent < _SECONDS[1]):
        start = time.perf_counter()
        context.run()
        took = time.perf_counter() - start
        spent, runs = spent + took, runs + 1
        yield took


@contextmanager
def timings(file: str | None, used: bool, note: Callable[[str], None]) -> Iterator[dict[str, float]]:
    """Measured seconds by tactic: what is added is kept in ``file``, by default the user's cache; nothing is if not ``used``."""
    path = Path(file) if file else cache.timings_path()
    found = cache.load_timings(path) if used else {}
    known = dict(found)
    yield found
    if found != known:
        keep(path, found, bool(file), note)


def keep(path: Path, found: dict[str, float], wanted: bool, note: Callable[[str], None]) -> None:
    """A build does not fail because the user's cache is not writable, unless the file was asked for: UsageError E0023."""
    try:
        cache.save_timings(path, found)
    except OSError as error:
        if wanted:
            raise UsageError("E0023", f"cannot be written: {error.strerror}", where=str(path),
                             hint="give another file with --timing-cache") from error
        note(f"measured times are not kept: {path} cannot be written: {error.strerror}")
