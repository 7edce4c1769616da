"""What a model takes and gives, as the exporter found it: the graph's inputs and outputs with their named dimensions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from infc.compiler.artifact.golden import NUMPY

_EXTENSIONS = {"bf16": "bfloat16", "f8e4m3fn": "float8_e4m3fn", "f8e4m3fnuz": "float8_e4m3fnuz", "f8e5m2": "float8_e5m2",
               "f8e5m2fnuz": "float8_e5m2fnuz", "f8e8m0": "float8_e8m0fnu", "f4e2m1": "float4_e2m1fn", "u4": "uint4", "i4": "int4",
               "u2": "uint2", "i2": "int2"}
# What integers are drawn from where no range is declared, narrower where the model cannot run with them: they may index something.
# Powers and quotients of the first ones are numbers of 32 bits.
INTEGERS = ((1, 7), (0, 3), (0, 1), (0, 0), (1, 1))


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
        return np.dtype(NUMPY[self.dtype])

    @property
    def element(self) -> np.dtype[Any]:
        """What the elements are: ``numpy``, or a type of numpy's extension ml_dtypes whose bits are carried in that."""
        if self.dtype not in _EXTENSIONS:
            return self.numpy
        import ml_dtypes

        found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, _EXTENSIONS[self.dtype]))
        return found

    def shape(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """The dims with names replaced by their sizes."""
        return tuple(d if isinstance(d, int) else sizes[d] for d in self.dims)


@dataclass(frozen=True)
class Interface:
    """``mask`` names the input that is zero at padding; ``limits`` the largest size the model defines for a dimension.

    ``lengths`` gives the size of a dimension that the model was made for, where that is less than its limit; ``examples`` one for
    exporting and quick comparisons, where a few would not do; ``shortest`` the least that a text or recording may be of it, where
    that is not the few tokens of a text. ``rounding`` is the relative step of the 16-bit floats that the
    model computes in, 0 if in none. ``indices`` names the inputs of places along a dimension, which are as many of its last ones as
    there are; ``context`` is the most tokens of a sequence, of a model that keeps a cache; ``notes`` is what to tell of the export;
    ``integers`` is what integers without a range are drawn from, one of INTEGERS; ``steps`` is the step of each quantised output.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    task: str = ""
    mask: str | None = None
    limits: Mapping[str, int] = field(default_factory=dict)
    lengths: Mapping[str, int] = field(default_factory=dict)
    examples: Mapping[str, int] = field(default_factory=dict)
    shortest: Mapping[str, int] = field(default_factory=dict)
    rounding: float = 0.0
    indices: Mapping[str, str] = field(default_factory=dict)
    context: int = 0
    notes: tuple[str, ...] = ()
    integers: tuple[int, int] = INTEGERS[0]
    steps: Mapping[str, float] = field(default_factory=dict)

    @property
    def symbols(self) -> tuple[str, ...]:
        """Names of the dimensions that vary, in order of appearance."""
        return tuple(dict.fromkeys(d for t in self.inputs for d in t.dims if isinstance(d, str)))

    @property
    def derived(self) -> tuple[str, ...]:
        """Names of the outputs' dimensions that are no input's: their sizes follow from the profile."""
        names = dict.fromkeys(d for t in self.outputs for d in t.dims if isinstance(d, str))
        return tuple(d for d in names if d not in self.symbols)

    def places(self) -> dict[str, str]:
        """Where the dimensions that vary are, for people: input and axis."""
        found: dict[str, list[str]] = {}
        for tensor in self.inputs:
            for axis, d in enumerate(tensor.dims):
                if isinstance(d, str):
                    found.setdefault(d, []).append(f"{tensor.name} axis {axis}")
        return {name: ", ".join(where) for name, where in found.items()}

    def input(self, name: str) -> TensorSpec:
        return next(t for t in self.inputs if t.name == name)

    def mask_dims(self) -> tuple[int | str, ...]:
        return self.input(self.mask).dims if self.mask else ()
