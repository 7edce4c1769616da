"""Weights of large models lie in files and take memory while they are read: a build makes several graphs of one model."""

from __future__ import annotations

import contextlib
import ctypes
import os
import tempfile
from collections.abc import Collection
from pathlib import Path

import numpy as np
import onnx_ir as ir

LARGE = 1 << 27  # bytes of weights, in f32, from which on it is worth the time
_PIECE = 1 << 16  # bytes from which on a tensor goes to the file
_MADV_DONTNEED = 4
_MAPS = Path("/proc/self/smaps")


def is_large(model: ir.Model) -> bool:
    """Of the weights as f32: stored in fewer bits they are widened where the graph runs."""
    return 4 * sum(v.const_value.size for v in model.graph.initializers.values() if v.const_value is not None) >= LARGE


def shelve(model: ir.Model) -> None:
    """Moves a large graph's weights to a temporary file, which lasts as long as they do. Each reading maps it anew, and what was
    read takes memory until the array is let go."""
    if not is_large(model):
        return
    folder = tempfile.TemporaryDirectory(prefix="infc-weights-")
    path = Path(folder.name) / "weights"
    moved: dict[int, ir.LazyTensor] = {}
    with path.open("wb") as file:
        for value in model.graph.initializers.values():
            tensor = value.const_value
            if tensor is None or tensor.nbytes < _PIECE or isinstance(tensor, ir.LazyTensor) or tensor.dtype != ir.DataType.FLOAT:
                continue
            if id(tensor) not in moved:
                offset = file.tell()
                file.write(np.ascontiguousarray(tensor.numpy()).data)
                moved[id(tensor)] = _lazy(folder, path, offset, tensor)
            value.const_value = moved[id(tensor)]


def _lazy(folder: tempfile.TemporaryDirectory[str], path: Path, offset: int, tensor: ir.TensorProtocol) -> ir.LazyTensor:
    name, shape = tensor.name, ir.Shape(tensor.shape.numpy())

    def read() -> ir.TensorProtocol:
        assert folder  # which removes the file when nothing refers to it any more
        return ir.Tensor(np.asarray(np.memmap(path, np.float32, "r", offset, tuple(shape.numpy()))), name=name)

    return ir.LazyTensor(read, tensor.dtype, shape, name=name)


def files(folder: Path) -> frozenset[str]:
    """Those of a folder by the names that the system has for what is mapped."""
    return frozenset(os.path.realpath(p) for p in folder.iterdir())


def let_go(files: Collection[str]) -> None:
    """Gives back the memory of mapped files, whoever mapped them, where no page was written to: they are read again from the file
    when somebody looks."""
    if not _MAPS.exists():
        return
    libc = ctypes.CDLL(None)
    begin = end = 0
    for line in _MAPS.read_text(errors="replace").splitlines():
        key, *rest = line.split(maxsplit=5)
        if not key.endswith(":"):
            mapped = len(rest) == 5 and rest[4] in files
            begin, end = (int(n, 16) for n in key.split("-")) if mapped else (0, 0)
        elif key == "Anonymous:" and end and rest[0] == "0":
            libc.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), _MADV_DONTNEED)


def trim() -> None:
    """Gives what was freed back to the system: arrays of some megabytes come from a heap that only shrinks at its end."""
    with contextlib.suppress(AttributeError):  # of a C library that is not GNU's
        ctypes.CDLL(None).malloc_trim(0)
