"""All that is known of an artifact, as one JSON object: what its builder wrote, and what was measured here."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from infc.compiler.artifact.reader import Artifact
from infc.compiler.errors import ArtifactError
from infc.compiler.inspection.work import Work


@dataclass(frozen=True)
class Measured:
    """On this machine: seconds a run of each step of ``program`` ("profile/isa"), medians of ``rounds``; its work; and the
    limits that a probe reached, in operations and in bytes a second."""

    program: str
    threads: int
    rounds: int
    steps: Sequence[Mapping[str, Any]]
    work: Sequence[Work]
    peak: float
    bandwidth: float


@contextmanager
def readable(name: str) -> Iterator[None]:
    """META and REPORT are JSON of anybody's: where they hold something else than a builder writes, E0611 is raised."""
    try:
        yield
    except (KeyError, TypeError, AttributeError, ValueError, IndexError, RecursionError) as error:
        raise ArtifactError("E0611", f"META or REPORT does not hold what a builder writes: {type(error).__name__} {error}"[:300],
                            where=name, hint="build the artifact again") from error


def report_of(artifact: Artifact) -> dict[str, Any]:
    """The REPORT section; {} if there is none."""
    section = artifact.section("REPORT")
    found: dict[str, Any] = json.loads(bytes(section)) if section is not None else {}
    return found


def collect(artifact: Artifact, name: str, measured: Measured | None, why: str = "") -> dict[str, Any]:
    """``why``: the reason that nothing was measured. Raises ArtifactError E0611."""
    with readable(name):
        meta, report = artifact.meta, report_of(artifact)
        return {
            "engine": name, "size": len(artifact.data),
            **{key: meta.get(key) for key in ("source", "task", "options", "profiles", "isas", "versions", "graphs")},
            "sections": [{"kind": s.kind, "name": s.name, "size": s.size} for s in artifact.sections],
            "layers": list(_layers(meta, measured)), "engines": meta.get("engines", []),
            "quantisation": {target: {k: v for k, v in about.items() if k != "layers"}
                             for target, about in meta.get("quantisation", {}).items()},
            "sparsity": meta.get("sparsity", {}), "memory": report.get("memory", {}), "notes": report.get("notes", []),
            "passes": report.get("passes", []), "measured": _measured(measured) if measured else None, "not_measured": why}


def _layers(meta: Mapping[str, Any], measured: Measured | None) -> Iterator[dict[str, Any]]:
    """A row for each layer of each program: steps of one name are one layer. Where products are quantised, nothing is asked of
    others."""
    quantised = {target: {layer["node"]: layer for layer in about["layers"]}
                 for target, about in meta.get("quantisation", {}).items()}
    sparse = {w["name"]: w for engine in meta.get("engines", []) for w in engine.get("sparsity", []) if "name" in w}
    devices = meta.get("options", {}).get("precision", {})
    for program, steps in meta.get("layers", {}).items():
        target = _target(program, meta)
        names: dict[str, list[Any]] = defaultdict(list)
        for step in steps:
            names[step["name"]].append(step)
        timed = _timed(measured) if measured and measured.program == program else {}
        for name, found in names.items():
            about = quantised.get(target, {}).get(name, {})
            yield {"target": target, "program": program, "layer": name,
                   "operators": list(dict.fromkeys(s["op"] for s in found)), "kernels": [s["kernel"] for s in found],
                   "requested": about.get("requested", "" if target in quantised else devices.get(target, "f32")),
                   "actual": about.get("actual", found[-1]["precision"]), "why": about.get("why", ""),
                   "method": about.get("method", ""), "error": about.get("error"),
                   "sparsity": about.get("details", {}).get("sparsity") or sparse.get(name, {}).get("state", ""),
                   **timed.get(name, {"seconds": None, "operations": None, "bytes": None})}


def _target(program: str, meta: Mapping[str, Any]) -> str:
    """Whose program it is: those of the CPU end with an instruction set."""
    if program.rpartition("/")[2] in (meta.get("isas") or ()):
        return "cpu"
    others = [t for t in meta.get("options", {}).get("targets", []) if t != "cpu"]
    return next((t for t in others if t in program), others[0] if others else "")


def _timed(measured: Measured) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = defaultdict(lambda: {"seconds": 0.0, "operations": 0, "bytes": 0})
    for step, work in zip(measured.steps, measured.work, strict=True):
        row = found[step["layer"]]
        row["seconds"] += step["seconds"]
        row["operations"] += work.operations
        row["bytes"] += work.bytes
    return dict(found)


def _measured(measured: Measured) -> dict[str, Any]:
    return {"program": measured.program, "threads": measured.threads, "rounds": measured.rounds,
            "seconds": sum(s["seconds"] for s in measured.steps), "peak": measured.peak, "bandwidth": measured.bandwidth}
