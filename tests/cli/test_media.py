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
from tests.models import cache
from tests.models.perception import AUDIO, VISION, write


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[Path, Any]]:
    """An engine of one of the families' models with a preprocessor's file, and the model."""
    def built(architecture: str, preprocessor: dict[str, Any] | None, *profiles: str) -> tuple[Path, Any]:
        folder = tmp_path_factory.mktemp("media")
        model = write(architecture, (VISION | AUDIO)[architecture], folder / "model")
        if preprocessor is not None:
            (folder / "model" / "preprocessor_config.json").write_text(json.dumps(preprocessor))
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
    assert "is cut" in cli("run", engine, write_wav(tmp_path / "b.wav", signal(5000))).err
