"""Photos are prepared as transformers' processors do it; what is no usable photo, or no usable configuration, is refused."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image

from infc.compiler import image
from infc.compiler.errors import UsageError

SHAPES = ((97, 60), (60, 97), (48, 48), (20, 33))
CHANGES: dict[str, list[dict[str, Any]]] = {
    "ViT": [{}, {"size": {"height": 30, "width": 44}, "resample": 3}, {"do_resize": False}, {"do_rescale": False}],
    "DeiT": [{}, {"do_normalize": False}],
    "CLIP": [{}, {"size": {"shortest_edge": 37}, "crop_size": {"height": 41, "width": 36}}],
    "Bit": [{}, {"size": {"shortest_edge": 51}, "crop_size": {"height": 32, "width": 32}, "resample": 2}],
    "Siglip": [{}, {"size": {"height": 40, "width": 40}}],
    "Beit": [{}, {"size": {"height": 30, "width": 44}, "do_center_crop": False}],
    "MobileViT": [{}, {"size": {"shortest_edge": 50}, "crop_size": {"height": 41, "width": 36}, "do_flip_channel_order": False}],
    "ConvNext": [{}, {"size": {"shortest_edge": 50}}, {"size": {"shortest_edge": 50}, "crop_pct": 0.95, "resample": 2}],
    "MobileNetV1": [{}],
    "MobileNetV2": [{}, {"size": {"shortest_edge": 45}, "crop_size": {"height": 39, "width": 39}}],
    "EfficientNet": [{}, {"rescale_offset": True, "rescale_factor": 1 / 127.5}, {"include_top": False}],
    "Segformer": [{}, {"size": {"height": 32, "width": 64}}],
    "Detr": [{}, {"size": {"shortest_edge": 50, "longest_edge": 70}}, {"size": {"shortest_edge": 50, "longest_edge": 300}}],
}


def photo(folder: Path, height: int, width: int, mode: str = "RGB") -> Path:
    rng = np.random.default_rng(height)
    small = rng.integers(0, 256, (height // 4 + 1, width // 4 + 1, 4), np.uint8)
    path = folder / f"{mode}{height}x{width}.png"
    Image.fromarray(small, "RGBA").resize((width, height), Image.Resampling.BICUBIC).convert(mode).save(path)
    return path


@pytest.mark.parametrize("kind", CHANGES)
def test_as_transformers(kind: str, tmp_path: Path) -> None:
    import transformers

    for change in CHANGES[kind]:
        processor = getattr(transformers, f"{kind}ImageProcessorPil")(**change)
        for shape in SHAPES:
            path = photo(tmp_path, *shape)
            expected = processor(Image.open(path).convert("RGB"), return_tensors="np")["pixel_values"][0]
            for config in (processor.to_dict(), {"image_processor_type": f"{kind}ImageProcessor", **change}):
                np.testing.assert_allclose(image.pixels(path, config), expected, atol=2e-6, err_msg=f"{change}, {shape}")


PLAIN: dict[str, dict[str, Any]] = {"Yolos": {"size": {"height": 48, "width": 64}}, "Blip": {}, "Pvt": {}}


@pytest.mark.parametrize("kind", PLAIN)
def test_a_kind_that_is_not_known_by_its_fields(kind: str, tmp_path: Path) -> None:
    import transformers

    processor = getattr(transformers, f"{kind}ImageProcessorPil")(**PLAIN[kind])
    config = {name: value for name, value in processor.to_dict().items() if value is not None}
    for shape in SHAPES:
        path = photo(tmp_path, *shape)
        expected = processor(Image.open(path).convert("RGB"), return_tensors="np")["pixel_values"][0]
        np.testing.assert_allclose(image.pixels(path, config), expected, atol=2e-6, err_msg=str(shape))
    changes: list[dict[str, Any]] = [
        {"do_center_crop": True}, {"size": {"shortest_edge": 48}}, {"size": None}, {"do_thumbnail": True}, {"do_rescale": None},
        {"image_mean": None}, {"size_divisor": 16}, {"do_resize": False}]
    for change in changes:
        assert outcome(path, config | change) == "INFC-E0042", change


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "1", "LA"])
def test_colours_of_any_kind(mode: str, tmp_path: Path) -> None:
    assert image.pixels(photo(tmp_path, 40, 30, mode), {"image_processor_type": "ViTImageProcessor"}).shape == (3, 224, 224)


def test_turned_as_the_camera_noted(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # taken with the camera on its side
    Image.open(photo(tmp_path, 40, 30)).save(tmp_path / "turned.jpg", exif=exif)
    config = {"image_processor_type": "ViTImageProcessor", "do_resize": False}
    assert image.pixels(tmp_path / "turned.jpg", config).shape == (3, 30, 40)


def test_the_longer_edge_keeps_within_the_engine(tmp_path: Path) -> None:
    config = {"image_processor_type": "DetrImageProcessor", "size": {"shortest_edge": 80, "longest_edge": 133}}
    assert image.pixels(photo(tmp_path, 60, 120), config, 80).shape == (3, 40, 80)


def outcome(path: Path, config: dict[str, Any]) -> str:
    """The error's code, "" if there is none."""
    try:
        image.pixels(path, config)
    except UsageError as error:
        return error.code
    return ""


VIT = {"image_processor_type": "ViTImageProcessor"}


def claims(path: Path, width: int, height: int) -> Path:
    """A PNG of a few bytes that says it has that many pixels."""
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(bytes(64))), chunk(b"IEND", b"")
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(chunks))
    return path


@pytest.mark.parametrize("size", [(1 << 30, 1 << 30), (20000, 20000), (8193, 8192), (0, 5), (100, 100)])
def test_claims_of_pixels(size: tuple[int, int], tmp_path: Path) -> None:
    assert outcome(claims(tmp_path / "a.png", *size), VIT) == "INFC-E0041"


def test_files_that_are_no_photos(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    for data in (b"", b"\x89PNG\r\n\x1a\n", b"GIF89a" + bytes(50), b"not a photo"):
        path.write_bytes(data)
        assert outcome(path, VIT) == "INFC-E0041"
    assert outcome(tmp_path / "none.png", VIT) == "INFC-E0041"


@settings(max_examples=50, deadline=None)
@given(at=st.integers(0, 2000), value=st.integers(0, 255), cut=st.integers(0, 2000))
def test_damaged_photos(tmp_path_factory: pytest.TempPathFactory, at: int, value: int, cut: int) -> None:
    """Nothing but a photo or UsageError E0041 comes of any damage."""
    folder = tmp_path_factory.mktemp("damaged")
    Image.open(photo(folder, 24, 24)).save(folder / "a.jpg")
    for path in sorted(folder.iterdir()):
        data = bytearray(path.read_bytes())
        data[at % len(data)] = value
        path.write_bytes(data[:cut] if cut > 20 else data)
        assert outcome(path, VIT) in ("", "INFC-E0041")


def test_a_thin_photo_does_not_grow_without_bound(tmp_path: Path) -> None:
    path = tmp_path / "thin.png"
    Image.new("RGB", (60000, 1)).save(path)
    assert outcome(path, {"image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": 2000}}) == "INFC-E0041"


JUNK = st.one_of(st.none(), st.booleans(), st.integers(-10, 1 << 70), st.floats(), st.text(max_size=4),
                 st.lists(st.integers(-2, 9)), st.dictionaries(
                     st.sampled_from(["height", "width", "shortest_edge", "longest_edge"]),
                     st.one_of(st.integers(-5, 1 << 65), st.text(max_size=2), st.none(), st.floats())))


@settings(max_examples=50, deadline=None)
@example(config={"crop_pct": False}, kind="ConvNext")
@given(config=st.dictionaries(st.sampled_from(["size", "crop_size", "resample", "image_mean", "image_std", "rescale_factor",
                                               "crop_pct", "do_center_crop"]), JUNK),
       kind=st.sampled_from([*CHANGES, "Unknown"]))
def test_configurations_that_mean_harm(tmp_path_factory: pytest.TempPathFactory, config: dict[str, Any], kind: str) -> None:
    path = photo(tmp_path_factory.mktemp("photo"), 12, 10)
    with np.errstate(all="ignore"):
        assert outcome(path, {**config, "image_processor_type": f"{kind}ImageProcessor"}) in ("", "INFC-E0041", "INFC-E0042")
