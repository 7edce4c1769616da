"""A photo as a model of transformers takes it, by the model's own preprocessor_config.json; in Pillow and numpy.

The values are those of transformers' processors with the Pillow backend.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from infc.compiler.errors import UsageError

if TYPE_CHECKING:
    from PIL.Image import Image

SUFFIXES = (".jpg", ".jpeg", ".png")
_FORMATS = ("JPEG", "PNG")
_MOST_PIXELS = 1 << 26  # of a photo, and of what it is resized to: 200 MB
_LONGEST = 1 << 14  # of an edge that a configuration may ask for
_WARPED = 384  # ConvNeXt crops what is smaller and warps the rest
_HALF, _CLIP_MEAN, _CLIP_STD = 3 * (0.5,), (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
_IMAGENET = {"image_mean": (0.485, 0.456, 0.406), "image_std": (0.229, 0.224, 0.225)}
_CROPPED = {"do_center_crop": True, "crop_size": 224}
_CLIP = {"size": {"shortest_edge": 224}, "resample": 3, "image_mean": _CLIP_MEAN, "image_std": _CLIP_STD, **_CROPPED}
_MOBILE = {"size": {"shortest_edge": 256}, **_CROPPED}

# What holds for every kind where its file does not say, and what each kind has of its own.
_COMMON: dict[str, Any] = {"do_resize": True, "size": 224, "resample": 2, "do_center_crop": False, "do_rescale": True,
                           "rescale_factor": 1 / 255, "do_normalize": True, "image_mean": _HALF, "image_std": _HALF}
KINDS: dict[str, dict[str, Any]] = {
    "ViT": {},
    "DeiT": {"size": 256, "resample": 3, **_CROPPED},
    "CLIP": _CLIP,
    "Bit": _CLIP,
    "Siglip": {"resample": 3},
    "Beit": {"resample": 3, "crop_size": 224},
    "MobileViT": {"size": {"shortest_edge": 224}, "resample": 3, "do_center_crop": True, "crop_size": 256, "do_normalize": False,
                  "do_flip_channel_order": True},
    "ConvNext": {"size": {"shortest_edge": 384}, "resample": 3, "crop_pct": 224 / 256},
    "MobileNetV1": _MOBILE,
    "MobileNetV2": _MOBILE,
    "EfficientNet": {"size": 346, "resample": 3, "crop_size": 289, "rescale_offset": False, "include_top": True},
    "Segformer": {"size": 512, **_IMAGENET},
    "Detr": {"size": {"shortest_edge": 800, "longest_edge": 1333}, **_IMAGENET},
}
# What a file says of a kind that is not here, if it is one of these steps alone; and what makes no difference to one photo.
_STEPS = {"do_resize": ("size", "resample"), "do_rescale": ("rescale_factor",), "do_normalize": ("image_mean", "image_std")}
_NEUTRAL = {"image_processor_type", "feature_extractor_type", "processor_class", "do_convert_rgb", "do_pad", "format",
            "data_format", "do_convert_annotations", "crop_size", "default_to_square"}


def pixels(path: Path, config: Mapping[str, Any], longest: int = _LONGEST) -> NDArray[np.float32]:
    """[3, height, width] f32, resized, cropped and normalised as ``config`` says. A size that depends on the photo keeps its longer
    edge within ``longest``.

    Raises UsageError E0041 for a file that is no photo or too large, E0042 for a configuration that infc cannot follow.
    """
    steps = {**_COMMON, **_kind(config), **{k: v for k, v in config.items() if v is not None}}
    try:
        image = _cropped(_resized(_opened(path), steps, longest), steps)
        return _normalised(image, steps)
    except (LookupError, TypeError, ValueError, ArithmeticError) as error:
        raise _cannot(f"{type(error).__name__}: {error}") from None


def _kind(config: Mapping[str, Any]) -> dict[str, Any]:
    name = str(config.get("image_processor_type") or config.get("feature_extractor_type") or "none")
    kind = name
    for suffix in ("Fast", "Pil", "ImageProcessor", "FeatureExtractor"):
        kind = kind.removesuffix(suffix)
    if kind not in KINDS and not _is_plain(config):
        raise _cannot(f"it is of a kind that infc does not know: {name}; docs/families.md lists those it does")
    return KINDS.get(kind, {})


def _is_plain(config: Mapping[str, Any]) -> bool:
    """Whether the file says all of what it does with a photo, and that is resizing to a fixed size, rescaling and normalising."""
    used = {name for step, names in _STEPS.items() if config.get(step) for name in names}
    others = {name for name, value in config.items() if value} - _NEUTRAL - _STEPS.keys() - {n for v in _STEPS.values() for n in v}
    told = all(isinstance(config.get(step), bool) for step in _STEPS) and all(config.get(name) is not None for name in used)
    size = config.get("size")
    return told and not others and bool(config["do_resize"]) and isinstance(size, Mapping) and set(size) == {"height", "width"}


def _cannot(why: str) -> UsageError:
    return UsageError("E0042", f"the model's preprocessor_config.json cannot be followed: {why}", where="infc run",
                      hint="prepare the input yourself and give it as an .npz file")


def _opened(path: Path) -> Image:
    """The photo, turned as its camera noted, in RGB. Its size is known, and held against the limit, before it is decoded."""
    try:
        from PIL import Image, ImageOps
    except ImportError:
        raise UsageError("E0043", "reading a photo needs a package that is missing: pillow", where=str(path),
                         hint="pip install pillow") from None
    try:
        with Image.open(path, formats=_FORMATS) as image:
            if image.width * image.height <= _MOST_PIXELS:
                return ImageOps.exif_transpose(image).convert("RGB")
            reason = f"{image.width}×{image.height} pixels are more than {_MOST_PIXELS}"
    except Exception as error:  # decoders raise whatever comes up
        reason = next(iter(str(error).splitlines()), type(error).__name__)
    raise UsageError("E0041", f"the photo cannot be used: {reason}", where=str(path), hint="give a .jpg or .png of usual size")


def _resized(image: Image, steps: Mapping[str, Any], longest: int) -> Image:
    if not steps["do_resize"]:
        return image
    size = steps["size"]
    crop = steps.get("crop_pct")
    if crop is None:
        return _to(image, _target(image, size, longest), steps)
    short = int(size["shortest_edge"])
    if short >= _WARPED:
        return _to(image, (short, short), steps)
    return _centre(_to(image, _target(image, {"shortest_edge": int(short / crop)}, longest), steps), (short, short))


def _target(image: Image, size: Any, longest: int) -> tuple[int, int]:
    """(height, width) of the resized photo."""
    if not isinstance(size, Mapping) or "shortest_edge" not in size:
        return _pair(size)
    low, high = sorted(image.size)
    wanted = size["shortest_edge"]
    if size.get("longest_edge"):
        return _within(image, wanted, min(size["longest_edge"], longest))
    pair = wanted, int(wanted * high / low)
    return pair if image.height <= image.width else pair[::-1]


def _within(image: Image, short: int, longest: int) -> tuple[int, int]:
    """As DETR resizes: the shorter edge ``short`` pixels, unless the other would exceed ``longest``."""
    height, width = image.height, image.width
    low, high = sorted((height, width))
    exact: float | None = None
    if high / low * short > longest:
        exact = longest * low / high
        short = round(exact)
    if low == short:
        return height, width
    other = int((short if exact is None else exact) * high / low)
    return (other, short) if width < height else (short, other)


def _pair(size: Any) -> tuple[int, int]:
    if isinstance(size, Mapping):
        return int(size["height"]), int(size["width"])
    return int(size), int(size)


def _to(image: Image, size: tuple[int, int], steps: Mapping[str, Any]) -> Image:
    from PIL.Image import Resampling

    height, width = size
    if min(size) < 1 or height * width > _MOST_PIXELS:
        raise UsageError("E0041", f"the photo cannot be used: {image.width}×{image.height} pixels would become {width}×{height}",
                         where="infc run", hint="cut it to a usual shape")
    return image.resize((width, height), Resampling(steps["resample"]))


def _cropped(image: Image, steps: Mapping[str, Any]) -> Image:
    return _centre(image, _pair(steps["crop_size"])) if steps["do_center_crop"] else image


def _centre(image: Image, size: tuple[int, int]) -> Image:
    """The middle, with black around it where the photo is smaller."""
    height, width = size
    if not (0 < height <= _LONGEST and 0 < width <= _LONGEST):
        raise ValueError(f"a crop of {height}×{width}")
    top, left = (image.height - height) // 2, (image.width - width) // 2
    return image.crop((left, top, left + width, top + height))


def _normalised(image: Image, steps: Mapping[str, Any]) -> NDArray[np.float32]:
    values = np.asarray(image)
    if steps["do_rescale"]:
        values = (values.astype(np.float64) * float(steps["rescale_factor"])).astype(np.float32)
    if steps.get("rescale_offset"):
        values = values - np.float32(1)
    values = values.astype(np.float32)
    mean, std = (np.array(steps[name], np.float32) for name in ("image_mean", "image_std"))
    if steps["do_normalize"]:
        values = (values - mean) / std
    if steps.get("include_top"):
        values = values / std
    if steps.get("do_flip_channel_order"):
        values = values[..., ::-1]
    return np.ascontiguousarray(np.moveaxis(values, -1, 0))
