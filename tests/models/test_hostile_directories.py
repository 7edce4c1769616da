"""Model directories whose files claim what they do not hold: a clear error, before memory or time is spent on it."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch  # noqa: F401  the forked processes have it
import transformers  # noqa: F401

from tests import bounded
from tests.fuzz import folders


@pytest.fixture(scope="module")
def model(make_bert: Callable[..., Path]) -> Path:
    return make_bert(num_hidden_layers=1)


def refused(folder: Path, code: str) -> None:
    result = bounded.run("build", folder, "-o", folder / "o.infc", "--no-tune", "--isa", "scalar")
    assert (result.exit_code, result.code) == (2, f"INFC-{code}"), result
    assert result.grown < bounded.MEMORY, result


@pytest.mark.parametrize(("changes", "code"), [
    ({"hidden_size": 10**9}, "E0118"), ({"hidden_size": 10**4}, "E0118"), ({"hidden_size": float("nan")}, "E0130"),
    ({"num_hidden_layers": 10**6}, "E0118"), ({"num_hidden_layers": 1e30}, "E0118"), ({"vocab_size": 10**9}, "E0118"),
    ({"max_position_embeddings": 10**5}, "E0118"), ({"num_attention_heads": 0}, "E0130"),
    ({"chunk_size_feed_forward": 10**5}, "E0208"),
])
def test_configurations(changes: dict[str, Any], code: str, model: Path) -> None:
    path = model / "config.json"
    text = path.read_text()
    path.write_text(json.dumps(json.loads(text) | changes))
    try:
        refused(model, code)
    finally:
        path.write_text(text)


@pytest.mark.parametrize(("changes", "code"), [
    ({"relative_attention_max_distance": 1e30}, "E0130"), ({"relative_attention_max_distance": 0}, "E0208"),
    ({"relative_attention_num_buckets": 10**9}, "E0118"), ({"relative_attention_num_buckets": 0}, "E0118"),
])
def test_biases_by_distance(changes: dict[str, Any], code: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    folders.write_t5(tmp_path)
    config = tmp_path / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | changes))
    refused(tmp_path, code)


@pytest.mark.parametrize("name", ["x" * 5000, "a\x00b", "", ".", "..", "../model.safetensors", "absent"])
def test_an_index_of_files_that_are_not_there(name: str, tmp_path: Path, model: Path) -> None:
    (tmp_path / "config.json").write_bytes((model / "config.json").read_bytes())
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"weight": name}}))
    refused(tmp_path, "E0107")


@pytest.mark.parametrize("text", ["[" * 1_000_000, '{"a": "' + "x" * (65 << 20) + '"}'])
def test_json(text: str, make_bert: Callable[..., Path]) -> None:
    folder = make_bert(num_hidden_layers=1)
    (folder / "config.json").write_text(text)
    refused(folder, "E0105")


def test_weights_that_unpack_to_more(make_bert: Callable[..., Path]) -> None:
    folder = make_bert(num_hidden_layers=1, safetensors=False)
    with (zipfile.ZipFile(folder / "pytorch_model.bin", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
          archive.open("archive/data.pkl", "w", force_zip64=True) as member):
        for _ in range(128):
            member.write(bytes(1 << 24))
    refused(folder, "E0107")
