"""One sample as the model takes it: through its own tokenizer or preprocessor, one row, without padding where sizes may vary."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from infc.compiler import recordings
from infc.compiler.artifact.io import IoSpec, IoSymbol, IoTensor
from infc.compiler.artifact.layout import DIM_PADS
from infc.compiler.calibrate.data import Arrays, Item
from infc.compiler.errors import UsageError
from infc.compiler.recordings import FIELDS, dtype_of

_FAST = "tokenizer.json"


class Preparer:
    """``files`` are the model's own (tokenizer.json, preprocessor_config.json …), ``mask`` the input that is zero at padding,
    ``indices`` as the interface's.

    Calling it with an item gives every input. Texts are cut to the largest profile. The first row is the sample; others are there
    where the model's batch is of a fixed size, and repeat it.
    """

    def __init__(self, spec: IoSpec, files: Mapping[str, bytes], mask: str | None = None,
                 indices: Mapping[str, str] | None = None) -> None:
        self._spec = replace(spec, symbols=[IoSymbol(s.name, DIM_PADS) for s in spec.symbols])  # none is held against a profile
        self._files, self._mask, self._indices = files, mask, indices or {}
        self._inputs = {t.name: t for t in spec.inputs}
        self._fast: Any = None

    def __call__(self, item: Item) -> Arrays:
        """Raises UsageError E0806 for what the model does not take, and as ``recordings.inputs``."""
        if isinstance(item.content, str):
            given = self._text(item.content)
        elif isinstance(item.content, Path):
            given = recordings.inputs(item.content, self._spec, self._files)
        else:
            given = self._rows(item.content)
        rows = next((len(a) for a in given.values() if a.ndim), 1)
        return {name: given[name] if name in given else self._left_out(tensor, given, rows)
                for name, tensor in self._inputs.items()}

    def _text(self, text: str) -> Arrays:
        ids = self._inputs.get("input_ids")
        if ids is None or len(ids.dims) != 2 - bool(self._indices):
            raise UsageError("E0806", "the model does not take token ids", where="--calibration",
                             hint=f"give {', '.join(self._inputs)} as an .npz file, or photos or recordings in a folder")
        encoded = self._tokenizer(recordings.largest(self._spec, ids.dims[-1])).encode(text)
        if self._indices:
            return self._sequence(encoded.ids)
        length = _size(ids.dims[1], len(encoded.ids))
        found = {}
        for name, tensor in self._inputs.items():
            if name in FIELDS:
                values = getattr(encoded, FIELDS[name])[:length]
                row = np.zeros((_size(tensor.dims[0], 1), length), dtype_of(tensor))
                row[:, :len(values)] = values
                found[name] = row
        return found

    def _sequence(self, ids: list[int]) -> Arrays:
        """One sequence of tokens, each one's place, and of other places as many as a profile has, evenly apart: up to the last one
        whose next token is known."""
        tensor = self._inputs["input_ids"]
        found = {"input_ids": np.array(ids or [0], dtype_of(tensor))}
        tokens = len(found["input_ids"])
        for name in self._indices:
            one = self._inputs[name]
            places = tokens if one.dims == tensor.dims else max(tokens - 1, 1)
            count = min(places, recordings.largest(self._spec, one.dims[0]))
            found[name] = np.linspace(places - 1, 0, count).round()[::-1].astype(dtype_of(one))
        return found

    def _tokenizer(self, longest: int) -> Any:
        if self._fast is None:
            from tokenizers import Tokenizer

            if _FAST not in self._files:
                raise UsageError("E0806", "texts are given, and the model brings no tokenizer.json", where="--calibration",
                                 hint="put tokenizer.json beside the model, or give token ids as an .npz file")
            try:
                self._fast = Tokenizer.from_str(self._files[_FAST].decode())
            except Exception as error:  # the library raises nothing narrower
                raise UsageError("E0116", f"not a tokenizer: {error}", where=_FAST, hint="download the file again") from error
            self._fast.no_padding()
            self._fast.enable_truncation(longest)
        return self._fast

    def _rows(self, content: Arrays) -> Arrays:
        """Of an .npz file: checked against the model, padding at the end cut off."""
        unknown = [n for n in content if n not in self._inputs]
        if unknown:
            raise UsageError("E0806", f"the model has no input '{unknown[0][:100]}'", where="the .npz file",
                             hint=f"its inputs are: {', '.join(self._inputs)}")
        cut = self._cut(content)
        return {name: self._row(self._inputs[name], array) for name, array in cut.items()}

    def _cut(self, content: Arrays) -> Arrays:
        """Without the end that the mask hides, where the model takes shorter rows."""
        mask = content.get(self._mask or "")
        name = self._inputs[self._mask].dims[-1] if self._mask and mask is not None and mask.ndim == 1 else None
        if mask is None or not isinstance(name, str):
            return content
        real = np.flatnonzero(mask)
        length = max(1, int(real[-1]) + 1 if real.size else 0)
        cut = dict(content)
        for key, array in content.items():
            dims = self._inputs[key].dims[1:]
            if name in dims and len(dims) == array.ndim:
                cut[key] = array[tuple(slice(length) if d == name else slice(None) for d in dims)]
        return cut

    def _row(self, tensor: IoTensor, array: NDArray[Any]) -> NDArray[Any]:
        dtype = dtype_of(tensor)
        fits = array.ndim == len(tensor.dims) - 1 and all(isinstance(d, str) or d == n
                                                          for d, n in zip(tensor.dims[1:], array.shape, strict=True))
        exact = dtype.kind == "f" or array.dtype.kind in "biu"
        if not fits or not exact or not all(array.shape):
            raise UsageError("E0806", f"a row of '{tensor.name}' is {array.dtype} {list(array.shape)}, the model takes {dtype} "
                             f"{list(tensor.dims[1:])}", where="the .npz file", hint="give a sample a row, of the input's type")
        if tensor.range and array.size and not (tensor.range[0] <= array.min() and array.max() <= tensor.range[1]):
            raise UsageError("E0806", f"a value of '{tensor.name}' is outside of {list(tensor.range)}", where="the .npz file",
                             hint="give what the model's own tokenizer or preprocessor makes")
        for name, size in zip(tensor.dims[1:], array.shape, strict=True):
            most = recordings.largest(self._spec, name)
            if size > most:
                raise UsageError("E0806", f"a row of '{tensor.name}' has {size} along {name}, the largest profile {most}",
                                 where="the .npz file", hint=f"give a --profile with {name}={size}, or shorter rows")
        return np.repeat(array.astype(dtype)[None], _size(tensor.dims[0], 1), axis=0)

    def _left_out(self, tensor: IoTensor, given: Arrays, rows: int) -> NDArray[Any]:
        if not tensor.optional:
            raise UsageError("E0806", f"the data gives no value for input '{tensor.name}'", where="--calibration",
                             hint="give all inputs as an .npz file")
        sizes = {d: n for name, array in given.items() for d, n in zip(self._inputs[name].dims, array.shape, strict=True)
                 if isinstance(d, str)}
        shape = [d if isinstance(d, int) else sizes.get(d, rows if n == 0 else recordings.largest(self._spec, d))
                 for n, d in enumerate(tensor.dims)]
        return np.full(shape, tensor.fill, dtype_of(tensor))


def _size(axis: int | str, wanted: int) -> int:
    """Along an axis that varies, as many as there are: the graph has not been given a profile's sizes yet."""
    return wanted if isinstance(axis, str) else axis

