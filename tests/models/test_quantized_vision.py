"""EfficientNet-Lite0 in bytes on crops of real photos: it names what the float model names, in a fraction of its time."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

import infc
from infc.compiler import driver
from infc.models import fetch
from tests.models.test_real import _LITE

pytestmark = pytest.mark.slow

# Pictures that a camera took of things as the eye sees them; no microscope's, telescope's or retina's, no scans and drawings.
PHOTOS = ("astronaut.png", "brick.png", "camera.png", "chelsea.png", "clock_motion.png", "coffee.png", "coins.png", "grass.png",
          "gravel.png", "motorcycle_left.png", "motorcycle_right.png", "rocket.jpg")
EACH, AGREE, FASTER = 20, 0.98, 1.5  # docs/quantisation.md has what was measured


def crops(folder: Path, each: int, seed: int) -> np.ndarray:
    """f32 [12 each, 3, 224, 224]: squares of at least half a photo's shorter side, half of them mirrored."""
    from PIL import Image

    drawn, made = np.random.default_rng(seed), []
    for name in PHOTOS:
        photo = Image.open(folder / name).convert("RGB")
        for _ in range(each):
            side = int(min(photo.size) * drawn.uniform(0.5, 1))
            x, y = (int(drawn.integers(0, size - side + 1)) for size in photo.size)
            cut = photo.crop((x, y, x + side, y + side)).resize((224, 224), Image.Resampling.BICUBIC)
            made.append((np.asarray(cut, np.float32)[:, :: -1 if drawn.random() < 0.5 else 1].transpose(2, 0, 1) / 255 - 0.5) / 0.5)
    return np.ascontiguousarray(np.stack(made), np.float32)


def least_times(engines: list[infc.Engine], x: np.ndarray) -> list[float]:
    least = [float("inf")] * len(engines)
    for _ in range(60):
        for number, engine in enumerate(engines):
            start = time.perf_counter()
            engine.run({"x": x})
            least[number] = min(least[number], time.perf_counter() - start)
    return least


def test_efficientnet_lite0(tmp_path: Path) -> None:
    import torch

    from tests.models.efficientnet_lite import EfficientNetLite0

    assert _LITE["image_processor_type"] == "ConvNextImageProcessor"  # whose mean and deviation are a half, as in crops
    model = EfficientNetLite0().eval()
    (weights,) = fetch.fetch("efficientnet-lite0").glob("*.pth")
    model.load_state_dict(torch.load(weights, weights_only=True))
    torch.onnx.export(model, (torch.zeros(1, 3, 224, 224),), tmp_path / "lite0.onnx", input_names=["x"], output_names=["y"],
                      dynamo=True, verbose=False)
    photos = fetch.fetch("photos")
    np.savez(tmp_path / "crops.npz", x=crops(photos, 16, 1))
    np.savez(tmp_path / "others.npz", x=crops(photos, 4, 3))
    driver.build(tmp_path / "lite0.onnx", tmp_path / "f32.infc", tune=False)
    built = driver.build(tmp_path / "lite0.onnx", tmp_path / "int8.infc", tune=False, precision="int8",
                         calibration=tmp_path / "crops.npz", calibration_method="mse", calibration_samples=64,
                         evaluation=tmp_path / "others.npz", budget=0.9995)
    found = {layer["op"] for layers in built.report["layers"].values() for layer in layers}
    assert {"conv_i8", "depthwise_i8", "gemm_i8", "quantize_rows"} <= found
    assert len(built.report["quantisation"]["cpu"]["restored"]) <= 8
    engines = [infc.Engine(tmp_path / f"{name}.infc", threads=1) for name in ("f32", "int8")]
    images = crops(photos, EACH, 2)
    floats, integers = (np.stack([engine.run({"x": x[None]})["y"][0].argmax() for x in images]) for engine in engines)
    assert np.mean(floats == integers) >= AGREE
    slow, fast = least_times(engines, images[:1])
    assert fast * FASTER < slow
