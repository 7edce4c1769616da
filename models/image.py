"""Images as inputs of a model: what size they have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from infc.compiler import preprocessor
from infc.compiler.interface import TensorSpec
from infc.compiler.source import Source

_SIZE = 224  # where nothing says


def image_inputs(source: Source, config: Any) -> tuple[TensorSpec, ...]:
    """``pixel_values`` of the size that the model's own preprocessor makes, or that config.json names."""
    inner = getattr(config, "vision_config", config)
    height, width = _pair(_made(source)) or _pair(getattr(inner, "image_size", None)) or (_SIZE, _SIZE)
    return (TensorSpec("pixel_values", "f32", ("batch", int(getattr(inner, "num_channels", 3)), height, width)),)


def _made(source: Source) -> Any:
    """The size after resizing and cropping, None if it depends on the photo or no file says."""
    found = preprocessor.of_folder(source.model_path, preprocessor.IMAGE)
    if found.get("do_center_crop") and found.get("crop_size"):
        return found["crop_size"]
    size = found.get("size") if found.get("do_resize", True) else None
    return size.get("shortest_edge", size) if isinstance(size, Mapping) else size  # whatever shape a photo has, it fits a square


def _pair(size: Any) -> tuple[int, int] | None:
    """(height, width) of a size in any of the forms that configurations have; None for another."""
    if isinstance(size, Mapping):
        size = [size.get("height"), size.get("width")]
    found = (size, size) if isinstance(size, int) else size
    if not isinstance(found, (list, tuple)) or len(found) != 2 or not all(isinstance(n, int) and n > 0 for n in found):
        return None
    return int(found[0]), int(found[1])
