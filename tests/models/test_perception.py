"""Families of vision and audio models agree with PyTorch at two profiles; what they are for is known; unusual sizes are found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from infc.compiler.artifact.reader import Artifact
from infc.compiler.source import resolve
from infc.models import image, registry
from tests.models.perception import AUDIO, PARITY, VISION, measure, write

# One of each make; the others in the full sweep.
_QUICK = ("ViTForImageClassification", "CLIPModel", "ResNetForImageClassification", "WhisperForConditionalGeneration")


def _cases() -> list[Any]:
    return [pytest.param(name, marks=() if name in _QUICK else pytest.mark.slow) for name in VISION | AUDIO]


@pytest.mark.parametrize("architecture", _cases())
def test_parity(architecture: str, tmp_path: Path) -> None:
    row = measure(architecture, (VISION | AUDIO)[architecture], tmp_path)
    print(row)
    assert row.largest <= PARITY
    assert row.task == registry.ARCHITECTURES[architecture][1] != ""
    files = bytes(Artifact.open(tmp_path / "model.infc").section("TOKENIZER") or b"")
    assert (b"preprocessor_config.json" in files) == ((VISION | AUDIO)[architecture].photo is not None)


@pytest.mark.parametrize(("found", "size"), [
    ({}, (32, 32)),
    ({"size": 40}, (40, 40)),
    ({"size": {"height": 40, "width": 48}}, (40, 48)),
    ({"size": {"shortest_edge": 40}}, (40, 40)),
    ({"size": {"shortest_edge": 40, "longest_edge": 90}}, (40, 40)),
    ({"size": {"height": 40, "width": 48}, "do_resize": False}, (32, 32)),
    ({"size": {"shortest_edge": 60}, "do_center_crop": True, "crop_size": {"height": 24, "width": 16}}, (24, 16)),
    ({"size": {"shortest_edge": 60}, "do_center_crop": False, "crop_size": 24}, (60, 60)),
    ({"size": "large"}, (32, 32)),
    ({"size": {"height": -4, "width": 4}}, (32, 32)),
])
def test_images_have_the_size_that_the_preprocessor_makes(found: dict[str, Any], size: tuple[int, int], tmp_path: Path) -> None:
    model = write("ViTForImageClassification", VISION["ViTForImageClassification"], tmp_path)
    for name, text in (("preprocessor_config.json", found), ("processor_config.json", {"image_processor": found})):
        (tmp_path / name).write_text(json.dumps(text))
        (photo,) = image.image_inputs(resolve(tmp_path), model.config)
        assert photo.dims == ("batch", 3, *size)
        (tmp_path / name).unlink()
