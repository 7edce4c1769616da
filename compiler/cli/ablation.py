"""``infc bench --ablate``: the model built again without each pass and technique, measured in turns with the whole."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from infc.compiler.artifact.reader import Artifact
from infc.compiler.cli.console import Progress, milliseconds, say, table
from infc.compiler.cli.measure import alternate, ratio_interval, summarise
from infc.compiler.errors import InfcError

if TYPE_CHECKING:
    from infc.compiler.cli.bench import Setting

_ROUNDS = 6
_WHOLE = "all"


def measure(engine: Path, model: str, setting: Setting, runs: int) -> list[dict[str, Any]]:
    """One row for each pass that matched something and each technique of the target: how much longer a run takes without it.

    A build that fails without a pass, because a later step relies on it, is reported with its reason.
    """
    meta = Artifact.open(engine).meta
    built: dict[str, Path] = {}
    rows: list[dict[str, Any]] = []
    with Progress() as stage:
        stage("build whole")
        built[_WHOLE], report = _build(model, meta, setting, _WHOLE, [])
        for name in _switches(meta, report):
            stage(f"build without {name}")
            try:
                built[name], _ = _build(model, meta, setting, name, [name])
            except InfcError as e:
                rows.append({"without": name, "error": str(e.message)})
        workers = [setting.worker(label, "infc", engine=str(path)) for label, path in built.items()]
        try:
            stage("measure")
            times = alternate([w for w in workers if w.head["ok"]], runs, _ROUNDS)
        finally:
            for worker in workers:
                worker.close()
    whole = times.pop(_WHOLE)
    measured: list[dict[str, Any]] = [{"without": name, "latency": summarise(t), "ratio": ratio_interval(whole, t)}
                                      for name, t in times.items()]
    measured.sort(key=lambda row: -row["ratio"][0])
    return [{"without": None, "latency": summarise(whole)}, *measured, *rows]


def _switches(meta: dict[str, Any], report: dict[str, Any]) -> list[str]:
    from infc.compiler.target import find

    matched = [p["name"] for p in report["passes"] if p["matches"]]
    return list(dict.fromkeys([*matched, *getattr(find(meta["options"]["target"]), "techniques", ())]))


def _build(model: str, meta: dict[str, Any], setting: Setting, name: str, disable: list[str]) -> tuple[Path, dict[str, Any]]:
    from infc.compiler import driver

    path = setting.folder / f"{name}.infc"
    options = meta["options"]
    profiles = [p if isinstance(p, str) else ",".join(f"{n}={s}" for n, s in p.items()) for p in meta["profiles"]]
    result = driver.build(model, path, profiles=profiles, isa=meta["isas"], target=options["target"], threads=setting.threads,
                          tune=options["tune"], disable=[*options["disable"], *disable],
                          trust_remote_code=options["trust_remote_code"])
    return path, result.report


def show(rows: list[dict[str, Any]]) -> None:
    lines = []
    for row in rows:
        if "error" in row:
            say(f"without {row['without']}: {row['error']}")
            continue
        ratio = row.get("ratio")
        lines.append((f"without {row['without']}" if row["without"] else "whole", milliseconds(row["latency"].median),
                      f"{ratio[0]:.3f}" if ratio else "", f"{ratio[1]:.3f}-{ratio[2]:.3f}" if ratio else ""))
    table(("build", ">median", ">times the whole", "95 %"), lines)
