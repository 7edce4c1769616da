"""Inputs of a model from what people record: a photo or a recording, prepared as the model's own files say."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from infc.compiler import audio, image, preprocessor
from infc.compiler.artifact.golden import NUMPY
from infc.compiler.artifact.io import IoSpec, IoTensor
from infc.compiler.artifact.layout import DIM_PADS
from infc.compiler.errors import UsageError

Arrays = dict[str, NDArray[Any]]
# Which field of an encoded text feeds which input, by the name transformers gives it.
FIELDS = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}


def dtype_of(tensor: IoTensor) -> np.dtype[Any]:
    """numpy's type for a tensor of the interface; bfloat16 is handed over as its 16 bits."""
    return np.dtype(NUMPY[tensor.dtype])


def largest(spec: IoSpec, axis: int | str) -> int:
    """The size along ``axis`` of the largest profile."""
    return axis if isinstance(axis, int) else max(p[axis] for p in spec.profiles)


def fit(spec: IoSpec, wanted: Mapping[int | str, int]) -> dict[int | str, int]:
    """The size to use along each axis for ``wanted`` entries: of those that must match exactly, the sizes of the first profile that
    is large enough for all. An axis that is a number stays what it is.

    Raises UsageError E0048 if no profile takes them together.
    """
    named = {str(axis): size for axis, size in wanted.items() if isinstance(axis, str)}
    pads = {s.name for s in spec.symbols if s.policy == DIM_PADS}
    profile = next((p for p in spec.profiles if all(p[axis] >= size for axis, size in named.items())), None)
    if profile is None:
        sizes = ",".join(f"{axis}={size}" for axis, size in named.items())
        raise UsageError("E0048", f"no profile of the engine takes {sizes}", where="infc run",
                         hint=f"build it with one that does: infc build MODEL --profile {sizes}")
    return {axis: axis if isinstance(axis, int) else size if axis in pads else profile[axis] for axis, size in wanted.items()}


def inputs(path: Path, spec: IoSpec, files: Mapping[str, bytes], tell: Callable[[str], None] = lambda line: None,
           beside: Mapping[int | str, int] | None = None) -> Arrays:
    """Inputs for the photo or recording, one row, repeated where a dimension must match exactly. ``files`` are the model's own, by
    name; ``tell`` hears of a recording that is cut or padded; ``beside`` has the sizes of a text that is given too.

    Raises UsageError E0031 for a model that takes something else, E0046 and E0047, and as ``image.pixels`` and ``audio.samples``.
    """
    kind, names = (preprocessor.IMAGE, ("pixel_values",)) if path.suffix.lower() in image.SUFFIXES else \
        (preprocessor.AUDIO, ("input_values", "input_features"))
    tensor = next((t for t in spec.inputs if t.name in names), None)
    others = [t.name for t in spec.inputs if t is not tensor and not t.optional and not (beside and t.name in FIELDS)]
    if tensor is None or others:
        hint = f"give {', '.join(t.name for t in spec.inputs)} as an .npz file"
        raise UsageError("E0031", f"the model does not take {' or '.join(names)} alone", where=str(path),
                         hint="give texts too, with --text" if tensor and others == ["input_ids"] else hint)
    settings = preprocessor.settings(files, kind)
    if not settings:
        raise UsageError("E0046", "the artifact does not say how its model's input is prepared", where=str(path),
                         hint="build it from a directory with preprocessor_config.json, or give the input as an .npz file")
    if tensor.name == "input_values":
        return _heard(path, tensor, spec, settings, tell)
    row = _prepared(path, tensor, settings, tell).astype(dtype_of(tensor))
    sizes = fit(spec, {tensor.dims[0]: 1, **dict(zip(tensor.dims[1:], row.shape, strict=False)), **(beside or {})})
    batch, *wanted = (sizes[d] for d in tensor.dims)
    mask = next((t for t in spec.inputs if t.name == "pixel_mask"), None)
    if mask and len(wanted) == row.ndim and all(n <= w for n, w in zip(row.shape, wanted, strict=True)):
        place = np.zeros(wanted[1:], dtype_of(mask))
        place[:row.shape[1], :row.shape[2]] = 1
        if not place.all():
            tell(f"the photo is {row.shape[2]}×{row.shape[1]} pixels of the {wanted[2]}×{wanted[1]} that the engine takes; a mask "
                 "says where it is")
        row = np.pad(row, [(0, w - n) for n, w in zip(row.shape, wanted, strict=True)])
        return {tensor.name: _rows(row, batch), mask.name: _rows(place, batch)}
    if row.shape != tuple(wanted):
        raise UsageError("E0047", f"prepared as the model's files say it is {list(row.shape)}, the engine takes {wanted}",
                         where=str(path), hint="give another photo or recording, or its values as an .npz file")
    return {tensor.name: _rows(row, batch)}


def _rows(row: NDArray[Any], count: int) -> NDArray[Any]:
    return np.repeat(row[None], count, axis=0)


def _heard(path: Path, tensor: IoTensor, spec: IoSpec, settings: Mapping[str, Any], tell: Callable[[str], None]) -> Arrays:
    """Rows of ``input_values`` with silence after the end, and the mask where the model's files want one: models with a norm over
    the whole recording are made to go without."""
    mask = next((t for t in spec.inputs if t.name == "attention_mask" and t.dims == tensor.dims), None)
    mask = mask if settings.get("return_attention_mask") else None
    sizes: dict[int | str, int] = {}

    def size(count: int) -> int:
        sizes.update(fit(spec, {tensor.dims[0]: 1, tensor.dims[1]: count}))
        return sizes[tensor.dims[1]]

    row, real = audio.samples(path, settings, largest(spec, tensor.dims[1]), tell, size, masked=mask is not None)
    batch = sizes[tensor.dims[0]]
    found = {tensor.name: _rows(row.astype(dtype_of(tensor)), batch)}
    if mask is not None:
        found[mask.name] = _rows((np.arange(row.size) < real).astype(dtype_of(mask)), batch)
    return found


def _prepared(path: Path, tensor: IoTensor, settings: Mapping[str, Any], tell: Callable[[str], None]) -> NDArray[Any]:
    """One row of ``tensor``."""
    if tensor.name == "pixel_values":
        edges = [n for n in tensor.dims[2:] if isinstance(n, int)]
        return image.pixels(path, settings, *([min(edges)] if edges else []))
    return audio.log_mel(path, settings, tell)
