"""What a model takes and gives, as the exporter found it: the graph's inputs and outputs with their named dimensions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

_NUMPY = {"f32": np.float32, "u8": np.uint8, "i8": np.int8, "u16": np.uint16, "i16": np.int16, "i32": np.int32, "i64": np.int64,
          "bool": np.bool_, "f16": np.float16, "f64": np.float64}


@dataclass(frozen=True)
class TensorSpec:
    """``dtype`` is a key of ``artifact.layout.DTYPES``; ``dims`` holds sizes and names of dimensions.

    ``fill`` is what an input reads as when it is left out, None if it is required; ``range`` what its values are held against.
    """

    name: str
    dtype: str
    dims: tuple[int | str, ...]
    fill: int | None = None
    range: tuple[int, int] | None = None

    @property
    def numpy(self) -> np.dtype[Any]:
        return np.dtype(_NUMPY[self.dtype])

    def shape(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """The dims with names replaced by their sizes."""
        return tuple(d if isinstance(d, int) else sizes[d] for d in self.dims)


@dataclass(frozen=True)
class Interface:
    """``mask`` names the input that is zero at padding; ``limits`` the largest size the model defines for a dimension.

    ``lengths`` gives the size of a dimension that the model was made for, where that is less than its limit.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    task: str = ""
    mask: str | None = None
    limits: Mapping[str, int] = field(default_factory=dict)
    lengths: Mapping[str, int] = field(default_factory=dict)

    @property
    def symbols(self) -> tuple[str, ...]:
        """Names of the dimensions that vary, in order of appearance."""
        return tuple(dict.fromkeys(d for t in self.inputs for d in t.dims if isinstance(d, str)))

    def input(self, name: str) -> TensorSpec:
        return next(t for t in self.inputs if t.name == name)

    def mask_dims(self) -> tuple[int | str, ...]:
        return self.input(self.mask).dims if self.mask else ()
