"""What was built: the META and REPORT sections, which hold nothing measured, and the build's own report, which does."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from importlib import metadata
from typing import Any

from infc.compiler.target import Compiled

_TOOLS = ("numpy", "onnx", "onnx_ir", "onnxscript", "torch", "transformers")
_SHOWN_SLICE = 40  # characters of a slice's name


def versions() -> dict[str, str]:
    """Versions of infc and of the packages that shape an artifact, those that are installed."""
    import infc

    found = {"infc": infc.__version__}
    for tool in _TOOLS:
        try:
            found[tool] = metadata.version(tool)
        except metadata.PackageNotFoundError:
            continue
    return found


def layers(compiled: Compiled) -> dict[str, list[dict[str, Any]]]:
    """Steps as built, by "profile/isa"."""
    return {program: [dict(vars(layer)) for layer in steps] for program, steps in compiled.layers.items()}


def encode(content: Mapping[str, Any]) -> bytes:
    """JSON whose bytes depend on the content alone."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def summary(report: Mapping[str, Any]) -> list[str]:
    """Lines for people: what was built, how large it is, how close it is to the model, where the time went."""
    source = report["source"]
    lines = [f"{source['name']} ({report['task']}), sha256 {source['sha256'][:12]}",
             f"profiles: {'; '.join(report['profiles']) or 'one, all sizes are constant'}",
             *([f"set: {set_text(report['options'])}"] if report["options"]["set"] else []),
             *([f"instruction sets: {', '.join(report['isas'])}"] if report["isas"] else []),
             *_passes(report),
             f"size: {report['size'] / 1e6:.1f} MB",
             _golden(report)]
    lines += [line for name, about in report.get("quantisation", {}).items() for line in quantisation_lines(name, about)]
    lines += [line for name, about in report.get("sparsity", {}).items() for line in sparsity_lines(name, about)]
    lines += [line for graph in report["graphs"] for line in graph_lines(graph)]
    described = {program for engine in report["engines"] for program in engine["programs"]}
    lines += [f"{program}: {len(steps)} steps" for program, steps in report["layers"].items() if program not in described]
    lines += [line for engine in report["engines"] for line in engine_lines(engine)]
    lines += [f"note: {note}" for note in report["notes"]]
    return [*lines, "time: " + ", ".join(f"{name} {seconds:.1f} s" for name, seconds in report["stages"].items())]


def set_text(options: Mapping[str, Any]) -> str:
    """The inputs that were given a value."""
    return ", ".join(f"{name}={json.dumps(value)}" for name, value in options.get("set", {}).items())


def _passes(report: Mapping[str, Any]) -> list[str]:
    targets = dict.fromkeys(p["target"] for p in report["passes"])
    lines = []
    for target in targets:
        fused = ", ".join(f"{p['name']} {len(p['matches'])}" for p in report["passes"] if p["target"] == target and p["matches"])
        lines.append(f"passes{f' for {target}' if len(targets) > 1 else ''}: {fused or 'none matched'}")
    return lines


def _golden(report: Mapping[str, Any]) -> str:
    golden = report["golden"]
    if golden["largest_difference"] is None:
        return f"golden: {golden['cases']} cases from {report['reference']}, not replayed on the engine: it is for a GPU"
    where = " (CPU)" if report["engines"] else ""
    return (f"golden: {golden['cases']} cases, largest difference {golden['largest_difference']:.2g} "
            f"from {golden['agrees_with'] or report['reference']}{where}")


def quantisation_lines(target: str, about: Mapping[str, Any]) -> list[str]:
    """What was asked of a target's layers, what became of them, and how close the result is to the model on held-out data."""
    layers = about["layers"]
    kinds = Counter(layer["actual"] for layer in layers)
    are = ", ".join(f"{k} {n}" for k, n in kinds.most_common()) or "it as a whole"
    lines = [f"{target}: {about['requested']} was asked for, layers are in {are}"]
    lines += [f"{target}: back in higher precision: {', '.join(about['restored'])}"] if about["restored"] else []
    reasons = Counter(layer.get("why", "") for layer in layers if layer["actual"] != about["requested"])
    lines += [f"{target}: {n} layers: {why}" for why, n in reasons.most_common(5) if why]
    plainer = sum("gptq: it has no Gram matrix" in layer.get("why", "") for layer in layers)
    lines += [f"{target}: {plainer} layers are rounded to nearest, not by gptq: the data has no Gram matrices "
              "(infc calibrate --grams)"] if plainer else []
    if "calibration" in about:
        data = about["calibration"]["data"]
        lines.append(f"{target}: calibrated on {data['samples']} samples of {data['name']}, {about['calibration']['method']}")
        invalid = about["calibration"].get("invalid")
        lines += [f"{target}: NaN or infinity came up in {', '.join(invalid[:5])}, and was left out"] if invalid else []
    if "accuracy" not in about:
        lines.append(f"{target}: accuracy was not measured, for there is no data to judge by: give --evaluation FILE")
    for where, found in about.get("accuracy", {}).items():
        what = "the engine" if where == "engine" else "its graph in ONNX Runtime"
        worst = (f", worst slice {found['worst_slice'][:_SHOWN_SLICE]} {found['slices'][found['worst_slice']]['mean']}"
                 if "slices" in found else "")
        lines.append(f"{target}: {what} on {found['samples']} samples of {about['evaluation']['name']}: {found['metric']} "
                     f"{found['mean']}, worst {found['worst']}{worst}")
    return lines


def sparsity_lines(target: str, about: Mapping[str, Any]) -> list[str]:
    """How many layers have weights that are 2:4, and why others have not."""
    layers = about["layers"]
    chosen = [layer for layer in layers if layer["actual"] == about["pattern"]]
    found = sum(layer.get("found", False) for layer in chosen)
    lines = [f"{target}: {len(chosen)} of {len(layers)} layers are {about['pattern']}, {found} of them were so before"]
    kernels = Counter(layer["kernel"] for layer in chosen if "kernel" in layer)
    lines += [f"{target}: the kernel of {n} layers {what}" for what, n in kernels.items()]
    others = Counter(layer["why"] for layer in chosen if layer.get("why") and layer.get("method") != about["method"])
    lines += [f"{target}: {n} layers are not made so by {about['method']}: {why}" for why, n in others.most_common(3)]
    reasons = Counter(layer.get("why", "") for layer in layers if layer not in chosen)
    lines += [f"{target}: {n} layers are dense: {why}" for why, n in reasons.most_common(5) if why]
    return lines


def graph_lines(graph: Mapping[str, Any]) -> list[str]:
    """What ONNX Runtime made of a graph that was handed to a builder. Nothing of it was run on a GPU, and the lines say so."""
    head = f"{graph['graph']} ({graph['precision']})"
    if graph["note"]:
        return [f"{head}: {graph['note']}"]
    found = [f"{name} within {figures['difference']:.2g}, cosine {figures['cosine']:.6f}"
             for name, figures in graph["outputs"].items()]
    return [f"{head}: the graph handed to the builder, in ONNX Runtime, {graph['cases']} cases: {'; '.join(found)}"]


def engine_lines(engine: Mapping[str, Any]) -> list[str]:
    """One engine's facts and those of the programs in it, one a profile."""
    sparse = sparsity(engine)
    head = (f"{engine['flavour']} {engine['version']} for SM {', '.join(map(str, engine['sms']))}: {engine['size'] / 1e6:.1f} MB, "
            f"{engine['precision']}{f', 2:4 sparsity {sparse}' if sparse else ''}")
    return [head, *(f"{name}: {program_text(facts)}" for name, facts in engine["programs"].items())]


def program_text(facts: Mapping[str, Any]) -> str:
    """What an engine does in one profile, as its builder told."""
    return f"{facts['layers']} layers, {facts['launches']} launches a run, {facts['fused_attentions']} fused attentions"


def sparsity(engine: Mapping[str, Any]) -> str:
    """How many weights are in which state; "" if none was asked about."""
    return ", ".join(f"{state} {count}" for state, count in Counter(w["state"] for w in engine["sparsity"]).items())
