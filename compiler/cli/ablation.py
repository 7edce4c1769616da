"""``infc bench --ablate``: the model built again without each pass and technique, measured in turns with the whole."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from infc.compiler.artifact.reader import Artifact
from infc.compiler.cli.console import Progress, milliseconds, say, table
from infc.compiler.cli.measure import alternate, ratio_interval, summarise
from infc.compiler.errors import CheckError, InfcError

if TYPE_CHECKING:
    from infc.compiler.cli.bench import Setting

_ROUNDS = 6
_WHOLE = "all"


def measure(engine: Path, model: str, setting: Setting, runs: int) -> list[dict[str, Any]]:
    """One row for each pass that matched something and each technique of the target: how much longer a run takes without it.

    A variant that cannot be built or run, because a later step relies on the pass, is a row with its reason as ``error``.
    """
    meta = Artifact.open(engine).meta
    built: dict[str, Path] = {}
    rows: list[dict[str, Any]] = []
    with Progress() as stage:
        stage("build whole")
        built[_WHOLE], report = _build(model, meta, setting, _WHOLE, [])
        switches = _switches(meta, report, setting)
        for number, name in enumerate(switches, 1):
            stage(f"build variant {number} of {len(switches)}: without {name}")
            try:
                built[name], _ = _build(model, meta, setting, name, [name])
            except Exception as e:  # whatever breaks one variant, the others are still worth their time
                rows.append({"without": name, "error": _reason(e)})
        workers = [setting.worker(label, "infc", engine=str(path), device=setting.device) for label, path in built.items()]
        try:
            for worker in workers:
                if not worker.head["ok"]:
                    if worker.label == _WHOLE:
                        raise CheckError("E0510", f"the engine does not run: {worker.head['error']}", hint="infc verify ENGINE")
                    rows.append({"without": worker.label, "error": worker.head["error"]})
            stage("measure")
            times = alternate([w for w in workers if w.head["ok"]], runs, _ROUNDS, setting.seconds)
        finally:
            for worker in workers:
                worker.close()
    whole = times.pop(_WHOLE)
    measured: list[dict[str, Any]] = [{"without": name, "latency": summarise(t), "ratio": ratio_interval(whole, t)}
                                      for name, t in times.items()]
    measured.sort(key=lambda row: -row["ratio"][0])
    return [{"without": None, "latency": summarise(whole)}, *measured, *rows]


def _reason(error: Exception) -> str:
    return error.message if isinstance(error, InfcError) else f"{type(error).__name__}: {error}"


def _switches(meta: dict[str, Any], report: dict[str, Any], setting: Setting) -> list[str]:
    from infc.compiler.target import find

    matched = [p["name"] for p in report["passes"] if p["matches"]]
    return list(dict.fromkeys([*matched, *(t for target in _targets(meta, setting) for t in find(target).techniques)]))


def _targets(meta: dict[str, Any], setting: Setting) -> list[str]:
    """Those that build for the device that is measured: the others' parts of a variant would never run."""
    from infc.compiler.target import find

    device = "cpu" if setting.device == "cpu" else "gpu"
    return [name for name in meta["options"]["targets"] if find(name).device == device]


def _build(model: str, meta: dict[str, Any], setting: Setting, name: str, disable: list[str]) -> tuple[Path, dict[str, Any]]:
    from infc.compiler import driver

    path = setting.folder / f"{name}.infc"
    options, targets = meta["options"], _targets(meta, setting)
    if setting.device == "cpu":
        device = {"isa": meta["isas"], "threads": setting.threads}
    else:
        device = {"sms": options["sms"], "engine_layout": options["engine_layout"], "sparsity": options["sparsity"]}
    result = driver.build(model, path, profiles=meta["profiles"], targets=targets, tune=options["tune"],
                          precision={t: options["precision"][t] for t in targets}, disable=[*options["disable"], *disable],
                          trust_remote_code=options["trust_remote_code"], set=options.get("set", {}), **device)
    return path, result.report


def show(rows: list[dict[str, Any]]) -> None:
    lines = []
    for row in rows:
        if "error" in row:
            lines.append((f"without {row['without']}", "failed", "", ""))
            say(f"without {row['without']}: failed: {row['error']}")
            continue
        ratio = row.get("ratio")
        lines.append((f"without {row['without']}" if row["without"] else "whole", milliseconds(row["latency"].median),
                      f"{ratio[0]:.3f}" if ratio else "", f"{ratio[1]:.3f}-{ratio[2]:.3f}" if ratio else ""))
    table(("build", ">median", ">times the whole", ">95 %"), lines)
