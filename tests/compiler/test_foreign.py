"""What is no model that infc compiles is told by what it is, and what to do."""

from __future__ import annotations

import json
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from infc.compiler import samples
from infc.compiler.errors import UsageError
from infc.compiler.source import resolve

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24\n"
CONFIG = '{"architectures": ["BertModel"], "model_type": "bert"}'


def refusal(path: Path) -> UsageError:
    with pytest.raises(UsageError) as caught:
        resolve(path)
    return caught.value


def zipped(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", b"")


FILES: dict[str, tuple[bytes, str, str]] = {
    "model.onnx": (POINTER, "git-lfs", "git lfs pull"),
    "model.bin": (POINTER, "git-lfs", "git lfs pull"),
    "model.infc": (b"INFC\0\0\0\0", "artifact", "infc run"),
    "model.tflite": (b"\x1c\0\0\0TFL3", "TensorFlow Lite", "tf2onnx"),
    "model.h5": (b"\x89HDF\r\n\x1a\n", "HDF5", "tf2onnx"),
    "model.pth": (pickle.dumps({}, 2), "pickle", "torch.onnx.export"),
    "model.tar.gz": (b"\x1f\x8b\x08", "archive", "unpack"),
    "model.safetensors": (b"\x10\0\0\0\0\0\0\0" b'{"a":{}}', "safetensors", "directory"),
    "page.onnx": (b"\n<!DOCTYPE html>", "web page", "login"),
}


@pytest.mark.parametrize("name", FILES)
def test_files(name: str, tmp_path: Path) -> None:
    data, what, hint = FILES[name]
    (tmp_path / name).write_bytes(data)
    error = refusal(tmp_path / name)
    assert error.code == "INFC-E0126"
    assert what in error.message
    assert hint in error.hint


@pytest.mark.parametrize("data", [b"GGUF", b"GGUF\x03\0\0\0", b"GGUF\x03\0\0\0" + b"\xff" * 64])
@pytest.mark.parametrize("given", [".", "model.gguf"])
def test_broken_gguf(data: bytes, given: str, tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(data)
    error = refusal(tmp_path / given)
    assert error.code == "INFC-E0129"
    assert "GGUF" in error.message
    assert "model.gguf" in error.where


def test_gguf_cut_short(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(struct.pack("<4sIQQ", b"GGUF", 3, 1, 1))
    error = refusal(tmp_path / "model.gguf")
    assert error.code == "INFC-E0129"
    assert "cut short: it ends at 24 bytes" in error.message


def test_files_of_pytorch(tmp_path: Path) -> None:
    zipped(tmp_path / "model.pt")
    assert ".pth" in refusal(tmp_path / "model.pt").message


DIRECTORIES: dict[str, tuple[tuple[str, ...], str, str]] = {
    "empty": ((), "empty", "save_pretrained"),
    "diffusers": (("model_index.json", "unet/config.json"), "diffusers", "text_encoder"),
    "lora": (("adapter_config.json", "adapter_model.safetensors"), "LoRA", "merge_and_unload"),
    "saved_model": (("saved_model.pb",), "TensorFlow", "tf2onnx"),
    "tensorflow": (("config.json", "tf_model.h5"), "TensorFlow", "from_tf"),
    "flax": (("config.json", "flax_model.msgpack"), "Flax", "from_flax"),
    "optimum": (("config.json", "onnx/model.onnx"), "ONNX", "infc build"),
    "gguf": (("a.gguf",), "GGUF", "infc build"),
    "unfinished": (("config.json", "model.safetensors.incomplete"), "did not finish", "again"),
    "checkpoints": (("last.pth",), "PyTorch", "torch.onnx.export"),
    "parents": (("one/model.safetensors",), "directories", "one"),
}


@pytest.mark.parametrize("name", DIRECTORIES)
def test_directories(name: str, tmp_path: Path) -> None:
    files, what, hint = DIRECTORIES[name]
    for file in files:
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text(CONFIG if file == "config.json" else "{}")
    error = refusal(tmp_path)
    assert error.code == "INFC-E0127"
    assert what in error.message
    assert hint in error.hint


def test_what_is_a_model_is_none_of_these(tmp_path: Path, make_bert: Callable[..., Path]) -> None:
    model = make_bert(num_hidden_layers=1)
    for name in ("adapter_config.json", "model_index.json", "model.onnx", "last.pth"):
        (model / name).write_text("{}")
    config = json.loads((model / "config.json").read_text())
    # an object begins where that of safetensors does
    (model / "config.json").write_text('{"abc":  ' + '{"x": 1}, ' + json.dumps(config)[1:])
    assert resolve(model).architecture == "BertModel"


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json", "modules.json"])
def test_pointers_of_git_lfs(name: str, make_bert: Callable[..., Path]) -> None:
    model = make_bert(num_hidden_layers=1)
    (model / name).write_bytes(POINTER)
    with pytest.raises(UsageError) as caught:
        samples.tokenizer(resolve(model))
    error = caught.value
    assert "git-lfs" in error.message
    assert "git lfs pull" in error.hint
    assert name in error.where


@pytest.mark.parametrize("left", [0, 7, 40, 2000, -1])
def test_safetensors_that_end_early(left: int, make_bert: Callable[..., Path]) -> None:
    path = make_bert(num_hidden_layers=1) / "model.safetensors"
    path.write_bytes(path.read_bytes()[:left])
    error = refusal(path.parent)
    assert error.code == "INFC-E0107"
    assert "incomplete" in error.message or left < 8


@pytest.mark.parametrize("header", [b"\xff" * 8, (1 << 40).to_bytes(8, "little"), b"\x04\0\0\0\0\0\0\0nope",
                                    b"\x02\0\0\0\0\0\0\0[]", b"\x10\0\0\0\0\0\0\0" + b'{"a":{"b":null}}'])
def test_safetensors_without_a_header(header: bytes, make_bert: Callable[..., Path]) -> None:
    path = make_bert(num_hidden_layers=1) / "model.safetensors"
    path.write_bytes(header + bytes(100))
    assert refusal(path.parent).code == "INFC-E0107"
