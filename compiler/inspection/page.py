"""The facts about an artifact as one HTML page that needs nothing else: no script, no address, all text escaped."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import Any

from infc.compiler.inspection import svg

_STYLE = """body{font:14px/1.45 system-ui,sans-serif;max-width:1100px;margin:2em auto;padding:0 1em;color:#1b1f24}
h1{font-size:1.5em}h2{font-size:1.15em;margin-top:2em;border-bottom:1px solid #d0d7de}
table{border-collapse:collapse;margin:.6em 0;font-size:13px}td,th{padding:2px 10px 2px 0;text-align:left;vertical-align:top}
th{border-bottom:1px solid #d0d7de}td.n,th.n{text-align:right}tr:nth-child(even) td{background:#f6f8fa}
.other td{background:#fff4e0!important}svg{max-width:100%;height:auto;font:11px system-ui,sans-serif}
svg rect,svg circle{fill:#2f6fb5}svg circle{fill-opacity:.7}.grid{stroke:#e3e7eb;fill:none}
.roof{stroke:#b5472f;stroke-width:2;fill:none}
details{margin:.3em 0}.note{color:#57606a}"""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_MOST_BARS = 40
Cells = Sequence[Any]


def render(facts: Mapping[str, Any]) -> str:
    """``facts`` as ``facts.collect`` gives them."""
    title = f"infc report: {facts['engine']}"
    body = "".join(part for section in (_summary, _accuracy, _precision, _time, _layers, _sparsity, _size, _passes)
                   for part in section(facts))
    return (f'<!doctype html><html lang="en"><head><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" '
            f'content="{_POLICY}"><title>{escape(title)}</title><style>{_STYLE}</style></head><body>'
            f"<h1>{escape(title)}</h1>{body}</body></html>\n")


def _summary(facts: Mapping[str, Any]) -> Iterator[str]:
    source, options = facts["source"] or {}, facts["options"] or {}
    wanted = options.get("precision") or {}
    yield _table(("", ""), [
        ("model", f"{source.get('name')} {source.get('architecture') or ''}"), ("sha256", source.get("sha256")),
        ("task", facts["task"]), ("precision asked for", ", ".join(f"{t}: {p}" for t, p in wanted.items())),
        ("profiles", "; ".join(facts["profiles"] or []) or "one, all sizes are constant"),
        ("instruction sets", ", ".join(facts["isas"] or [])),
        ("built by", ", ".join(f"{n} {v}" for n, v in (facts["versions"] or {}).items())),
        *(("note", note) for note in facts["notes"])])


def _accuracy(facts: Mapping[str, Any]) -> Iterator[str]:
    rows, slices = [], []
    for target, about in facts["quantisation"].items():
        for where, found in about.get("accuracy", {}).items():
            by = "the engine, when it was built" if where == "engine" else "its graph, in ONNX Runtime"
            rows.append((target, by, found["metric"], found["mean"], found["worst"], found["samples"]))
            slices += [(target, where, name, part["mean"], part["samples"], "worst" if name == found.get("worst_slice") else "")
                       for name, part in found.get("slices", {}).items()]
    yield "<h2>Accuracy on held-out data</h2>"
    if rows:
        data = {about.get("evaluation", {}).get("name", "") for about in facts["quantisation"].values()}
        yield _note(f"Measured by the build against the float model, on {', '.join(sorted(map(str, data)))}.")
        yield _table(("target", "what ran", "metric", ">mean", ">worst", ">samples"), rows)
    else:
        yield _note("Nothing is quantised, or there was no data to judge by; golden values hold the engine to the model.")
    if slices:
        yield _table(("target", "", "slice", ">mean", ">samples", ""), slices)


def _precision(facts: Mapping[str, Any]) -> Iterator[str]:
    for target, about in facts["quantisation"].items():
        yield f"<h2>Precision: {escape(str(target))}</h2>"
        calibration = about.get("calibration", {})
        data = calibration.get("data", {})
        yield _table(("", ""), [("asked for", about.get("requested")), ("budget", about.get("budget")),
                                ("calibrated on", f"{data.get('samples')} samples of {data.get('name')}, "
                                 f"{calibration.get('method')}" if data else "nothing"),
                                ("key", calibration.get("key")),
                                ("back in higher precision", ", ".join(about.get("restored", [])) or "none")])
        if about.get("sensitivity"):
            yield _table(("layer", ">loss, quantised alone"), about["sensitivity"])


def _time(facts: Mapping[str, Any]) -> Iterator[str]:
    yield "<h2>Time</h2>"
    found = facts["measured"]
    if not found:
        yield _note(f"Not measured: {facts['not_measured'] or 'not asked for'}.")
        return
    rows = sorted((r for r in facts["layers"] if r["seconds"]), key=lambda r: -r["seconds"])
    whole = found["seconds"] or 1.0
    yield _note(f"Measured on the machine that wrote this page, while timing each step: {found['program']}, {found['threads']} "
                f"threads, the median of {found['rounds']} rounds, {found['seconds'] * 1e3:.4g} ms a run in all steps.")
    yield svg.bars([(r["layer"], r["seconds"], f"{r['seconds'] * 1e6:.4g} µs, {100 * r['seconds'] / whole:.1f} %")
                    for r in rows[:_MOST_BARS]], "time by layer")
    if len(rows) > _MOST_BARS:
        rest = sum(r["seconds"] for r in rows[_MOST_BARS:])
        yield _note(f"{len(rows) - _MOST_BARS} more layers take {rest * 1e6:.4g} µs together.")
    yield "<h2>Roofline</h2>"
    yield _note(f"Limits that a probe reached here and now: {found['peak'] / 1e9:.4g} Gop/s in f32 (numpy's product of matrices) "
                f"and {found['bandwidth'] / 1e9:.4g} GB/s read from memory. A layer in fewer bits may lie above the first; one "
                "whose operands stay in a cache above the second. Operations are of the largest sizes, operands count once.")
    yield svg.roofline([svg.Point(r["operations"] / r["bytes"], r["operations"] / r["seconds"], r["layer"])
                        for r in rows if r["bytes"] and r["operations"]], found["peak"], found["bandwidth"], "roofline")


def _layers(facts: Mapping[str, Any]) -> Iterator[str]:
    yield "<h2>Layers</h2>"
    programs = dict.fromkeys(row["program"] for row in facts["layers"])
    for number, program in enumerate(programs):
        rows = [r for r in facts["layers"] if r["program"] == program]
        head = f"{program}, {rows[0]['target']}: {len(rows)} layers"
        yield f"<details{'' if number else ' open'}><summary>{escape(head)}</summary>"
        yield _table(("layer", "operator", "kernel", "asked for", "actual", "why", "sparsity", ">error", ">time"),
                     [(r["layer"], " ".join(r["operators"]), " ".join(dict.fromkeys(r["kernels"])), r["requested"], r["actual"],
                       r["why"], r["sparsity"], "" if r["error"] is None else f"{r['error']:.3g}",
                       "" if r["seconds"] is None else f"{r['seconds'] * 1e6:.4g} µs") for r in rows],
                     [bool(r["why"]) for r in rows])
        yield "</details>"


def _sparsity(facts: Mapping[str, Any]) -> Iterator[str]:
    for target, found in facts["sparsity"].items():
        yield f"<h2>2:4 sparsity: {escape(str(target))}</h2>"
        yield from _records(found if isinstance(found, list) else found.get("layers", []))
    for engine in facts["engines"]:
        if engine.get("sparsity"):
            yield f"<h2>2:4 sparsity: {escape(str(engine.get('flavour')))}</h2>"
            yield from _records(engine["sparsity"])


def _records(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    columns = list(dict.fromkeys(key for row in rows for key in row))
    yield _table(columns, [[row.get(c, "") for c in columns] for row in rows])


def _size(facts: Mapping[str, Any]) -> Iterator[str]:
    yield "<h2>Size and memory</h2>"
    yield _note(f"The file has {_bytes(facts['size'])}.")
    yield _table(("section", "name", ">size"), [(s["kind"], s["name"], _bytes(s["size"])) for s in facts["sections"]])
    rows: list[Cells] = []
    for kind, value in facts["memory"].items():
        if isinstance(value, dict):
            rows += [(kind, name, _bytes(count)) for name, count in value.items()]
        elif isinstance(value, list):
            rows += [(kind, item["layer"], _bytes(item["bytes"])) for item in value]
        else:
            rows.append((kind, "", _bytes(value)))
    yield _table(("memory", "", ">size"), rows)


def _passes(facts: Mapping[str, Any]) -> Iterator[str]:
    yield "<h2>Passes</h2>"
    rows = []
    for p in facts["passes"]:
        missed = [f"{m.get('node', '')}: {m.get('reason', '')}" for m in p.get("near_misses", [])]
        rows.append((p.get("target", ""), p["name"], len(p.get("matches", [])), len(missed), "; ".join(missed[:3])))
    yield _table(("target", "pass", ">matched", ">nearly", "the first of those"), rows)


def _bytes(count: float) -> str:
    return f"{count / 1e6:.3f} MB" if count >= 1e5 else f"{count} bytes"


def _note(text: str) -> str:
    return f'<p class="note">{escape(text)}</p>'


def _table(columns: Sequence[str], rows: Iterable[Cells], marked: Sequence[bool] = ()) -> str:
    """A column whose name starts with '>' is set to the right."""
    right = [c.startswith(">") for c in columns]
    head = "".join(f'<th{" class=n" if r else ""}>{escape(c.removeprefix(">"))}</th>' for c, r in zip(columns, right, strict=True))
    lines = []
    for number, row in enumerate(rows):
        cells = "".join(f'<td{" class=n" if r else ""}>{escape("" if cell is None else str(cell))}</td>'
                        for cell, r in zip(row, right, strict=True))
        lines.append(f'<tr{" class=other" if number < len(marked) and marked[number] else ""}>{cells}</tr>')
    return f"<table>{f'<tr>{head}</tr>' if any(columns) else ''}{''.join(lines)}</table>"
