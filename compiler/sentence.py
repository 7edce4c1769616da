"""modules.json of a sentence-transformers directory: how token vectors become one vector."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infc.compiler import foreign
from infc.compiler.errors import UsageError

_LARGEST_JSON = 64 << 20  # bytes
# In the order in which sentence-transformers concatenates them.
_POOLINGS = ("cls", "max", "mean")
_FLAGS = {"pooling_mode_cls_token": "cls", "pooling_mode_max_tokens": "max", "pooling_mode_mean_tokens": "mean",
          "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens", "pooling_mode_weightedmean_tokens": "weightedmean",
          "pooling_mode_lasttoken": "lasttoken"}


@dataclass(frozen=True)
class SentenceModules:
    """``folder`` holds the Transformer, relative to the model's directory; several poolings are concatenated."""

    folder: str
    pooling: tuple[str, ...]
    normalize: bool
    max_length: int | None
    files: tuple[str, ...]  # read for this, relative to the model's directory


def read(root: Path) -> SentenceModules | None:
    """None if the directory is not one of sentence-transformers. Raises UsageError for modules that infc does not have."""
    if not (root / "modules.json").is_file():
        return None
    modules = read_json(root / "modules.json")
    kinds = [_kind(m, root) for m in modules] if isinstance(modules, list) else []
    if kinds[:2] != ["Transformer", "Pooling"] or kinds[2:] not in ([], ["Normalize"]):
        raise UsageError("E0109", f"the sequence of modules is {' + '.join(kinds) or 'empty'}", where=str(root / "modules.json"),
                         hint="infc takes Transformer + Pooling, with or without Normalize")
    folder, pooling_folder = (_inside(root, m) for m in modules[:2])
    files = ["modules.json", _join(pooling_folder, "config.json")]
    settings = _join(folder, "sentence_bert_config.json")
    max_length = None
    if (root / settings).is_file():
        files.append(settings)
        max_length = read_object(root / settings).get("max_seq_length")
    pooling = _pooling(root / pooling_folder / "config.json")
    return SentenceModules(folder, pooling, "Normalize" in kinds, max_length if _is_length(max_length) else None, tuple(files))


def read_json(path: Path) -> Any:
    try:
        if path.stat().st_size > _LARGEST_JSON:
            raise ValueError(f"{path.stat().st_size >> 20} MiB are more than such a file has")
        if other := foreign.file(path):
            raise other
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError("E0104", f"{path.name} is missing", where=str(path.parent),
                         hint="give a directory written by save_pretrained or downloaded from the hub") from None
    except (ValueError, OSError, RecursionError) as error:
        raise UsageError("E0105", f"not readable as JSON: {error}", where=str(path), hint="download the file again") from error


def read_object(path: Path) -> dict[str, Any]:
    """As ``read_json``; what is no JSON object is UsageError E0105 too."""
    found = read_json(path)
    if not isinstance(found, dict):
        raise UsageError("E0105", "not a JSON object", where=str(path), hint="download the file again")
    return found


def _is_length(value: Any) -> bool:
    return type(value) is int and value > 0


def _kind(module: Any, root: Path) -> str:
    name = str(module.get("type", "")) if isinstance(module, dict) else ""
    package, _, kind = name.rpartition(".")
    if package.split(".")[0] != "sentence_transformers" or kind not in ("Transformer", "Pooling", "Normalize"):
        raise UsageError("E0109", f"module {name or '(no type)'} is not supported", where=str(root / "modules.json"),
                         hint="infc takes Transformer + Pooling, with or without Normalize")
    return kind


def _inside(root: Path, module: Mapping[str, Any]) -> str:
    folder = str(module.get("path", ""))
    if Path(folder).is_absolute() or ".." in Path(folder).parts:
        raise UsageError("E0109", f"module path '{folder}' leaves the directory", where=str(root / "modules.json"))
    return folder


def _join(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def _pooling(path: Path) -> tuple[str, ...]:
    config = read_object(path)
    mode = config.get("pooling_mode")
    chosen = set(mode.split("+")) if isinstance(mode, str) else {name for flag, name in _FLAGS.items() if config.get(flag)}
    unknown = sorted(chosen - set(_POOLINGS))
    if unknown or not chosen:
        raise UsageError("E0110", f"pooling by {', '.join(unknown) or 'nothing'} is not supported", where=str(path),
                         hint=f"infc pools by {', '.join(_POOLINGS)} and by their concatenation")
    return tuple(p for p in _POOLINGS if p in chosen)
