"""What a file or directory is that infc does not compile, and what its owner can do: other formats, pointers, half downloads."""

from __future__ import annotations

import json
import struct
import zipfile
from collections.abc import Iterable
from pathlib import Path

from infc.compiler.errors import UsageError

_HEAD = 512  # bytes that tell a format
_HEADER = 100 << 20  # bytes of a header, of safetensors' own
_MANY = 1 << 14  # tensors of a file that does not tell their number
_LFS = b"version https://git-lfs"
_ORIGINAL = "give the directory with config.json and safetensors that it was converted from"
_WHOLE = "give the directory that it lies in, with its config.json"
_EXPORT = "load it with its own code and write an ONNX file with torch.onnx.export, or a directory with save_pretrained"
_TENSORFLOW = "convert it with python -m tf2onnx.convert, and give the .onnx file"
_AGAIN = "download it again, and look whether the address needs a login"
_FETCH = "git lfs pull in the repository, or hf download OWNER/NAME, brings the file itself"

# (the bytes, where they are, what the file is, what to do)
_MAGIC = (
    (_LFS, 0, "a pointer of git-lfs in place of the file", _FETCH),
    (b"GGUF", 0, "a GGUF file of llama.cpp", _ORIGINAL),
    (b"INFC", 0, "an artifact that is built", "infc run, infc inspect and infc verify take it"),
    (b"TFL3", 4, "a model of TensorFlow Lite", "python -m tf2onnx.convert --tflite FILE --output model.onnx, and give that"),
    (b"\x89HDF", 0, "a file of Keras or TensorFlow (HDF5)", _TENSORFLOW),
    (b"PK\x03\x04", 0, "a zip file, such as PyTorch's .pt and .pth", _EXPORT),
    (b"\x80\x02", 0, "a pickle, such as PyTorch's old .pt and .pth, which infc does not unpack: it may hold code", _EXPORT),
    (b"\x80\x04", 0, "a pickle, which infc does not unpack: it may hold code", _EXPORT),
    (b"\x1f\x8b", 0, "a compressed archive", "unpack it, and give the directory"),
    (b'\0\0{"', 6, "a safetensors file, which holds weights and no model", _WHOLE),
    (b"<!DOCTYPE", 0, "a web page", _AGAIN),
    (b"<html", 0, "a web page", _AGAIN),
)
# (a file, what a directory with it and without a model is, what to do)
_SIGNS = (
    ("model_index.json", "a pipeline of diffusers, of several models",
     "give one of its directories that has a config.json, such as text_encoder"),
    ("adapter_config.json", "an adapter (LoRA) without its model",
     "merge it: PeftModel.from_pretrained(model, ADAPTER).merge_and_unload().save_pretrained(DIRECTORY), and give that"),
    ("saved_model.pb", "a model of TensorFlow",
     "python -m tf2onnx.convert --saved-model DIRECTORY --output model.onnx, and give that"),
    ("tf_model.h5", "a checkpoint of TensorFlow", "load it with transformers 4, from_tf=True, and save_pretrained"),
    ("flax_model.msgpack", "a checkpoint of Flax", "load it with transformers 4, from_flax=True, and save_pretrained"),
    ("*.onnx", "a directory with ONNX files", "give the file: infc build {found}"),
    ("onnx/*.onnx", "a directory with ONNX files", "give the file: infc build {found}"),
    ("*.gguf", "a directory with GGUF files of llama.cpp", "give one of them: infc build {found}"),
    ("*.incomplete", "a download that did not finish", "download it again"),
    ("*.safetensors.part", "a download that did not finish", "download it again"),
    ("*.pt", "a directory with PyTorch's own files, which do not say what computes", _EXPORT),
    ("*.pth", "a directory with PyTorch's own files, which do not say what computes", _EXPORT),
    ("*/model*.safetensors", "a directory of directories", "give one of them, such as {found.parent}"),
)


def file(path: Path) -> UsageError | None:
    """E0126 if ``path`` is a file of a kind that is known and not ONNX's."""
    try:
        with path.open("rb") as opened:
            head = opened.read(_HEAD)
    except OSError:
        return None
    for magic, place, what, hint in _MAGIC:
        if head[place:].startswith(magic) or (not place and head.lstrip().startswith(magic)):
            return UsageError("E0126", f"this is {what}", where=str(path), hint=hint)
    return None


def begins(path: Path, head: bytes) -> bool:
    """Whether the file's first bytes are these."""
    with path.open("rb") as opened:
        return opened.read(len(head)) == head


def instead_of_artifact(path: Path) -> UsageError | None:
    """E0131 if ``path`` is of a kind that is known and no artifact."""
    build = f"build an artifact of it: infc build {path}"
    other = file(path) if path.is_file() else None
    if path.is_dir():
        model = (path / "config.json").is_file()
        what, hint = "a model's directory" if model else "a directory", build if model else "give the file that infc build wrote"
    elif path.suffix == ".onnx":
        what, hint = "an ONNX file", build
    elif path.suffix == ".npz":
        what, hint = "an archive of arrays", f"those are inputs: infc run ENGINE {path}"
    elif path.suffix == ".gguf":
        what, hint = "a GGUF file", build
    elif other is not None:
        what, hint = other.message.removeprefix("this is "), "give the file that infc build wrote"
    else:
        return None
    return UsageError("E0131", f"this is {what}, not an artifact", where=str(path), hint=hint)


def directory(folder: Path) -> UsageError | None:
    """E0127 if ``folder`` is none of a model with its weights, but of a kind that is known; it lacks one or the other."""
    if not folder.is_dir():
        return None
    if not any(folder.iterdir()):
        return UsageError("E0127", "the directory is empty", where=str(folder),
                          hint="give a directory written by save_pretrained or downloaded from the hub")
    for sign, what, hint in _SIGNS:
        found = next(iter(sorted(folder.glob(sign))), None)
        if found is not None:
            return UsageError("E0127", f"this is {what}", where=str(folder),
                              hint=hint.format(found=found))
    return None


def check_weights(folder: Path, names: Iterable[str]) -> int:
    """The most tensors that files of weights may hold. Raises UsageError E0107 for pointers of git-lfs, for safetensors that end
    too early, and for PyTorch's files that unpack to more than they are: those it writes are not compressed."""
    return sum(_tensors(folder / name) for name in names)


def _tensors(path: Path) -> int:
    with path.open("rb") as opened:
        head = opened.read(_HEAD)
    if head.startswith(_LFS):
        raise UsageError("E0107", "the file is a pointer of git-lfs, not the weights", where=str(path), hint=_FETCH)
    if path.suffix == ".safetensors":
        return _in_safetensors(path)
    return _in_zip(path) if head.startswith(b"PK") else _MANY


def _in_zip(path: Path) -> int:
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
    except (zipfile.BadZipFile, ValueError, NotImplementedError, struct.error) as error:
        raise _broken(path, f"it is no archive: {error}") from error
    if sum(m.file_size for m in members) > path.stat().st_size:
        raise _broken(path, "it unpacks to more than it is")
    return len(members)


def _in_safetensors(path: Path) -> int:
    size = path.stat().st_size
    with path.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        if size < 8 or length > _HEADER:
            raise _broken(path, "its header is no header")
        if size < 8 + length:
            raise _incomplete(path, size, 8 + length)
        count, end = _header(path, opened.read(length))
    if size < 8 + length + end:
        raise _incomplete(path, size, 8 + length + end)
    return count


def _header(path: Path, header: bytes) -> tuple[int, int]:
    """The number of tensors, and where the last one ends, from the end of the header."""
    try:
        found = json.loads(header)
        return len(found), max((int(t["data_offsets"][1]) for name, t in found.items() if name != "__metadata__"), default=0)
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise _broken(path, "its header is no header") from error


def _broken(path: Path, why: str) -> UsageError:
    return UsageError("E0107", f"the weights cannot be loaded: {why}", where=str(path), hint="download the file again")


def _incomplete(path: Path, size: int, needed: int) -> UsageError:
    return UsageError("E0107", f"the file of weights is incomplete: it has {size} bytes of {needed}", where=str(path),
                      hint="the download did not finish: download the file again")
