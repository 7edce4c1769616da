"""Tensors of a made-up library that speaks DLPack: with any device, type and strides, at any address."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

CPU, CUDA, CUDA_HOST, ROCM, CUDA_MANAGED = 1, 2, 3, 10, 13
READ_ONLY, COPIED = 1, 2
KINDS = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}

Array = np.ndarray[Any, np.dtype[Any]]


class Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32), ("ndim", ctypes.c_int32),
                ("kind", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16), ("shape", ctypes.c_void_p),
                ("strides", ctypes.c_void_p), ("byte_offset", ctypes.c_uint64)]


class Managed(ctypes.Structure):
    _fields_ = [("tensor", Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class Versioned(ctypes.Structure):
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p),
                ("flags", ctypes.c_uint64), ("tensor", Tensor)]


_lenders: list[Foreign] = []  # a capsule may outlive what made it, and needs its memory
Destructor = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_new = ctypes.pythonapi.PyCapsule_New
_new.restype, _new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


class Foreign:
    """Neither a buffer nor numpy's. ``flags`` and ``version`` make a versioned capsule; ``lent`` counts capsules that live."""

    def __init__(self, address: int, shape: tuple[int, ...], dtype: Any = np.float32, device: tuple[int, int] = (CPU, 0), *,
                 strides: tuple[int, ...] | None = None, offset: int = 0, kind: int | None = None, bits: int | None = None,
                 lanes: int = 1, flags: int = 0, version: int | None = None) -> None:
        dtype = np.dtype(dtype)
        self.address, self.shape, self.device, self.flags, self.version = address, shape, device, flags, version
        self.lent = 0
        self.asked: list[dict[str, Any]] = []  # of each export
        self._shape = (ctypes.c_int64 * len(shape))(*shape)
        self._strides = (ctypes.c_int64 * len(shape))(*strides) if strides else None
        sizes = ctypes.addressof(self._shape), ctypes.addressof(self._strides) if self._strides else None
        self._tensor = Tensor(address, *device, len(shape), KINDS[dtype.kind] if kind is None else kind, bits or 8 * dtype.itemsize,
                              lanes, *sizes, offset)
        self._destroy = Destructor(self._returned)
        self._structures: list[Any] = []
        _lenders.append(self)

    def _returned(self, capsule: int) -> None:
        self.lent -= 1

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, **asked: Any) -> Any:
        self.asked.append(asked)
        if self.version is None and "max_version" in asked:
            raise TypeError("__dlpack__() got an unexpected keyword argument 'max_version'")
        structure = (Managed(self._tensor) if self.version is None
                     else Versioned(self.version, 0, None, None, self.flags, self._tensor))
        self._structures.append(structure)
        self.lent += 1
        name = b"dltensor" if self.version is None else b"dltensor_versioned"
        return _new(ctypes.addressof(structure), name, ctypes.cast(self._destroy, ctypes.c_void_p))


def lend(array: Array, **changes: Any) -> Foreign:
    """The array's memory in the CPU, which the caller keeps alive."""
    return Foreign(array.ctypes.data, array.shape, array.dtype, **changes)


class Numpys:
    """numpy's own export, without its buffer."""

    def __init__(self, array: Array, refuse: Callable[[], None] = lambda: None) -> None:
        self.array, self.shape, self.refuse = array, array.shape, refuse

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()

    def __dlpack__(self, **asked: Any) -> Any:
        self.refuse()
        return self.array.__dlpack__(**asked)
