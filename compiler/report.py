"""What was built: the META and REPORT sections, which hold nothing measured, and the build's own report, which does."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from importlib import metadata
from typing import Any

from infc.compiler.target import Compiled

_TOOLS = ("numpy", "onnx", "onnx_ir", "onnxscript", "torch", "transformers")


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
    return {program: [asdict(layer) for layer in steps] for program, steps in compiled.layers.items()}


def encode(content: Mapping[str, Any]) -> bytes:
    """JSON whose bytes depend on the content alone."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def summary(report: Mapping[str, Any]) -> list[str]:
    """Lines for people: what was built, how large it is, how close it is to the model, where the time went."""
    source, golden = report["source"], report["golden"]
    fused = ", ".join(f"{p['name']} {len(p['matches'])}" for p in report["passes"] if p["matches"])
    lines = [f"{source['name']} ({report['task']}), sha256 {source['sha256'][:12]}",
             f"profiles: {'; '.join(report['profiles'])}",
             f"instruction sets: {', '.join(report['isas'])}",
             f"passes: {fused or 'none matched'}",
             f"size: {report['size'] / 1e6:.1f} MB",
             f"golden: {golden['cases']} cases, largest difference {golden['largest_difference']:.2g} "
             f"from {report['reference']}"]
    lines += [f"{program}: {len(steps)} steps" for program, steps in report["layers"].items()]
    lines += [f"note: {note}" for note in report["notes"]]
    return [*lines, "time: " + ", ".join(f"{name} {seconds:.1f} s" for name, seconds in report["stages"].items())]
