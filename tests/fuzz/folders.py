"""Small model directories of every form that infc reads. ``python -m tests.fuzz.folders DIRECTORY`` writes them."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests import conftest
from tests.models import perception

_ONE_LAYER = {"num_hidden_layers": 1}
# Directory -> its architecture and what prepares its input.
_PREPARED: dict[str, tuple[str, dict[str, Any]]] = {
    "photos": ("ViTForImageClassification", {
        "image_processor_type": "ViTImageProcessor", "do_resize": True, "size": {"height": 32, "width": 32}, "do_normalize": True,
        "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5], "do_rescale": True, "rescale_factor": 1 / 255, "resample": 2}),
    "speech": ("Wav2Vec2ForCTC", {
        "feature_extractor_type": "Wav2Vec2FeatureExtractor", "sampling_rate": 16000, "do_normalize": True, "feature_size": 1}),
}
# Ten seconds of speech are frames in the hundreds, as of models that people have.
_CONFIG: dict[str, dict[str, Any]] = {"speech": {"conv_stride": (5, 8, 8), "conv_kernel": (10, 8, 8)}}


def write(place: Path) -> None:
    """Of sentence-transformers; in parts with an index and a tokenizer in its old form; PyTorch's own file; of photos; with a
    configuration of generation; of speech."""
    conftest.write_bert(place / "sentence", pooling=conftest.POOLING, **_ONE_LAYER)
    _write_parts(place / "parts")
    conftest.write_bert(place / "pickled", "BertForTokenClassification", safetensors=False, **_ONE_LAYER)
    write_t5(place / "t5")
    for name, (architecture, settings) in _PREPARED.items():
        (place / name).mkdir(parents=True)
        family = (perception.VISION | perception.AUDIO)[architecture]
        perception.write(architecture, replace(family, config=family.config | _CONFIG.get(name, {})), place / name)
        (place / name / "preprocessor_config.json").write_text(json.dumps(settings))


def _write_parts(folder: Path) -> None:
    import transformers

    conftest.write_bert(folder, "BertForSequenceClassification", **_ONE_LAYER)
    model = transformers.BertForSequenceClassification.from_pretrained(folder)
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder, max_shard_size="40KB")
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *conftest.WORDS]) + "\n")
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": true, "tokenizer_class": "BertTokenizer"}')
    (folder / "special_tokens_map.json").write_text('{"unk_token": "[UNK]", "sep_token": "[SEP]", "pad_token": "[PAD]"}')


def write_t5(folder: Path) -> None:
    import transformers

    config = transformers.T5Config(vocab_size=64, d_model=16, d_kv=8, d_ff=24, num_layers=1, num_heads=2)
    transformers.T5EncoderModel(config).save_pretrained(folder)
    transformers.GenerationConfig(max_length=20, decoder_start_token_id=0).save_pretrained(folder)
    conftest.add_tokenizer(folder)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
