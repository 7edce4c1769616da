"""Architectures without a recipe: tried by what their forward takes, else refused with the reason."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from infc.compiler.errors import ExportError, InfcError
from infc.compiler.export import export
from infc.compiler.source import resolve
from infc.models.registry import ARCHITECTURES
from tests.models.families import write

_SMALL = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 48, "vocab_size": 64,
          "max_position_embeddings": 40}


def test_a_text_model_by_its_signature(tmp_path: Path) -> None:
    assert "ErnieModel" not in ARCHITECTURES
    interface = export(resolve(write("ErnieModel", _SMALL, tmp_path))).interface
    assert [t.name for t in interface.inputs] == ["input_ids", "attention_mask", "token_type_ids"]
    outputs = {t.name: t.dims for t in interface.outputs}
    assert outputs == {"last_hidden_state": ("batch", "seq", 32), "pooler_output": ("batch", 32)}
    assert interface.limits == {"seq": 40}


@pytest.mark.parametrize("name", ["NoSuchModel", "BertConfig", "os"])
def test_what_is_no_model_is_refused(tmp_path: Path, name: str) -> None:
    write("ErnieModel", _SMALL, tmp_path)
    config = tmp_path / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "architectures": [name]}))
    with pytest.raises(InfcError, match="no recipe exports") as caught:
        export(resolve(tmp_path))
    assert caught.value.code == "INFC-E0106"
    assert "writing_recipes.md" in caught.value.hint


def test_a_model_that_wants_other_inputs_says_how_to_write_a_recipe(tmp_path: Path) -> None:
    size = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
            "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "vocab_size": 64, "max_position_embeddings": 40, "prediction_length": 4}
    with pytest.raises(ExportError) as caught:
        export(resolve(write("TimeSeriesTransformerModel", {k: v for k, v in size.items() if k != "vocab_size"}, tmp_path)))
    assert caught.value.code == "INFC-E0306"
    assert "writing_recipes.md" in caught.value.hint


_SEQUENCE = {"vocab_size": 50, "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
             "decoder_attention_heads": 2, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48}


@pytest.mark.parametrize(("name", "config"), [
    ("BlenderbotSmallModel", _SEQUENCE),
    ("ASTForAudioClassification", {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 48,
                                   "max_length": 128, "num_mel_bins": 32, "num_labels": 3})])
def test_a_model_that_does_not_run_is_named_with_the_reason(name: str, config: dict[str, object], tmp_path: Path) -> None:
    with pytest.raises(ExportError) as caught:
        export(resolve(write(name, config, tmp_path)))
    assert caught.value.code == "INFC-E0306"
    assert caught.value.message.startswith(f"there is no recipe for {name}, and by its forward signature ")
    assert len(caught.value.message.partition("run")[2]) > 30, "the reason"
    assert "writing_recipes.md" in caught.value.hint
