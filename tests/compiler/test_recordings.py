"""A recording that is shorter than a profile is padded; models made for it are told where it ends."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from infc.compiler import recordings
from infc.compiler.artifact.io import IoSpec, IoSymbol, IoTensor
from infc.compiler.artifact.layout import DIM_EXACT
from tests.compiler.test_audio import signal
from tests.compiler.test_audio import write as write_wav


@pytest.mark.parametrize("told", [False, True])
def test_a_recording_shorter_than_the_profile(told: bool, tmp_path: Path) -> None:
    dims = ("batch", "samples")
    spec = IoSpec([IoTensor("input_values", "f32", dims), IoTensor("attention_mask", "i64", dims, optional=True, fill=1)], [],
                  [IoSymbol(name, DIM_EXACT) for name in dims], [{"batch": 2, "samples": 1000}])
    from transformers import Wav2Vec2FeatureExtractor

    settings = {"feature_extractor_type": "Wav2Vec2FeatureExtractor", "sampling_rate": 16000, "do_normalize": True,
                "return_attention_mask": told}
    lines: list[str] = []
    path = write_wav(tmp_path / "a.wav", signal(600))
    found = recordings.inputs(path, spec, {"preprocessor_config.json": json.dumps(settings).encode()}, lines.append)
    assert found["input_values"].shape == (2, 1000)
    processed = Wav2Vec2FeatureExtractor(return_attention_mask=told)(
        np.round(signal(600) * 32767) / 32768, sampling_rate=16000, padding="max_length", max_length=1000, return_tensors="np")
    np.testing.assert_allclose(found["input_values"], np.repeat(processed["input_values"], 2, axis=0), atol=1e-5)
    assert lines == ["the recording is padded: its 0.04 seconds are the first 60% of what the engine takes, and so of the frames "
                     "of its result"]
    assert ("attention_mask" in found) == told
    if told:
        np.testing.assert_array_equal(found["attention_mask"], np.repeat([np.arange(1000) < 600], 2, axis=0))
        assert found["attention_mask"].dtype == np.int64
