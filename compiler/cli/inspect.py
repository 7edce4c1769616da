"""``infc inspect``: what an artifact holds. The file is mapped and its weights are not read."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from infc.compiler.cli.console import common_options, emit, size, table
from infc.compiler.report import graph_lines, program_text, set_text, sparsity

_CONSTANT = "one, all sizes are constant"

if TYPE_CHECKING:
    from infc.compiler.artifact.io import IoTensor
    from infc.compiler.artifact.reader import Artifact


@click.command()
@click.argument("engine", type=click.Path(path_type=Path))
@click.option("--layers/--no-layers", default=True, help="Show the layers of each program.")
@common_options
def command(engine: Path, layers: bool, as_json: bool) -> None:
    """Show ENGINE's source, interface, profiles, instruction sets, sections, memory and layers as they were built."""
    from infc.compiler.artifact.reader import Artifact

    found = describe(Artifact.open(engine))
    if as_json:
        emit({"engine": str(engine), **found})
        return
    _show(engine, found)
    if layers:
        for program, steps in found["layers"].items():
            table((">", "layer", "?operator", "kernel", "?precision", "computes"), _layer_rows(steps), f"\nprogram {program}")


def describe(artifact: Artifact) -> dict[str, Any]:
    """All that META, IO, REPORT, the programs' headers and the section table tell."""
    section = artifact.section("REPORT")
    report = json.loads(bytes(section)) if section is not None else {}
    io, meta = artifact.io, artifact.meta
    return {
        **{key: value for key, value in meta.items() if key != "layers"},
        "inputs": [_tensor(t) for t in io.inputs],
        "outputs": [_tensor(t) for t in io.outputs],
        "profiles": list(io.profiles),
        "dimensions": {s.name: "pads" if s.policy else "exact" for s in io.symbols},
        "sections": [{"kind": s.kind, "name": s.name, "ordinal": s.ordinal, "offset": s.offset, "size": s.size, "crc32": s.crc32}
                     for s in artifact.sections],
        "size": len(artifact.data),
        "engines": list(_engines(artifact)),
        "memory": report.get("memory", {}),
        "notes": report.get("notes", []),
        "passes": report.get("passes", []),
        "layers": _layers(artifact),
    }


def _layers(artifact: Artifact) -> dict[str, Any]:
    """Each program's, with the precision that a quantised layer has on the CPU; its result may have another type."""
    from infc.compiler.cli.diff import precisions

    actual, isas = precisions(artifact), artifact.meta.get("isas", [])
    return {program: [{**s, "precision": actual.get(s["name"], s["precision"])} for s in steps]
            if program.rpartition("/")[2] in isas else steps for program, steps in artifact.meta.get("layers", {}).items()}


def _engines(artifact: Artifact) -> Iterator[dict[str, Any]]:
    """What each TENSORRT section says of itself, and what its builder told of it."""
    told = artifact.meta.get("engines", [])
    for number, engine in enumerate(artifact.engines()):
        yield {**(told[number] if number < len(told) else {}), "flavour": engine.flavour, "sms": list(engine.sms),
               "version": ".".join(map(str, engine.version)), "cuda": f"{engine.cuda // 1000}.{engine.cuda % 1000 // 10}",
               "profiles": [",".join(f"{n}={s}" for n, s in artifact.io.profiles[p].items()) for p in engine.profiles],
               "size": len(engine.plan), "command": engine.command}


def _tensor(tensor: IoTensor) -> dict[str, Any]:
    return {"name": tensor.name, "dtype": tensor.dtype, "dims": list(tensor.dims), "optional": tensor.optional,
            "fill": tensor.fill if tensor.optional else None, "range": tensor.range}


def _show(engine: Path, found: dict[str, Any]) -> None:
    source = found.get("source", {})
    facts = [("file", f"{engine}, {size(found['size'])}"),
             ("source", f"{source.get('name')} {source.get('architecture') or ''}".strip()),
             ("sha256", source.get("sha256")),
             ("task", found.get("task")),
             *([("set", set_text(found["options"]))] if found.get("options", {}).get("set") else []),
             ("targets", ", ".join(found.get("options", {}).get("targets", []))),
             ("instruction sets", ", ".join(found.get("isas", [])) or "none: it has no programs for a CPU"),
             ("profiles", "; ".join(",".join(f"{n}={s}" for n, s in p.items()) for p in found["profiles"]) or _CONSTANT),
             ("dimensions", ", ".join(f"{n} {policy}" for n, policy in found["dimensions"].items()) or "all constant"),
             ("built by", ", ".join(f"{n} {v}" for n, v in found.get("versions", {}).items()))]
    table(("", ""), facts + [("note", note) for note in found["notes"]])
    table(("", "name", "type", "shape", "left out", "range"), _tensor_rows(found), "\ninterface")
    table(("section", "name", ">offset", ">size"),
          [(s["kind"], s["name"], s["offset"], size(s["size"])) for s in found["sections"]], "\nsections")
    for built in found["engines"]:
        table(("", ""), _engine_rows(built), f"\nengine {built['flavour']}, SM {', '.join(map(str, built['sms']))}")
    for graph in found.get("graphs", []):
        click.echo("\n" + "\n".join(graph_lines(graph)))
    if found["memory"]:
        table(("kind", ">size"), list(_memory_rows(found["memory"])), "\nmemory")


def _engine_rows(engine: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield "built by", f"{engine['flavour']} {engine['version']}; drivers of CUDA {engine['cuda']} and newer run it"
    yield "profiles", "; ".join(engine["profiles"]) or _CONSTANT
    yield "size", size(engine["size"])
    if "precision" in engine:  # the rest is what META tells
        yield "precision", engine["precision"]
        yield from ((name, program_text(facts)) for name, facts in engine["programs"].items())
        yield "2:4 sparsity", sparsity(engine) or "not asked for"
    yield "build again", engine["command"]


def _tensor_rows(found: dict[str, Any]) -> Iterator[tuple[Any, ...]]:
    for side in ("inputs", "outputs"):
        for t in found[side]:
            shape = "×".join(map(str, t["dims"]))
            span = f"{t['range'][0]} to {t['range'][1]}" if t["range"] else ""
            yield side[:-1], t["name"], t["dtype"], shape, f"reads as {t['fill']}" if t["optional"] else "", span


def _layer_rows(steps: Sequence[dict[str, Any]]) -> Iterator[tuple[Any, ...]]:
    for number, step in enumerate(steps):
        yield number, step["name"], step["op"], step["kernel"], step["precision"], " ".join(step["fused"])


def _memory_rows(memory: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Bytes by kind, by kind and program, and of the largest values by layer."""
    for kind, value in memory.items():
        if isinstance(value, dict):
            yield from ((f"{kind} {name}", size(count)) for name, count in value.items())
        elif isinstance(value, list):
            yield from ((f"{kind}: {item['layer']}", size(item["bytes"])) for item in value)
        else:
            yield kind, size(value)
