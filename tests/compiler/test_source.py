"""What the user names is found, checked and hashed, and nothing of it is executed."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from infc.compiler.errors import UsageError
from infc.compiler.export import export
from infc.compiler.source import resolve


@pytest.fixture
def copy(bert: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(bert, tmp_path / "another place"))


def edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def code(call: Callable[[], object]) -> str:
    with pytest.raises(UsageError) as caught:
        call()
    assert caught.value.hint, "the error must say what to do"
    return caught.value.code


def test_hash_and_name_do_not_depend_on_the_place(bert: Path, copy: Path) -> None:
    one, two = resolve(bert), resolve(copy)
    assert one.hash == two.hash
    assert one.name == two.name
    assert str(bert) not in one.name
    assert one.tokenizer == ("tokenizer.json", "tokenizer_config.json")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json", "modules.json", "1_Pooling/config.json",
                                  "sentence_bert_config.json"])
def test_every_file_that_counts_changes_the_hash(bert: Path, copy: Path, name: str) -> None:
    with open(copy / name, "ab") as file:
        file.write(b"\n")
    assert resolve(copy).hash != resolve(bert).hash


def test_other_files_do_not_change_the_hash(bert: Path, copy: Path) -> None:
    (copy / "README.md").write_text("words")
    assert resolve(copy).hash == resolve(bert).hash


def test_broken_directories(copy: Path, tmp_path: Path) -> None:
    assert code(lambda: resolve(tmp_path / "nowhere" / "at" / "all")) == "INFC-E0101"
    (tmp_path / "a.onnx").touch()
    for local in (copy, tmp_path / "a.onnx", "pkg:infc/models"):
        assert code(lambda local=local: resolve(local, revision="main")) == "INFC-E0115"  # type: ignore[misc]
    (copy / "modules.json").unlink()
    edit(copy / "config.json", architectures=["BertModle"])
    with pytest.raises(UsageError, match="BertModle") as caught:
        export(resolve(copy))
    assert caught.value.code == "INFC-E0106"
    assert "BertModel" in caught.value.hint
    for text in ("{", "[]", "[" * 100_000):
        (copy / "config.json").write_text(text)
        assert code(lambda: resolve(copy)) == "INFC-E0105"
    (copy / "config.json").unlink()
    assert code(lambda: resolve(copy)) == "INFC-E0104"


@pytest.mark.parametrize("architectures", [7, {"a": 1}, [7], "a b"])
def test_architectures_of_any_type(copy: Path, architectures: Any) -> None:
    edit(copy / "config.json", architectures=architectures)
    assert code(lambda: resolve(copy)) == "INFC-E0106"


@pytest.mark.parametrize(("name", "text", "expected"), [
    ("1_Pooling/config.json", "[1]", "E0105"), ("sentence_bert_config.json", "[]", "E0105"),
    ("modules.json", '[{"type": 3}, {"type": 4}]', "E0109")])
def test_modules_of_wrong_types(copy: Path, name: str, text: str, expected: str) -> None:
    (copy / name).write_text(text)
    assert code(lambda: resolve(copy)) == f"INFC-{expected}"


@pytest.mark.parametrize("length", [-3, 0, True, "9", None])
def test_lengths_that_are_none(copy: Path, length: Any) -> None:
    edit(copy / "sentence_bert_config.json", max_seq_length=length)
    sentence = resolve(copy).sentence
    assert sentence is not None
    assert sentence.max_length is None


def test_own_code_needs_the_flag(copy: Path) -> None:
    edit(copy / "config.json", auto_map={"AutoModel": "modeling.Mine"})
    assert code(lambda: resolve(copy)) == "INFC-E0108"
    assert resolve(copy, trust_remote_code=True).trust_remote_code


def test_missing_weights(copy: Path) -> None:
    (copy / "model.safetensors").rename(copy / "model.h5")
    assert code(lambda: resolve(copy)) == "INFC-E0107"
    (copy / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "../model.h5"}}))
    assert code(lambda: resolve(copy)) == "INFC-E0107"
    for wrong in ({}, {"weight_map": 3}, {"weight_map": {}}, {"weight_map": {"a": 3}}):
        (copy / "model.safetensors.index.json").write_text(json.dumps(wrong))
        assert code(lambda: resolve(copy)) == "INFC-E0105"


def test_a_config_of_another_model(copy: Path) -> None:
    edit(copy / "config.json", intermediate_size=64)
    with pytest.raises(UsageError, match=r"intermediate.dense.bias' is \[48\] in the weights, \[64\] by config.json"):
        export(resolve(copy))


@pytest.mark.parametrize("changes", [{"hidden_act": "no such"}, {"hidden_size": -4}, {"hidden_size": "x"},
                                     {"num_attention_heads": 0}])
def test_a_config_of_which_no_model_can_be_made(changes: dict[str, object], copy: Path) -> None:
    edit(copy / "config.json", **changes)
    with pytest.raises(UsageError, match="no model can be made of it") as caught:
        export(resolve(copy))
    assert (caught.value.code, caught.value.where) == ("INFC-E0130", str(copy / "config.json"))
    assert all(f"{name} is {value!r}" in caught.value.message or f"'{name}' expected" in caught.value.message
               for name, value in changes.items())


@pytest.mark.parametrize("text", ["{", "{}", ""])
def test_a_broken_tokenizer(copy: Path, text: str) -> None:
    from infc.compiler import samples

    (copy / "tokenizer.json").write_text(text)
    assert code(lambda: samples.tokenizer(resolve(copy))) == "INFC-E0116"


class Bomb:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return (Path.touch, (self.path,))


def test_pickles_are_loaded_as_data_only(copy: Path, tmp_path: Path) -> None:
    (copy / "model.safetensors").unlink()
    (copy / "pytorch_model.bin").write_bytes(pickle.dumps({"x": Bomb(tmp_path / "executed")}, protocol=2))
    with pytest.raises(UsageError) as caught:
        export(resolve(copy))
    assert caught.value.code == "INFC-E0107"
    assert "weights_only" not in caught.value.message
    assert not (tmp_path / "executed").exists()


def test_hub_that_cannot_be_reached(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    assert code(lambda: resolve("somebody/a-model", revision="v1")) == "INFC-E0102"


def test_package_is_found_without_importing_it(bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "infc_test_package"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    shutil.copytree(bert, package / "deep" / "model")
    monkeypatch.syspath_prepend(tmp_path)
    found = resolve("pkg:infc_test_package/deep/model")
    assert found.hash == resolve(bert).hash
    assert found.stem == "model"
    for wrong in ("pkg:infc_test_package/none", "pkg:infc_test_package/../x", "pkg:infc_no_such_package/model", "pkg:"):
        assert code(lambda wrong=wrong: resolve(wrong)) == "INFC-E0111"  # type: ignore[misc]
