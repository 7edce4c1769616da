"""Two artifacts of one model, old and new: what got worse, by thresholds; and that as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from infc.compiler.artifact.layout import ISAS
from infc.compiler.calibrate.accuracy import LESS_IS_BETTER

_RESAMPLES = 2000


@dataclass(frozen=True)
class Thresholds:
    """What may get worse: ``accuracy`` in units of its metric, ``size`` and ``latency`` as parts."""

    accuracy: float = 0.0005
    size: float = 0.01
    latency: float = 0.03


@dataclass(frozen=True)
class Side:
    """One artifact: META, bytes of the file and of its largest arena, the cosine of its outputs with golden ones (None where they
    were not replayed), and seconds of runs that alternate with the other's."""

    meta: Mapping[str, Any]
    size: int
    memory: int
    golden: float | None
    times: Sequence[float]


@dataclass(frozen=True)
class Finding:
    """``kind``: accuracy, precision, kernel, size or latency. ``old`` and ``new`` are for people. ``worse``: by more than the
    threshold."""

    kind: str
    what: str
    old: str
    new: str
    worse: bool


def compare(old: Side, new: Side, accepted: Thresholds, rounds: int) -> list[Finding]:
    """All findings, those that did not change left out but for accuracy, size and latency."""
    return [*_accuracy(old, new, accepted.accuracy), *_precision(old.meta, new.meta), *_kernels(old.meta, new.meta),
            *_sizes(old, new, accepted.size), *_latency(old, new, accepted.latency, rounds)]


def ratio_interval(old: Sequence[float], new: Sequence[float], rounds: int) -> tuple[float, float, float]:
    """How many times longer ``new`` takes, and the 95 % bootstrap interval of that, from pairs of bursts that followed each other:
    the machine's drift meets both of a pair."""
    pairs = [float(np.median(b) / np.median(a)) for a, b in zip(*(np.array_split(np.asarray(t), rounds) for t in (old, new)),
                                                                strict=True) if len(a) and len(b)]
    draws = np.random.default_rng(0).choice(pairs, size=(_RESAMPLES, len(pairs)))
    low, high = np.percentile(np.median(draws, axis=1), (2.5, 97.5))
    return float(np.median(pairs)), float(low), float(high)


def _accuracy(old: Side, new: Side, accepted: float) -> Iterator[Finding]:
    """Of held-out data, where both have judged by the same metric; and of golden values, which are run now."""
    for target, about in _quantised(old.meta).items():
        for where, before in about.get("accuracy", {}).items():
            after = _quantised(new.meta).get(target, {}).get("accuracy", {}).get(where)
            if not after or after["metric"] != before["metric"] or None in (after["mean"], before["mean"]):
                continue
            sign = -1 if before["metric"] in LESS_IS_BETTER else 1
            yield from (_figure("accuracy", f"{target} {before['metric']}, {where}{part}", a, b, sign * (a - b) > accepted)
                        for part, a, b in _figures(before, after))
    if old.golden is not None and new.golden is not None:
        yield _figure("accuracy", "least cosine with golden values", old.golden, new.golden,
                      not new.golden >= old.golden - accepted)


def _figures(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[tuple[str, float, float]]:
    yield "", before["mean"], after["mean"]
    for name, part in before.get("slices", {}).items():
        found = after.get("slices", {}).get(name)
        if found and None not in (part["mean"], found["mean"]):
            yield f", slice {name}", part["mean"], found["mean"]


def _figure(kind: str, what: str, old: float, new: float, worse: bool) -> Finding:
    return Finding(kind, what, f"{old:.6g}", f"{new:.6g}", worse)


def _quantised(meta: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = meta.get("quantisation", {})
    return found


def _precision(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Finding]:
    """Worse is a layer that had what was asked for and has it no longer; another wish is only told."""
    for target, about in _quantised(new).items():
        before = {layer["node"]: layer for layer in _quantised(old).get(target, {}).get("layers", [])}
        for layer in about["layers"]:
            was = before.get(layer["node"])
            if was and was["actual"] != layer["actual"]:
                lost = was["requested"] == layer["requested"] and not _kept(layer) and (_kept(was) or layer["actual"] == "f32")
                why = f" ({layer['why']})" if layer.get("why") else ""
                yield Finding("precision", f"{target} {layer['node']}", was["actual"], f"{layer['actual']}{why}", lost)
    for target, wanted in old.get("options", {}).get("precision", {}).items():
        now = new.get("options", {}).get("precision", {}).get(target)
        if now != wanted:
            yield Finding("precision", f"{target}, asked for", wanted, str(now), False)


def _kept(layer: Mapping[str, Any]) -> bool:
    wanted: bool = layer["actual"] == {"auto": "int8"}.get(layer["requested"], layer["requested"])
    return wanted


def _kernels(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Finding]:
    """Steps with other kernels in the programs of the same name. Worse: a lower instruction set, or a program that is gone."""
    for program, steps in old.get("layers", {}).items():
        now = new.get("layers", {}).get(program)
        if now is None:
            yield Finding("kernel", f"program {program}", f"{len(steps)} steps", "none", True)
            continue
        before, after = _by_layer(steps), _by_layer(now)
        for layer in (name for name in before if name in after):
            a, b = before[layer], after[layer]
            if a != b:
                yield Finding("kernel", f"{program} {layer}", " ".join(a), " ".join(b), _level(b) < _level(a))


def _by_layer(steps: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for step in steps:
        found.setdefault(step["name"], []).append(step["kernel"])
    return found


def _level(kernels: Sequence[str]) -> int:
    """The highest instruction set among them: kernels are named infc_…__ISA."""
    suffixes = {"scalar": ISAS["scalar"], "avx2": ISAS["x86-64-v3"], "avx512": ISAS["x86-64-v4"]}
    return max((level for kernel in kernels for name, level in suffixes.items() if f"__{name}" in kernel), default=0)


def _sizes(old: Side, new: Side, accepted: float) -> Iterator[Finding]:
    for what, before, after in (("the file", old.size, new.size), ("the largest arena", old.memory, new.memory)):
        yield Finding("size", what, f"{before / 1e6:.2f} MB", f"{after / 1e6:.2f} MB", after > before * (1 + accepted))


def _latency(old: Side, new: Side, accepted: float, rounds: int) -> Iterator[Finding]:
    """Worse if the whole interval is."""
    if old.times and new.times:
        ratio, low, high = ratio_interval(old.times, new.times, rounds)
        yield Finding("latency", f"median of {len(old.times)} runs", f"{np.median(old.times) * 1e3:.4g} ms",
                      f"{np.median(new.times) * 1e3:.4g} ms, × {ratio:.3f} ({low:.3f}-{high:.3f})", low > 1 + accepted)


def markdown(findings: Sequence[Finding], old: str, new: str) -> str:
    """For a pull request: what got worse first."""
    worse = sum(f.worse for f in findings)
    lines = [f"### {_escaped(old)} → {_escaped(new)}: {f'{worse} worse' if worse else 'nothing got worse'}", "",
             "| | | old | new | |", "|---|---|---|---|---|"]
    lines += ["| " + " | ".join((f.kind, *map(_escaped, (f.what, f.old, f.new)), "**worse**" if f.worse else "")) + " |"
              for f in sorted(findings, key=lambda f: not f.worse)]
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    """Names come from files of anybody."""
    plain = "".join(c if c.isprintable() else " " for c in text)
    marks = {"<": "&lt;", ">": "&gt;", "&": "&amp;", "@": "&#64;", **{c: f"\\{c}" for c in "\\`*_[]|#!"}}
    return "".join(marks.get(c, c) for c in plain)
