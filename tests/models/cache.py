"""Exports kept in the checkout's .cache, by what they are made from: PyTorch's exporter takes longer than all the rest."""

from __future__ import annotations

import hashlib
import importlib.metadata
import re
from pathlib import Path

import onnx_ir as ir

from infc.compiler import export as exporter
from infc.compiler.export import Exported
from infc.compiler.source import Source
from infc.models import registry

ROOT = Path(__file__).resolve().parents[2]
_EXPORTER = tuple(ROOT / "compiler" / f"{name}.py" for name in ("export", "samples", "preprocessor"))
_PACKAGES = ("torch", "transformers", "onnx", "onnx_ir", "onnxscript")


def export(source: Source, *, verify: bool = True) -> Exported:
    """As ``infc.compiler.export.export``; interface and reference come from the model, each time."""
    path = ROOT / ".cache" / "exports" / f"{_key(source)}.onnx"
    if not path.is_file():
        made = exporter.export(source, verify=verify)
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_suffix(".aside")
        ir.save(made.model, aside)
        aside.replace(path)
        return made
    loaded = registry.load(source)
    return Exported(ir.load(path), loaded.interface, loaded.reference, "pytorch")


def _key(source: Source) -> str:
    """Over the checkpoint, the packages, and the code that exports: the recipe, what it imports of the others, the exporter."""
    total = hashlib.sha256(f"{source.hash}\n{source.context}\n".encode())
    for name in _PACKAGES:
        total.update(f"{name}={importlib.metadata.version(name)}\n".encode())
    for path in [*_recipe(registry.recipe_of(source.architecture)[0]), *_EXPORTER]:
        total.update(path.read_bytes())
    return total.hexdigest()[:32]


def _recipe(name: str) -> list[Path]:
    """The file of the recipe and of those it imports, sorted. The registry only chooses among them."""
    found, pending = set(), {name}
    while pending:
        path = ROOT / "models" / f"{pending.pop()}.py"
        found.add(path)
        imported = set(re.findall(r"^from infc\.models\.(\w+) import", path.read_text(encoding="utf-8"), re.MULTILINE))
        pending |= {other for other in imported if ROOT / "models" / f"{other}.py" not in found}
    return sorted(found)
