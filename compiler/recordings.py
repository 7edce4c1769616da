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


def fit(spec: IoSpec, axis: int | str, wanted: int) -> int:
    """The size to use along ``axis`` for ``wanted`` entries."""
    if isinstance(axis, int):
        return axis
    if next(s.policy for s in spec.symbols if s.name == axis) == DIM_PADS:
        return wanted
    return min(p[axis] for p in spec.profiles if p[axis] >= wanted)


def inputs(path: Path, spec: IoSpec, files: Mapping[str, bytes], tell: Callable[[str], None] = lambda line: None) -> Arrays:
    """Inputs for the photo or recording, one row, repeated where a dimension must match exactly. ``files`` are the model's own, by
    name; ``tell`` hears of a recording that is cut.

    Raises UsageError E0031 for a model that takes something else, E0046 and E0047, and as ``image.pixels`` and ``audio.samples``.
    """
    kind, names = (preprocessor.IMAGE, ("pixel_values",)) if path.suffix.lower() in image.SUFFIXES else \
        (preprocessor.AUDIO, ("input_values", "input_features"))
    tensor = next((t for t in spec.inputs if t.name in names), None)
    if tensor is None or any(t is not tensor and not t.optional for t in spec.inputs):
        raise UsageError("E0031", f"the model does not take {' or '.join(names)} alone", where=str(path),
                         hint=f"give {', '.join(t.name for t in spec.inputs)} as an .npz or .json file")
    settings = preprocessor.settings(files, kind)
    if not settings:
        raise UsageError("E0046", "the artifact does not say how its model's input is prepared", where=str(path),
                         hint="build it from a directory with preprocessor_config.json, or give the input as an .npz file")
    row = _prepared(path, tensor, spec, settings, tell).astype(dtype_of(tensor))
    wanted = tuple(row.shape[i] if isinstance(d, str) else d for i, d in enumerate(tensor.dims[1:]))
    batch = fit(spec, tensor.dims[0], 1)
    mask = next((t for t in spec.inputs if t.name == "pixel_mask"), None)
    if mask and len(wanted) == row.ndim and all(n <= w for n, w in zip(row.shape, wanted, strict=True)):
        place = np.zeros(wanted[1:], dtype_of(mask))
        place[:row.shape[1], :row.shape[2]] = 1
        row = np.pad(row, [(0, w - n) for n, w in zip(row.shape, wanted, strict=True)])
        return {tensor.name: _rows(row, batch), mask.name: _rows(place, batch)}
    if row.shape != wanted:
        raise UsageError("E0047", f"prepared as the model's files say it is {list(row.shape)}, the engine takes {list(wanted)}",
                         where=str(path), hint="give another photo or recording, or its values as an .npz file")
    return {tensor.name: _rows(row, batch)}


def _rows(row: NDArray[Any], count: int) -> NDArray[Any]:
    return np.repeat(row[None], count, axis=0)


def _prepared(path: Path, tensor: IoTensor, spec: IoSpec, settings: Mapping[str, Any], tell: Callable[[str], None]) -> NDArray[Any]:
    """One row of ``tensor``."""
    if tensor.name == "pixel_values":
        edges = [n for n in tensor.dims[2:] if isinstance(n, int)]
        return image.pixels(path, settings, *([min(edges)] if edges else []))
    if tensor.name == "input_features":
        return audio.log_mel(path, settings, tell)
    signal = audio.samples(path, settings, largest(spec, tensor.dims[-1]), tell)
    return np.pad(signal, (0, fit(spec, tensor.dims[-1], signal.size) - signal.size))
