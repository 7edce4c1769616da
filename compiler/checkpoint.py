"""What a Hugging Face directory holds: checks before anything is loaded, and a content hash."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infc.compiler import foreign, preprocessor
from infc.compiler.errors import UsageError
from infc.compiler.sentence import SentenceModules, read_object
from infc.compiler.sentence import read as read_sentence

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.txt",
                   "vocab.json", "merges.txt", "spiece.model", "sentencepiece.bpe.model", "tokenizer.model",
                   "chat_template.jinja", "generation_config.json", *preprocessor.FILES)
_LAYERS = re.compile(r"(^|_)(layers?|depths?|blocks?)$")
_SAFE_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


@dataclass(frozen=True)
class Checkpoint:
    name: str
    hash: str
    config: Mapping[str, Any]
    architecture: str
    tokenizer: tuple[str, ...]  # and what prepares photos and recordings: file names, relative to the directory
    sentence: SentenceModules | None


def read(root: Path, trust_remote_code: bool) -> Checkpoint:
    """Raises UsageError E0104 to E0110: no or broken config.json, unknown architecture, no weights in a form that can be
    loaded safely, the directory's own code without ``trust_remote_code``, modules of sentence-transformers that infc lacks; E0127
    for a directory of another kind."""
    from infc.models import registry

    sentence = read_sentence(root)
    folder = root / sentence.folder if sentence else root
    if not (folder / "config.json").exists() and (other := foreign.directory(folder)):
        raise other
    config = read_object(folder / "config.json")
    if config.get("auto_map") and not trust_remote_code:
        raise UsageError("E0108", "the model brings Python code of its own", where=f"auto_map in {folder / 'config.json'}",
                         hint="read that code; if you trust it, add --trust-remote-code")
    architecture = registry.architecture(config, str(folder / "config.json"))
    held = weights(folder)
    _check_layers(config, foreign.check_weights(folder, (n for n in held if not n.endswith(".json"))), folder)
    tokenizer = [n for n in TOKENIZER_FILES if (folder / n).is_file()]
    prefix = f"{sentence.folder}/" if sentence and sentence.folder else ""
    counted = [prefix + n for n in ("config.json", *held, *tokenizer)] + list(sentence.files if sentence else ())
    digest = hash_files(root, counted)
    return Checkpoint(_name(config, digest), digest, config, architecture, tuple(tokenizer), sentence)


def _check_layers(config: Mapping[str, Any], tensors: int, folder: Path) -> None:
    """Raises UsageError E0118 for a config.json, or a part of it, that asks for more layers than there are tensors: making them
    takes long before anything is found missing."""
    for name, value in config.items():
        if isinstance(value, dict):
            _check_layers(value, tensors, folder)
        numbers = value if isinstance(value, list) else [value]
        if _LAYERS.search(name) and any(isinstance(n, int | float) and n > tensors for n in numbers):
            raise UsageError("E0118", f"'{name}' is {value} by config.json, the weights are {tensors} tensors"[:300],
                             where=str(folder),
                             hint="config.json and weights are not of the same model: download both again")


def weights(folder: Path) -> list[str]:
    """Names of the files that hold the weights and their index: safetensors, else PyTorch's, which load as data only."""
    for whole in ("model.safetensors", "pytorch_model.bin"):
        index = f"{whole}.index.json"
        found = [whole] if (folder / whole).is_file() else _shards(folder, index) if (folder / index).is_file() else []
        if found:
            return found if found == [whole] else [index, *found]
    if other := foreign.directory(folder):
        raise other
    raise UsageError("E0107", "no weights are in the directory", where=str(folder),
                     hint="infc loads model.safetensors or pytorch_model.bin, also in several files with an index")


def _shards(folder: Path, index: str) -> list[str]:
    listed = read_object(folder / index).get("weight_map")
    if not isinstance(listed, dict) or not listed or not all(isinstance(name, str) for name in listed.values()):
        raise UsageError("E0105", "its weight_map does not say which file holds which weights", where=str(folder / index),
                         hint="download the file again")
    names, present = sorted(set(listed.values())), {p.name for p in folder.iterdir() if p.is_file()}
    for name in names:
        if name not in present:
            raise UsageError("E0107", f"the index names a file that is not in the directory: {name}", where=str(folder / index),
                             hint="download the missing file")
    return names


def hash_files(root: Path, names: Iterable[str]) -> str:
    """SHA-256 over the names and contents; the same wherever the directory lies."""
    total = hashlib.sha256()
    for name in sorted(names):
        with open(root / name, "rb") as file:
            total.update(f"{name}\0{hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
    return total.hexdigest()


def _name(config: Mapping[str, Any], digest: str) -> str:
    """A name that depends on the content alone, not on where the directory lies."""
    name = config.get("_name_or_path")
    if isinstance(name, str) and _SAFE_NAME.fullmatch(name):
        return name
    return f"{config.get('model_type', 'model')}-{digest[:8]}"
