"""`infc run` with a photo or a recording: prepared by the files that the artifact carries, or refused with the reason."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from infc.compiler import driver
from tests.compiler.test_audio import signal
from tests.compiler.test_audio import write as write_wav
from tests.compiler.test_image import photo
from tests.conftest import add_tokenizer
from tests.models import cache
from tests.models.perception import AUDIO, VISION, write


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[Path, Any]]:
    """An engine of one of the families' models with a preprocessor's file, and the model."""
    def built(architecture: str, preprocessor: dict[str, Any] | None, *profiles: str, tokenizer: dict[str, Any] | None = None
              ) -> tuple[Path, Any]:
        folder = tmp_path_factory.mktemp("media")
        model = write(architecture, (VISION | AUDIO)[architecture], folder / "model")
        if preprocessor is not None:
            (folder / "model" / "preprocessor_config.json").write_text(json.dumps(preprocessor))
        if tokenizer is not None:
            add_tokenizer(folder / "model", **tokenizer)
        with mock.patch.object(driver, "export", cache.export):
            driver.build(folder / "model", folder / "a.infc", profiles=profiles, tune=False, threads=1)
        return folder / "a.infc", model

    return built


def test_photo(build: Callable[..., tuple[Path, Any]], cli: Any, tmp_path: Path) -> None:
    import torch
    from PIL import Image
    from transformers import ViTImageProcessorPil

    processor = ViTImageProcessorPil(size={"height": 32, "width": 32})
    engine, model = build("ViTForImageClassification", processor.to_dict(), "batch=2")
    path = photo(tmp_path, 50, 70)
    done = cli("run", engine, path, "--json")
    assert done.code == 0, done.err
    with torch.no_grad():
        expected = model(**processor(Image.open(path).convert("RGB"), return_tensors="pt")).logits.numpy()
    np.testing.assert_allclose(done.json["outputs"]["logits"], expected, atol=2e-5)  # one row, though the engine takes two

    (tmp_path / "bad.jpg").write_bytes(b"no photo")
    assert "E0041" in cli("run", engine, tmp_path / "bad.jpg").err
    assert "E0031" in cli("run", engine, write_wav(tmp_path / "a.wav", signal(100))).err
    assert "E0030" in cli("run", engine, "--text", "a photo?").err


def test_recording(build: Callable[..., tuple[Path, Any]], cli: Any, tmp_path: Path) -> None:
    import torch
    from transformers import WhisperFeatureExtractor

    extractor = WhisperFeatureExtractor(feature_size=16, hop_length=400, chunk_length=1)
    engine, model = build("WhisperForConditionalGeneration", extractor.to_dict(), "batch=1")
    path = write_wav(tmp_path / "a.wav", signal(9000))
    done = cli("run", engine, path, "--json")
    assert done.code == 0, done.err
    values = np.round(signal(9000) * 32767) / 32768
    with torch.no_grad():
        expected = model.get_encoder()(extractor(values, sampling_rate=16000, return_tensors="pt").input_features)
    np.testing.assert_allclose(done.json["outputs"]["last_hidden_state"], expected.last_hidden_state.numpy(), atol=1e-3)


def test_a_model_that_does_not_say_how(build: Callable[..., tuple[Path, Any]], cli: Any, tmp_path: Path) -> None:
    engine, _ = build("ViTForImageClassification", None, "batch=1")
    assert "E0046" in cli("run", engine, photo(tmp_path, 20, 20)).err


@pytest.mark.slow
def test_photo_within_a_square(build: Callable[..., tuple[Path, Any]], cli: Any, tmp_path: Path) -> None:
    import torch
    from PIL import Image
    from transformers import DetrImageProcessorPil

    processor = DetrImageProcessorPil(size={"shortest_edge": 96, "longest_edge": 160})
    engine, model = build("DetrForObjectDetection", processor.to_dict(), "batch=1")
    path = photo(tmp_path, 60, 90)
    done = cli("run", engine, path, "--json")
    assert done.code == 0, done.err
    given = processor(Image.open(path).convert("RGB"), size={"shortest_edge": 96, "longest_edge": 96},
                      pad_size={"height": 96, "width": 96}, return_tensors="pt")
    with torch.no_grad():
        expected = model(pixel_values=given["pixel_values"], pixel_mask=given["pixel_mask"])
    np.testing.assert_allclose(done.json["outputs"]["pred_boxes"], expected.pred_boxes.numpy(), atol=1e-4)
    assert "the photo is 96×64 pixels of the 96×96" in done.err


@pytest.mark.slow
def test_speech_of_any_length(build: Callable[..., tuple[Path, Any]], cli: Any, tmp_path: Path) -> None:
    import torch
    from transformers import Wav2Vec2FeatureExtractor

    extractor = Wav2Vec2FeatureExtractor()
    engine, model = build("Wav2Vec2Model", extractor.to_dict(), "batch=1,samples=1600", "batch=1,samples=3200")
    path = write_wav(tmp_path / "a.wav", signal(1600))
    done = cli("run", engine, path, "--json")
    assert done.code == 0, done.err
    values = np.round(signal(1600) * 32767) / 32768
    with torch.no_grad():
        expected = model(extractor(values, sampling_rate=16000, return_tensors="pt").input_values).last_hidden_state
    np.testing.assert_allclose(done.json["outputs"]["last_hidden_state"], expected.numpy(), atol=2e-4)
    assert "padded" not in done.err
    assert "is cut" in cli("run", engine, write_wav(tmp_path / "b.wav", signal(5000))).err

    done = cli("run", engine, write_wav(tmp_path / "c.wav", signal(800)), "--json")
    assert "the first 50% of what the engine takes" in done.err
    values = np.round(signal(800) * 32767) / 32768
    with torch.no_grad():
        given = extractor(values, sampling_rate=16000, padding="max_length", max_length=1600, return_tensors="pt").input_values
        expected = model(given).last_hidden_state
    np.testing.assert_allclose(done.json["outputs"]["last_hidden_state"], expected.numpy(), atol=2e-4)


TEXTS = ["the harbour was quiet", "rain", "a comet will be visible in the rain ."]


@pytest.mark.parametrize(("architecture", "reads_padding"), [("CLIPModel", False), ("SiglipModel", True)])
@pytest.mark.parametrize("count", [1, 3])
def test_a_photo_and_texts(build: Callable[..., tuple[Path, Any]], cli: Any, tmp_path: Path, architecture: str, reads_padding: bool,
                           count: int) -> None:
    import torch
    from PIL import Image
    from transformers import ViTImageProcessorPil

    processor = ViTImageProcessorPil(size={"height": 32, "width": 32})
    tokens = {"pad_token": "rain", "model_input_names": ["input_ids"], "model_max_length": 12} if reads_padding else {}
    engine, model = build(architecture, processor.to_dict(), "batch=1,texts=2,seq=16", "batch=2,texts=4,seq=16", tokenizer=tokens)
    path = photo(tmp_path, 50, 70)
    texts = TEXTS[:count]
    done = cli("run", engine, path, *(word for text in texts for word in ("--text", text)), "--json")
    assert done.code == 0, done.err

    from tokenizers import Tokenizer

    fast = Tokenizer.from_file(str(engine.parent / "model" / "tokenizer.json"))
    width = 12 if reads_padding else 16
    fast.enable_padding(length=width, pad_id=fast.token_to_id("rain") if reads_padding else 0, pad_token="rain")
    encoded = fast.encode_batch(texts)
    ids = torch.tensor([e.ids for e in encoded])
    mask = None if reads_padding else torch.tensor([e.attention_mask for e in encoded])
    pixels = processor(Image.open(path).convert("RGB"), return_tensors="pt")["pixel_values"]
    if reads_padding:  # the engine takes 16 tokens, and pads to them
        ids = torch.nn.functional.pad(ids, (0, 4), value=fast.token_to_id("rain"))
    with torch.no_grad():
        expected = model(input_ids=ids, attention_mask=mask, pixel_values=pixels)
    scores = expected.logits_per_image.numpy()[0]
    outputs = done.json["outputs"]
    np.testing.assert_allclose(outputs["logits_per_image"], [scores], atol=1e-4)
    assert np.shape(outputs["text_embeds"])[0] == count
    rows = done.json["similarity"]
    assert [r["text"] for r in rows] == texts
    chances = 1 / (1 + np.exp(-scores)) if reads_padding else np.exp(scores) / np.exp(scores).sum()
    np.testing.assert_allclose([r["probability"] for r in rows], chances, atol=1e-4)
    cosines = (expected.text_embeds @ expected.image_embeds[0]).numpy()
    np.testing.assert_allclose([r["cosine"] for r in rows], cosines, atol=1e-5)
    shown = cli("run", engine, path, *(word for text in texts for word in ("--text", text)))
    assert all(text in shown.out for text in texts)

    assert "give texts too" in cli("run", engine, path).err
    assert "give a photo too" in cli("run", engine, "--text", "rain").err
    too_many = cli("run", engine, path, *(["--text", "rain"] * 5))
    assert "E0048" in too_many.err
    assert "texts=5" in too_many.err
