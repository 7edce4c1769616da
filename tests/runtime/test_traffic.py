"""Many requests of one model at once: each as it is alone, and none kept waiting for another's prompt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import infc
from infc.compiler import driver
from infc.compiler.cli import bench_language
from infc.models import fetch
from tests.runtime import made_lm, traffic

STEPS = 1000
LIMITS: dict[str, dict[str, Any]] = {
    "room": {"cache_tokens": 4096},
    "small steps": {"cache_tokens": 4096, "max_batched_tokens": 20},
    "little room": {"cache_tokens": 384, "max_batched_tokens": 20},  # so that some are preempted
}


@pytest.mark.parametrize("limits", LIMITS)
def test_joining_and_leaving(limits: str) -> None:
    lm = infc.LLM(made_lm.artifact(), threads=2, **LIMITS[limits])
    visits = traffic.join_and_leave(lm, STEPS, prompt=90, new=80)
    assert sum(v.request.stats["preemptions"] for v in visits) > 0 or limits != "little room"
    alone = infc.LLM(made_lm.artifact(), threads=1, prefix_cache=False)
    assert traffic.check_alone(alone, visits) > 3 * STEPS
    assert lm.info["sequences"] == 0
    assert lm.info["free_tokens"] == lm.info["cache_tokens"]


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2-135M in int4, rounded to the nearest: speed and sameness do not depend on how."""
    pytest.importorskip("gguf")
    (source,) = fetch.fetch("smollm2").glob("*.gguf")
    path = tmp_path_factory.mktemp("smollm2") / "smollm2.infc"
    driver.build(source, path, precision="int4", method="rtn", tune=False)
    return path


@pytest.mark.slow
def test_joining_and_leaving_of_smollm2(smollm2: Path) -> None:
    lm = infc.LLM(smollm2, threads=2, cache_tokens=4096)
    visits = traffic.join_and_leave(lm, STEPS, prompt=200, new=120)
    alone = infc.LLM(smollm2, threads=2, cache_tokens=1024, prefix_cache=False)
    assert traffic.check_alone(alone, visits) > 3 * STEPS


@pytest.mark.slow
def test_a_long_prompt_among_seven_that_generate(smollm2: Path) -> None:
    """The least of several tries counts: the machine may have other work."""
    lm = infc.LLM(smollm2, threads=2, cache_tokens=8192, prefix_cache=False)
    load = bench_language.Load(prompts=(32, 2000), new=128, concurrency=(8,), burst=0, runs=1, seconds=60)
    tries = [bench_language.among(lm, load, np.random.default_rng(i))["itl"] for i in range(5)]
    assert min(t.p99 / t.median for t in tries) <= 3
