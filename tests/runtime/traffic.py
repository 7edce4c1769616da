"""Requests that join and leave a batch at random, each held against its run alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from infc.runtime.llm import LLM, Request

AT_ONCE = 8
JOINS, LEAVES = 0.1, 0.004  # how likely a free place is taken in a step, and a request is cancelled


@dataclass
class Visit:
    """A request with what it asked for."""

    request: Request
    prompt: np.ndarray[Any, np.dtype[np.int32]]
    options: dict[str, Any]

    def is_over(self) -> bool:
        return bool(self.request.stats["new_tokens"] == self.options["max_new_tokens"])


def _join(lm: LLM, rng: np.random.Generator, prompt: int, new: int) -> Visit:
    ids = rng.integers(1, lm.vocabulary, rng.integers(1, prompt + 1)).astype(np.int32)
    options: dict[str, Any] = {"max_new_tokens": int(rng.integers(1, new + 1)), "ignore_eos": True, "log_probabilities": True,
                               "temperature": float(rng.integers(2)), "seed": int(rng.integers(1 << 30))}
    return Visit(lm.request(ids, **options), ids, options)


def join_and_leave(lm: LLM, steps: int, *, prompt: int, new: int, seed: int = 0) -> list[Visit]:
    """So many steps of up to AT_ONCE requests, of up to so many tokens of prompt and after it. All those that came."""
    rng, visits = np.random.default_rng(seed), list[Visit]()
    here: list[Visit | None] = [None] * AT_ONCE
    for step in range(steps):
        for i, visit in enumerate(here):
            if visit and rng.random() < LEAVES:
                visit.request.cancel()
                here[i] = None
            elif visit is None and (rng.random() < JOINS or not any(here)):
                visits.append(_join(lm, rng, prompt, new))
                here[i] = visits[-1]
        assert lm.lm.advance() <= AT_ONCE, step
        here = [None if visit and visit.is_over() else visit for visit in here]
    for visit in here:
        if visit:
            visit.request.cancel()
    lm.lm.advance()
    return visits


def check_alone(alone: LLM, visits: list[Visit]) -> int:
    """Each gave what it gives alone, up to where it was cancelled. How many tokens there were."""
    total = 0
    for number, visit in enumerate(visits):
        *found, _ = visit.request.tokens()
        *expected, _ = alone.request(visit.prompt, **visit.options).tokens()
        assert [t.id for t in found] == [t.id for t in expected[: len(found)]], number
        off = [abs(a.log_probability - b.log_probability) for a, b in zip(found, expected, strict=False)]
        assert max(off, default=0.0) < 1e-3, number
        total += len(found)
    return total
