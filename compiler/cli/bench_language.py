"""``infc bench`` of a language model: time to the first token, between tokens, by stage, and with several requests at once."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from infc.compiler.cli import language
from infc.compiler.cli.console import emit, milliseconds, say, size, table
from infc.compiler.cli.engines import place
from infc.compiler.cli.measure import Summary, summarise
from infc.compiler.errors import UsageError

if TYPE_CHECKING:
    from infc.runtime.llm import LLM, Request

_STAGES = ("queue_seconds", "prefill_seconds", "decode_seconds", "sample_seconds")
_PROBE = 1 << 25  # floats of each of the two arrays that a thread reads to measure bandwidth
_PROBES = 5


@dataclass(frozen=True)
class Load:
    """What is measured: prompts of so many tokens, each continued by so many, and how many at once."""

    prompts: Sequence[int]
    new: int
    concurrency: Sequence[int]
    burst: int
    runs: int
    seconds: float


@dataclass
class Times:
    """Seconds of requests: to the first token, between tokens, the whole."""

    first: list[float] = field(default_factory=list)
    between: list[float] = field(default_factory=list)
    tokens: int = 0
    whole: float = 0.0

    def summary(self) -> dict[str, Any]:
        return {"ttft": summarise(self.first), "itl": summarise(self.between) if self.between else None,
                "tokens_per_second": self.tokens / self.whole}


def numbers(text: str, option: str) -> list[int]:
    """Raises UsageError E0062 for anything but positive numbers with commas between."""
    parts = [p.strip() for p in text.split(",") if p.strip()]
    if not parts or not all(p.isascii() and p.isdigit() and 0 < int(p) < 1 << 24 for p in parts):
        raise UsageError("E0062", f"'{text}' is not a list of positive numbers", where=option,
                         hint=f"{option} 1,2,4" if option == "--concurrency" else f"{option} 128,512")
    return [int(p) for p in parts]


def run(engine: Path, load: Load, threads: int | None, isa: str | None, device: str | None, as_json: bool) -> None:
    """Measures and prints. Raises UsageError E0062 for more tokens than the context has."""
    largest = max((*load.concurrency, 1 + load.burst))
    longest = max(load.prompts) + load.new + 1
    lm = language.opened(engine, threads, isa, device, prefix_cache=False, cache_tokens=longest * largest + 32 * largest,
                         max_sequences=max(64, largest))
    if longest > lm.context:
        raise UsageError("E0062", f"{longest} tokens, --new-tokens with them, are more than the context of {lm.context}",
                         where="--prompt-tokens", hint="give shorter prompts, or build with --context")
    count, rng = lm.engine.threads, np.random.default_rng(0)
    before = bandwidth(count) if lm.engine.isa else 0.0  # what decoding on the CPU is held against
    report: dict[str, Any] = {"engine": str(engine), "threads": count, "isa": lm.engine.isa, "device": lm.engine.device,
                              "new_tokens": load.new, "prompts": {}}
    for length in load.prompts:
        report["prompts"][length] = _alone(lm, length, load, rng)
    if load.concurrency:
        report["concurrency"] = {n: _together(lm, load.prompts[0], n, load, rng) for n in load.concurrency}
        if max(load.concurrency) > 1 and len(set(load.prompts)) > 1:
            report["among"] = among(lm, load, rng)
    if load.burst:
        report["burst"] = _burst(lm, load.prompts[0], load, rng)
    report |= {"memory": lm.info["memory"], "cache": lm.info["cache_bytes"], "artifact": engine.stat().st_size,
               "place": place(lm.engine)}
    if lm.engine.isa:
        _hold_against_reading(report, max(before, bandwidth(count)), decode_bytes(engine))
    if as_json:
        emit(report)
    else:
        _show(report)


def _hold_against_reading(report: dict[str, Any], read: float, moved: int) -> None:
    """Bytes that memory gives a second, and that a token needs."""
    report |= {"read_bytes_per_second": read, "weights_read_per_token": moved}
    for row in report["prompts"].values():
        if row["itl"]:
            row["share_of_bandwidth"] = moved / row["itl"].median / read


def _prompt(lm: LLM, length: int, rng: np.random.Generator) -> Any:
    return rng.integers(0, lm.vocabulary, length).astype(np.int32)


def _alone(lm: LLM, length: int, load: Load, rng: np.random.Generator) -> dict[str, Any]:
    """One request after the other; the first is warm-up."""
    times, stages, end = Times(), dict.fromkeys(_STAGES, 0.0), math.inf
    for number in range(load.runs + 1):
        if time.monotonic() > end:
            break
        fresh = times if number else Times()
        request = _submit(lm, length, load.new, rng)
        fresh.whole += _follow(lm, [request], [fresh])
        if number:
            for name in _STAGES:
                stages[name] += request.stats[name]
        else:
            end = time.monotonic() + load.seconds
    return {**times.summary(), "requests": len(times.first), "stages": {n: s / len(times.first) for n, s in stages.items()},
            "text": _text_times(lm, length)}


def _text_times(lm: LLM, length: int) -> dict[str, float] | None:
    """Seconds to make tokens of so long a text, and a text of a token; None without a tokenizer."""
    from infc.runtime import Error

    text = "word " * length
    try:
        lm.encode(text)
    except (Error, ImportError):
        return None
    start = time.perf_counter()
    ids = lm.encode(text)
    middle = time.perf_counter()
    lm.decode(ids)
    return {"tokenise": middle - start, "detokenise": (time.perf_counter() - middle) / max(len(ids), 1)}


def _submit(lm: LLM, length: int, new: int, rng: np.random.Generator) -> Request:
    return lm.request(_prompt(lm, length, rng), max_new_tokens=new, ignore_eos=True)


def _follow(lm: LLM, requests: Sequence[Request], each: Sequence[Times], steps: int | None = None) -> float:
    """Advances requests to their end, or so many steps; returns the seconds that all took."""
    start = time.perf_counter()
    last, seen = [start] * len(requests), [r.stats["new_tokens"] for r in requests]
    left, done = 1, 0
    while left and done != steps:
        left, done = lm.lm.advance(), done + 1
        now = time.perf_counter()
        for i, (request, times) in enumerate(zip(requests, each, strict=True)):
            new = request.stats["new_tokens"]
            if new > seen[i]:
                (times.between if seen[i] else times.first).append(now - last[i])
                times.tokens += new - seen[i]
                last[i], seen[i] = now, new
    return time.perf_counter() - start


def _together(lm: LLM, length: int, count: int, load: Load, rng: np.random.Generator) -> dict[str, Any]:
    """``count`` requests at once, again and again."""
    times, end = Times(), time.monotonic() + load.seconds
    for _ in range(max(1, load.runs // count)):
        times.whole += _follow(lm, [_submit(lm, length, load.new, rng) for _ in range(count)], [times] * count)
        if time.monotonic() > end:
            break
    return times.summary()


def among(lm: LLM, load: Load, rng: np.random.Generator) -> dict[str, Any]:
    """Requests with the shortest of the prompts generate; after a third of their tokens one with the longest joins them: their
    times between tokens, from their first to their last."""
    count, times, end = max(load.concurrency) - 1, Times(), time.monotonic() + load.seconds
    for _ in range(max(1, load.runs // count)):
        requests = [_submit(lm, min(load.prompts), load.new, rng) for _ in range(count)]
        _follow(lm, requests, [times] * count, load.new // 3)
        late = _submit(lm, max(load.prompts), 1, rng)
        _follow(lm, [*requests, late], [*[times] * count, Times()])
        if time.monotonic() > end:
            break
    return {"requests": count, "prompt": max(load.prompts), "itl": summarise(times.between)}


def _burst(lm: LLM, length: int, load: Load, rng: np.random.Generator) -> dict[str, Any]:
    """One request generates; in its middle many others come at once: its times between tokens before and after, and theirs."""
    steady, before, during, theirs = _submit(lm, length, 2 * load.new, rng), Times(), Times(), Times()
    _follow(lm, [steady], [before], load.new)
    others = [_submit(lm, length, load.new, rng) for _ in range(load.burst)]
    _follow(lm, [steady, *others], [during, *[theirs] * load.burst])
    return {"requests": load.burst, "ttft": summarise(theirs.first), "itl_before": summarise(before.between),
            "itl_during": summarise(during.between)}


def bandwidth(threads: int) -> float:
    """Bytes a second that so many threads read from memory, the best of a few probes."""
    arrays = [(np.ones(_PROBE, np.float32), np.ones(_PROBE, np.float32)) for _ in range(threads)]
    best = 0.0
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(_PROBES):
            start = time.perf_counter()
            list(pool.map(lambda pair: float(np.dot(*pair)), arrays))
            best = max(best, 8 * _PROBE * threads / (time.perf_counter() - start))
    return best


def decode_bytes(engine: Path) -> int:
    """Bytes of weights that a step of one token reads: all but tables, of which it reads a row."""
    from infc.compiler.artifact.layout import DTYPE_SIZES, SPACES
    from infc.compiler.artifact.reader import Artifact

    program = Artifact.open(engine).programs()[0]  # profiles go from small to large
    found = {o.offset: math.prod(o.dims) * DTYPE_SIZES[o.dtype] for step in program.steps
             if not any(name in step.kernel for name in ("gather", "embed")) for o in step.inputs if o.space == SPACES["WEIGHTS"]}
    return sum(found.values())


def _figures(s: Summary | None) -> tuple[str, ...]:
    if s is None:
        return ("", "", "", "")
    low, high = s.median_interval
    return (milliseconds(s.median), f"{milliseconds(low)} to {milliseconds(high)}", milliseconds(s.p95), milliseconds(s.p99))


def _show(report: dict[str, Any]) -> None:
    rows = []
    for length, row in report["prompts"].items():
        rows += [(f"{length} tokens: first token", *_figures(row["ttft"]), ""),
                 ("  between tokens", *_figures(row["itl"]),
                  f"{row['share_of_bandwidth']:.0%} of reading" if "share_of_bandwidth" in row else "")]
    table(("prompt", ">median", "?>95 %", ">P95", ">P99", ">"), rows)
    for length, row in report["prompts"].items():
        stages = ", ".join(f"{n.removesuffix('_seconds')} {milliseconds(s)}" for n, s in row["stages"].items())
        text = "".join(f", {n} {milliseconds(s)}" for n, s in (row["text"] or {}).items())
        say(f"{length} tokens of prompt: {row['tokens_per_second']:.1f} new tokens a second; {stages}{text}")
    if "concurrency" in report:
        table((">requests at once", ">tokens/s", ">first token P50", ">P99", ">between P50", ">P99"),
              [(n, f"{r['tokens_per_second']:.1f}", milliseconds(r["ttft"].median), milliseconds(r["ttft"].p99),
                milliseconds(r["itl"].median), milliseconds(r["itl"].p99)) for n, r in report["concurrency"].items()])
    if "among" in report:
        a = report["among"]
        say(f"a prompt of {a['prompt']} tokens among {a['requests']} requests that generate: their time between tokens P50 "
            f"{milliseconds(a['itl'].median)}, P99 {milliseconds(a['itl'].p99)}")
    if "burst" in report:
        b = report["burst"]
        say(f"{b['requests']} requests at once beside one that generates: their first tokens P50 {milliseconds(b['ttft'].median)}, "
            f"P99 {milliseconds(b['ttft'].p99)}; its time between tokens P50 {milliseconds(b['itl_before'].median)} before, "
            f"{milliseconds(b['itl_during'].median)} then, P99 {milliseconds(b['itl_during'].p99)}")
    memory = f"artifact {size(report['artifact'])}, memory {size(report['memory'])}, cache {size(report['cache'])}"
    if "read_bytes_per_second" in report:
        memory += (f" of it; {size(report['weights_read_per_token'])} of weights a token, memory reads "
                   f"{report['read_bytes_per_second'] / 1e9:.1f} GB/s")
    say(f"{report['place']}; {memory}")
