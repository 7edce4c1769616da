"""Weights that a checkpoint stores in fewer bits, put into the exported graph as they are stored."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

Array = np.ndarray[Any, Any]
_KINDS = {"int4": ir.DataType.INT4, "uint4": ir.DataType.UINT4, "int8": ir.DataType.INT8, "uint8": ir.DataType.UINT8,
          "fp8": ir.DataType.FLOAT8E4M3FN}


@dataclass(frozen=True)
class Stored:
    """A Linear's weight: ``numbers`` ``[N, K]`` of ``kind``, ``scale`` f32 ``[N, G]`` (or ``[1, 1]``) and ``zero`` like it. Numbers
    of 4 bits lie in bytes, those of fp8 are its bits."""

    kind: str
    numbers: Array
    scale: Array
    zero: Array | None

    @classmethod
    def of(cls, kind: str, numbers: Array, scale: Array, zero: Array | None) -> Stored:
        """Raises ValueError for sizes that do not fit."""
        scale = np.asarray(scale, np.float32).reshape(-1, 1) if scale.ndim < 2 else np.asarray(scale, np.float32)
        n, k = numbers.shape
        if zero is not None:
            zero = zero.reshape(scale.shape)
            zero = None if not zero.any() and kind.startswith("int") else zero
        if scale.shape[0] not in (1, n) or (scale.shape[0] == 1 and scale.shape[1] != 1) or k % scale.shape[1]:
            raise ValueError(f"scales {list(scale.shape)} for a weight {[n, k]}")
        if not np.isfinite(scale).all():
            raise ValueError("scales that are not finite")
        return cls(kind, np.ascontiguousarray(numbers), scale, zero)

    @property
    def block(self) -> int:
        """Neighbours along K with one scale."""
        return int(self.numbers.shape[1] // self.scale.shape[1])

    def restore(self) -> Array:
        """f32 ``[N, K]``."""
        data = self.numbers.view(_KINDS["fp8"].numpy()) if self.kind == "fp8" else self.numbers
        n, k = data.shape
        groups = data.reshape(n, -1, self.block).astype(np.float32)
        if self.zero is not None:
            groups -= self.zero.astype(np.float32)[:, :, None]
        return (groups * self.scale[:, :, None]).reshape(n, k)


def insert(model: ir.Model, weights: Mapping[str, Stored]) -> list[str]:
    """Initializers that have the numbers of a stored weight, ``[N, K]`` or transposed, are read from what is stored; their names.
    They are told by their contents: exporters name, transpose and join weights as they like."""
    if not weights:
        return []
    known: dict[Key, tuple[str, bool]] = {}
    for name, weight in weights.items():
        whole = weight.restore()
        known |= {_key(whole.T): (name, True), _key(whole): (name, False)}
    done = []
    for name, value in list(model.graph.initializers.items()):
        tensor = value.const_value
        if tensor is None or tensor.shape.rank() != 2 or tensor.dtype != ir.DataType.FLOAT or value.is_graph_output():
            continue
        found = known.get(_key(tensor.numpy()))
        if found is not None and value.uses():
            _replace(model.graph, value, weights[found[0]], found[1])
            done.append(name)
    return done


Key = tuple[tuple[int, ...], bytes]


def _key(data: Array) -> Key:
    return data.shape, hashlib.sha256(np.ascontiguousarray(data).reshape(-1).view(np.uint8).data).digest()


def _replace(graph: ir.Graph, value: ir.Value, weight: Stored, transposed: bool) -> None:
    name, dtype = value.name or "", _KINDS[weight.kind]
    blocked = weight.scale.shape[1] > 1 or weight.kind.endswith("4")
    parts = [("numbers", weight.numbers, dtype)]
    for what, data, kind in (("scale", weight.scale, ir.DataType.FLOAT), ("zero", weight.zero, dtype)):
        if data is not None and blocked:
            parts.append((what, np.broadcast_to(data, (weight.numbers.shape[0], data.shape[1])), kind))
        elif data is not None:
            parts.append((what, data.reshape(-1) if data.size > 1 else data.reshape(()), kind))
    inputs = [_constant(graph, f"{name}/{what}", data.T if transposed else data, kind) for what, data, kind in parts]
    k_axis = 0 if transposed else 1
    attributes = {"axis": k_axis, "block_size": weight.block} if blocked else {"axis": 1 - k_axis}
    output = ir.Value(name=f"{name}/float", type=value.type, shape=value.shape)
    node = ir.node("DequantizeLinear", inputs, attributes, outputs=[output], name=f"{name}/dequantize")
    graph.insert_before(graph[0], node)
    ir.convenience.replace_all_uses_with(value, output)
    graph.initializers.pop(name)


def _constant(graph: ir.Graph, name: str, data: Array, dtype: ir.DataType) -> ir.Value:
    data = np.ascontiguousarray(data)
    if dtype in (ir.DataType.INT4, ir.DataType.UINT4):
        nibbles = data.reshape(-1).view(np.uint8) & 15
        nibbles = np.append(nibbles, np.zeros(nibbles.size % 2, np.uint8))
        packed = nibbles[0::2] | nibbles[1::2] << 4
        tensor: ir.TensorProtocol = ir.PackedTensor(packed, dtype, shape=ir.Shape(data.shape), name=name)
    elif dtype == ir.DataType.FLOAT8E4M3FN:
        tensor = ir.tensor(data.view(dtype.numpy()), dtype=dtype, name=name)
    else:
        tensor = ir.tensor(data, dtype=dtype, name=name)
    value = ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape(data.shape), const_value=tensor)
    graph.register_initializer(value)
    return value
