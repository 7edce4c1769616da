"""Recordings are prepared as transformers' feature extractors do it; what is no usable recording is refused."""

from __future__ import annotations

import wave
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infc.compiler import audio
from infc.compiler.errors import UsageError

RATE = 16000


def signal(samples: int) -> np.ndarray:
    """A tone that rises, and some noise; within ±1."""
    time = np.arange(samples) / RATE
    noise = np.random.default_rng(samples).standard_normal(samples)
    return np.asarray(0.4 * np.sin(2 * np.pi * (200 + 700 * time) * time) + 0.02 * noise)


def write(path: Path, values: np.ndarray, width: int = 2, rate: int = RATE) -> Path:
    """[samples] or [samples, channels] of values within ±1."""
    whole = np.round(values * (2.0 ** (8 * width - 1) - 1)).astype("<i8")
    data = (whole + 128).astype(np.uint8) if width == 1 else whole[..., None].view(np.uint8)[..., :width]
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1 if values.ndim == 1 else values.shape[1])
        file.setsampwidth(width)
        file.setframerate(rate)
        file.writeframes(np.ascontiguousarray(data).tobytes())
    return path


@pytest.mark.parametrize("samples", [1, 4000, 40000])
@pytest.mark.parametrize("change", [{}, {"feature_size": 128}, {"chunk_length": 2, "hop_length": 128}, {"do_normalize": True}])
def test_log_mel_as_transformers(samples: int, change: dict[str, Any], tmp_path: Path) -> None:
    from transformers import WhisperFeatureExtractor

    changed = {"chunk_length": 3, **change}
    path = write(tmp_path / "a.wav", signal(samples))
    values = np.round(signal(samples) * 32767) / 32768
    normalised = {"do_normalize": True} if "do_normalize" in change else {}
    extractor = WhisperFeatureExtractor(**{k: v for k, v in changed.items() if k != "do_normalize"})
    expected = extractor(values, sampling_rate=RATE, return_tensors="np", **normalised)["input_features"][0]
    np.testing.assert_allclose(audio.log_mel(path, {**extractor.to_dict(), **changed}), expected, atol=2e-4)
    assert np.abs(audio.log_mel(path, changed) - expected).mean() < 1e-6


@pytest.mark.parametrize("normalise", [True, False])
def test_samples_as_transformers(normalise: bool, tmp_path: Path) -> None:
    from transformers import Wav2Vec2FeatureExtractor

    path = write(tmp_path / "a.wav", signal(5000))
    extractor = Wav2Vec2FeatureExtractor(do_normalize=normalise)
    expected = extractor(np.round(signal(5000) * 32767) / 32768, sampling_rate=RATE, return_tensors="np")["input_values"][0]
    np.testing.assert_allclose(audio.samples(path, extractor.to_dict(), 10000)[0], expected, atol=1e-5)


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_widths_and_channels(width: int, tmp_path: Path) -> None:
    both = np.stack([signal(800), -0.5 * signal(800)], 1)
    found, _ = audio.samples(write(tmp_path / "a.wav", both, width), {"do_normalize": False}, 800)
    np.testing.assert_allclose(found, both.mean(1), atol=2.0 ** (3 - 8 * min(width, 3)))


def test_long_recordings_are_cut(tmp_path: Path) -> None:
    told: list[str] = []
    found, _ = audio.samples(write(tmp_path / "a.wav", signal(32000)), {"do_normalize": False}, 16000, told.append)
    assert found.shape == (16000,)
    assert "the first 1.0 of its 2.0 seconds" in told[0]


def outcome(prepare: Callable[[], object]) -> str:
    """The error's code, "" if there is none."""
    try:
        prepare()
    except UsageError as error:
        return error.code
    return ""


def code(path: Path, config: dict[str, Any]) -> str:
    (found,) = {outcome(lambda: audio.samples(path, config, 100)), outcome(lambda: audio.log_mel(path, config))}
    return found


def test_files_that_are_no_recordings(tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    for data in (b"", b"RIFF", b"RIFF\xff\xff\xff\xffWAVEfmt \xff\xff\xff\xff", b"nothing of the kind"):
        path.write_bytes(data)
        assert code(path, {}) == "INFC-E0044"
    assert code(write(path, signal(100), rate=400001), {}) == "INFC-E0044"
    assert code(write(path, signal(100), rate=999), {}) == "INFC-E0044"
    assert code(write(path, signal(0)), {}) == "INFC-E0044"
    assert code(tmp_path / "none.wav", {}) == "INFC-E0044"


@settings(max_examples=60, deadline=None)
@given(at=st.integers(0, 60), value=st.integers(0, 255), cut=st.integers(0, 200))
def test_damaged_recordings(tmp_path_factory: pytest.TempPathFactory, at: int, value: int, cut: int) -> None:
    path = write(tmp_path_factory.mktemp("damaged") / "a.wav", signal(60))
    data = bytearray(path.read_bytes())
    data[at] = value
    path.write_bytes(data[:cut] if cut < 160 else data)
    assert outcome(lambda: audio.samples(path, {}, 100)) in ("", "INFC-E0044")


@settings(max_examples=40, deadline=None)
@given(config=st.dictionaries(st.sampled_from(["feature_size", "hop_length", "chunk_length", "n_fft", "sampling_rate",
                                               "do_normalize", "feature_extractor_type"]),
                              st.one_of(st.integers(-3, 1 << 66), st.text(max_size=3), st.none(), st.floats(), st.booleans())))
def test_configurations_that_mean_harm(tmp_path_factory: pytest.TempPathFactory, config: dict[str, Any]) -> None:
    path = write(tmp_path_factory.mktemp("wav") / "a.wav", signal(100))
    assert outcome(lambda: audio.log_mel(path, {"chunk_length": 1, **config})) in ("", "INFC-E0042", "INFC-E0044")


def tones(rate: int, seconds: float, *hertz: float) -> np.ndarray:
    """Swelling and fading tones, as they are at any sampling rate."""
    time = np.arange(round(seconds * rate)) / rate
    envelope = np.sin(np.pi * time / seconds) ** 2
    return np.asarray(envelope * sum(0.2 * np.sin(2 * np.pi * f * time + f) for f in hertz), np.float32)


@pytest.mark.parametrize("old", [8000, 11025, 22050, 32000, 44100, 48000, 96000])
def test_another_sampling_rate(old: int, tmp_path: Path) -> None:
    """Tones up to 88 % of what both rates can hold are the same tones; what the new rate cannot hold is gone."""
    limit = min(old, RATE) / 2
    found = audio.resampled(tones(old, 0.5, 300, 0.5 * limit, 0.88 * limit), old, RATE)
    expected = tones(RATE, 0.5, 300, 0.5 * limit, 0.88 * limit)
    assert found.shape == (-(-round(0.5 * old) * RATE // old),)
    np.testing.assert_allclose(found[:len(expected)], expected, atol=1e-3)
    if old > RATE:
        assert np.abs(audio.resampled(tones(old, 0.5, 1.06 * limit), old, RATE)).max() < 2e-3
    config = {"do_normalize": False}
    values, _ = audio.samples(write(tmp_path / "a.wav", tones(old, 0.5, 300), rate=old), config, 1 << 20)
    np.testing.assert_allclose(values[:8000], tones(RATE, 0.5, 300), atol=1e-3)


@given(old=st.integers(1000, 400000), new=st.sampled_from([8000, 16000, 24000]), samples=st.integers(1, 300))
@settings(deadline=None, max_examples=25)
def test_resampling_is_the_sum_over_all_samples(old: int, new: int, samples: int) -> None:
    """Beside the definition: each output a sum over the whole recording."""
    signal = np.random.default_rng(samples).standard_normal(samples).astype(np.float32)
    found = audio.resampled(signal, old, new)
    cut = min(old, new) / old * 0.96
    time = (np.arange(samples)[None] - np.arange(-(-samples * new // old))[:, None] * old / new) * cut
    kernel = np.where(np.abs(time) < 32, np.sinc(time) * np.cos(np.pi * time / 64) ** 2 * cut, 0)
    np.testing.assert_allclose(found, kernel @ signal, atol=2e-5)
