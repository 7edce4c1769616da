"""Runs an operator's kernel on a device."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

import numpy as np

from tests.gpu.driver import Device
from tests.gpu.operators import Operator, dtypes

Arrays = Mapping[str, np.ndarray]


def types_of(op: Operator, inputs: Arrays, attributes: Mapping[str, float]) -> dict[str, str]:
    """The dtype of each type variable."""
    result = {}
    for name, variable in op.types.items():
        if variable.attribute:
            wanted = attributes[variable.attribute]
            result[name] = next(c for c in variable.choices if dtypes.DTYPES[c].onnx == wanted)
        else:
            array = next(inputs[i.name] for i in op.inputs if i.dtype == name)
            result[name] = next(c for c in variable.choices if dtypes.DTYPES[c].storage == array.dtype)
    return result


class Launch:
    """An operator on inputs that lie in the device's memory: launch as often as you like, then read ``outputs``."""

    def __init__(
        self, device: Device, library: ctypes.c_void_p, op: Operator, inputs: Arrays, attributes: Mapping[str, float]
    ) -> None:
        shapes = {name: array.shape for name, array in inputs.items()}
        types = types_of(op, inputs, attributes)
        symbols = op.bind(shapes, attributes)
        entry = op.kernel(symbols, types)
        self._device, self._op = device, op
        self._shapes = op.output_shapes(shapes, symbols)
        self._storage = {o.name: dtypes.DTYPES[types.get(o.dtype, o.dtype)].storage for o in op.outputs}
        sizes = {n: int(np.prod(s)) * np.dtype(self._storage[n]).itemsize for n, s in self._shapes.items()}
        self._memory = {name: device.upload(array) for name, array in inputs.items()}
        self._memory |= {name: device.allocate(size) for name, size in sizes.items()}
        self.bytes = sum(a.nbytes for a in inputs.values()) + sum(sizes.values())  # that must be moved at least
        self._grid, self._block = op.grid(entry, symbols)
        self._kernel = device.kernel(library, entry.name)
        self.name = entry.name
        tensors = {t.name for t in (*op.inputs, *op.outputs)}
        self._arguments: list[Any] = []
        for name in op.arguments:
            if name in tensors:
                self._arguments.append(self._memory.get(name, ctypes.c_uint64()))
            elif name in symbols:
                self._arguments.append(ctypes.c_int32(symbols[name]))
            else:
                self._arguments.append(ctypes.c_float(attributes[name]))

    def upload(self, inputs: Arrays) -> None:
        """Other values of the same shapes, where the last ones are."""
        for name, array in inputs.items():
            self._device.copy_in(self._memory[name], array)

    def launch(self) -> None:
        if self._grid:
            self._device.launch(self._kernel, self._grid, self._block, self._arguments)

    def outputs(self) -> dict[str, np.ndarray]:
        return {n: self._device.download(self._memory[n], s, self._storage[n]) for n, s in self._shapes.items()}


def run(
    device: Device, library: ctypes.c_void_p, op: Operator, inputs: Arrays, attributes: Mapping[str, float]
) -> dict[str, np.ndarray]:
    """One launch. Frees what the device held."""
    launch = Launch(device, library, op, inputs, attributes)
    launch.launch()
    outputs = launch.outputs()
    device.free()
    return outputs
