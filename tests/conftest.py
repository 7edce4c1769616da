"""Small checkpoints with random weights, made once a session."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from infc.compiler.export import Exported

WORDS = ["the", "harbour", "was", "quiet", "she", "measured", "flour", "rates", "rose", "on", "how", "do", "i", "reset", "my",
         "password", "a", "comet", "will", "be", "visible", "rain", "in", "mould", "dish", "committee", ".", ",", ";", "?"]
CONFIG = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48, "vocab_size": 64,
          "max_position_embeddings": 40, "num_labels": 3}
POOLING = {"pooling_mode_mean_tokens": True}


def _randomise(model: Any, seed: int = 0) -> None:
    """Draws every parameter so that none is zero, one or like another: scales around ±1, everything else around 0."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            drawn = torch.randn(parameter.shape, generator=generator)
            is_scale = "LayerNorm" in name and name.endswith("weight")
            parameter.copy_(1 + drawn / 4 if is_scale else drawn / 3)


def add_tokenizer(folder: Path, **config: Any) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    vocabulary = {w: i for i, w in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": True, **config}))


def add_modules(folder: Path, pooling: dict[str, Any], normalize: bool = True) -> None:
    kinds = ["Transformer", "Pooling", *(["Normalize"] if normalize else [])]
    modules = [{"idx": i, "name": str(i), "path": "" if i == 0 else f"{i}_{k}", "type": f"sentence_transformers.models.{k}"}
               for i, k in enumerate(kinds)]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": CONFIG["hidden_size"], **pooling}))
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 32}')


def write_bert(folder: Path, architecture: str = "BertModel", pooling: dict[str, Any] | None = None, *, normalize: bool = True,
               safetensors: bool = True, **changes: Any) -> Path:
    """A checkpoint of BERT as save_pretrained writes it; with ``pooling`` a sentence-transformers directory."""
    import torch
    import transformers

    model = getattr(transformers, architecture)(transformers.BertConfig(**{**CONFIG, **changes}))
    _randomise(model)
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    if not safetensors:
        torch.save(model.state_dict(), folder / "pytorch_model.bin")
        (folder / "model.safetensors").unlink()
    add_tokenizer(folder)
    if pooling is not None:
        add_modules(folder, pooling, normalize)
    return folder


@pytest.fixture(scope="session")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sentence-transformers directory with mean pooling and normalisation."""
    return write_bert(tmp_path_factory.mktemp("models") / "tiny", pooling=POOLING)


@pytest.fixture(scope="session")
def exported(bert: Path) -> Exported:
    """``bert``, exported and held against PyTorch. Its graph must be cloned before it is changed."""
    from infc.compiler.export import export
    from infc.compiler.source import resolve

    return export(resolve(bert))


@pytest.fixture(scope="session")
def make_bert(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A checkpoint of BERT, by the arguments of ``write_bert``, in a new directory."""
    return lambda *args, **options: write_bert(tmp_path_factory.mktemp("models") / "tiny", *args, **options)


@pytest.fixture
def write_modules() -> Callable[..., None]:
    """``write_modules(folder, pooling, normalize=True)`` makes a directory one of sentence-transformers."""
    return add_modules
