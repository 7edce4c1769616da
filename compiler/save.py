"""Models as ONNX files for the user."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir

from infc.compiler import onnx_file, output
from infc.compiler.source import Source

_INSIDE = 1 << 30  # bytes of weights up to which they go into the file itself: ONNX files end at 2 GiB


def check_model(path: Path, source: Source) -> None:
    """Raises as ``output.check_file`` if a file, or that of its weights, cannot go there or would replace what it is made of."""
    files = [source.path.parent / name for name in onnx_file.files(source.path)] if source.is_onnx else [source.path]
    for part in (path, _beside(path)):
        output.check_file(part, [*files, *([source.gguf] if source.gguf else [])])


def save_model(model: ir.Model, path: Path) -> int:
    """Writes it, with weights of more than 1 GiB in a file beside it; bytes of weights. Raises UsageError E0023."""
    weights = sum(v.const_value.nbytes for v in model.graph.initializers.values() if v.const_value is not None)
    with output.written(path) as aside:
        ir.save(model, aside, external_data=_beside(aside).name if weights > _INSIDE else None)
    return weights


def _beside(path: Path) -> Path:
    return path.with_name(f"{path.name}.data")
