"""Places Q/DQ around MatMul, Gemm and Conv with constant weights, from ranges of activations: int8 and fp8; int4 for weights alone.

All of it is symmetric. Activations have one scale for the tensor. Everything else computes in f16, attention's inner products too.
A graph that carries Q/DQ keeps its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir

from infc.compiler.errors import UsageError
from infc.plugins.tensorrt.legalise.contract import Request
from infc.plugins.tensorrt.legalise.graph import FLOAT, FLOATS, add_constant, array, attribute, emit, is_op, name_of
from infc.plugins.tensorrt.legalise.ranges import check_ranges, scale

_PARTS = np.linspace(1, 0.6, 9)  # of a block's largest weight, which an int4 scale may stand for
# Weights along K that share an int4 scale. RTX 1.7 makes the same kernels for 128, 64 and 32; the least cosine to float32 among
# MiniLM's embeddings of eight sentences is 0.91, 0.93 and 0.94.
GROUP = 32


@dataclass(frozen=True)
class Kind:
    """A quantised type: ``largest`` and ``least`` are its clamps."""

    dtype: ir.DataType
    numpy: Any
    least: float
    largest: float

    def store(self, data: np.ndarray[Any, Any], scales: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """round(data / scales), to even, clamped."""
        scaled = data / scales
        if self.dtype != ir.DataType.FLOAT8E4M3FN:
            scaled = np.rint(scaled)
        return np.asarray(np.clip(scaled, self.least, self.largest).astype(self.numpy))


INT8 = Kind(ir.DataType.INT8, np.int8, -128, 127)
FP8 = Kind(ir.DataType.FLOAT8E4M3FN, ml_dtypes.float8_e4m3fn, -448, 448)
INT4 = Kind(ir.DataType.INT4, ml_dtypes.int4, -8, 7)
_KINDS = {"int8": INT8, "fp8": FP8, "int4": INT4}


def quantise(model: ir.Model, request: Request) -> list[str]:
    """Rewrites the graph in place; says which products were left in f16.

    int8 weights have a scale for each output channel. RTX then launches no more kernels than with one for the tensor, and in MiniLM
    77 instead of 89, as it merges the three products of an attention; the embedding's cosine to float32 is 0.98 instead of 0.88.

    Raises UsageError E0720 for int8 or fp8 without ranges, E0721 and E0722 for wrong ones, E0723 if nothing can be quantised.
    """
    check_ranges(model.graph, request.ranges)
    if request.precision not in _KINDS:
        return []
    if any(is_op(n, "QuantizeLinear", "DequantizeLinear") for n in model.graph):
        return ["the graph carries Q/DQ and keeps its own scales" + (": the ranges given were not used" if request.ranges else "")]
    if request.precision != "int4" and not request.ranges:
        raise UsageError("E0720", f"{request.precision} needs the ranges of activations", where="--precision",
                         hint='give --ranges FILE, JSON such as {"layer_norm": [-4.1, 3.9]}, or a model that carries Q/DQ')
    quantiser = _Quantiser(model, _KINDS[request.precision], request.ranges)
    for node in list(model.graph):
        if is_op(node, "MatMul", "Gemm", "Conv"):
            quantiser.visit(node)
    if not quantiser.count:
        why = "; ".join(quantiser.left[:3]) or "it has no product with constant weights"
        raise UsageError("E0723", f"nothing in the model can be computed in {request.precision}: {why}",
                         where="--precision", hint="give ranges for the inputs of MatMul, Gemm and Conv nodes")
    return quantiser.notes()


class _Quantiser:
    """``count`` products were quantised, ``left`` says of the others why not."""

    def __init__(self, model: ir.Model, kind: Kind, ranges: Mapping[str, tuple[float, float]]) -> None:
        self.graph, self.kind, self.ranges = model.graph, kind, ranges
        self.count = 0
        self.left: list[str] = []
        self.inner = 0
        self._activations: dict[ir.Value, ir.Value] = {}
        self._weights: dict[tuple[ir.Value, int], ir.Value] = {}  # by the axis that scales, or blocks, lie along

    def visit(self, node: ir.Node) -> None:
        """Quantises the product, or says why not."""
        x, w = node.inputs[0], node.inputs[1]
        assert x is not None
        assert w is not None
        weight = array(w)
        if weight is None or w.dtype not in FLOATS:
            self.inner += 1
        elif array(x) is not None or x.dtype not in FLOATS:
            self.left.append(f"'{name_of(node)}' multiplies constants")
        elif self.kind is INT4:
            self._weight_only(node, w, weight.astype(np.float32))
        elif x.name not in self.ranges:
            self.left.append(f"'{name_of(node)}': no range for its input '{x.name}'")
        else:
            node.replace_input_with(0, self._activation(x, node))
            node.replace_input_with(1, self._weight(node, w, weight.astype(np.float32)))
            self.count += 1

    @staticmethod
    def _as(value: ir.Value, dtype: ir.DataType | None, anchor: ir.Node) -> ir.Value:
        """Scales are float32 numbers; a graph may compute in another type by itself."""
        if dtype is None or dtype == value.dtype:
            return value
        return emit(anchor, "Cast", [value], dtype, value.shape, name=f"{value.name}/as_{dtype.name.lower()}", to=dtype)

    def _dq_name(self, value: ir.Value) -> str:
        """Another one for each axis."""
        return f"{value.name}/dq" + "'" * sum(v is value for v, _ in self._weights)

    def notes(self) -> list[str]:
        lines = [f"{self.count} products were quantised"]
        if self.left:
            lines.append(f"{len(self.left)} were left in f16: " + "; ".join(self.left[:5]) + ("; …" if len(self.left) > 5 else ""))
        if self.inner:
            lines.append(f"{self.inner} products of two activations stay in f16")
        return lines

    def _activation(self, x: ir.Value, anchor: ir.Node) -> ir.Value:
        """One Q and DQ for all that read the value."""
        if x not in self._activations:
            assert x.name is not None
            size, dtype = scale(self.ranges[x.name], self.kind.largest), self.kind.dtype
            number = add_constant(self.graph, f"{x.name}/scale", np.array(size, np.float32))
            wide = self._as(x, FLOAT, anchor)
            q = emit(anchor, "QuantizeLinear", [wide, number], dtype, x.shape, name=f"{x.name}/q", output_dtype=dtype)
            back = emit(anchor, "DequantizeLinear", [q, number], FLOAT, x.shape, name=f"{x.name}/dq")
            self._activations[x] = self._as(back, x.dtype, anchor)
        return self._activations[x]

    def _weight(self, node: ir.Node, value: ir.Value, data: np.ndarray[Any, Any]) -> ir.Value:
        """The stored weight and its DQ, with a scale for each output channel in int8, for the tensor in fp8."""
        channel = _channel_axis(node, data.ndim)
        if (value, channel) in self._weights:
            return self._weights[value, channel]
        by_channel = self.kind is INT8 and (data.ndim == 2 or is_op(node, "Conv"))
        others = tuple(a for a in range(data.ndim) if a != channel) if by_channel else None
        scales = _positive(np.abs(data).max(axis=others, keepdims=True) / self.kind.largest)
        stored = add_constant(self.graph, f"{value.name}/{self.kind.dtype.name.lower()}", self.kind.store(data, scales))
        flat = scales.reshape(-1) if by_channel else scales.reshape(())
        number = add_constant(self.graph, f"{value.name}/scale", flat)
        attributes = {"axis": channel} if by_channel else {}
        back = emit(node, "DequantizeLinear", [stored, number], FLOAT, data.shape, name=self._dq_name(value), **attributes)
        self._weights[value, channel] = self._as(back, value.dtype, node)
        return self._weights[value, channel]

    def _weight_only(self, node: ir.Node, value: ir.Value, data: np.ndarray[Any, Any]) -> None:
        """Blocks along K. The scales are f16 numbers, in which the weight is multiplied, and what is stored fits those."""
        axis = data.ndim - 2 if not attribute(node, "transB", 0) else 1
        if data.ndim != 2:
            self.left.append(f"'{name_of(node)}': int4 is for matrices")
            return
        if data.shape[axis] % GROUP:
            self.left.append(f"'{name_of(node)}': K = {data.shape[axis]} is not a multiple of {GROUP}")
            return
        if (value, axis) not in self._weights:
            self._weights[value, axis] = self._blocks(node, value, data, axis)
        node.replace_input_with(1, self._weights[value, axis])
        self.count += 1

    def _blocks(self, node: ir.Node, value: ir.Value, data: np.ndarray[Any, Any], axis: int) -> ir.Value:
        blocks = np.moveaxis(data, axis, 0).reshape(data.shape[axis] // GROUP, GROUP, -1)
        scales = _nearest(blocks)
        stored = np.moveaxis(INT4.store(blocks, scales).reshape(data.shape[axis], -1), 0, axis)
        name = f"{value.name}/int4"
        tensor = ir.PackedTensor(pack_int4(stored.astype(np.int8)), ir.DataType.INT4, shape=ir.Shape(data.shape), name=name)
        quantised = add_constant(self.graph, name, tensor)
        assert value.dtype is not None
        rows = np.ascontiguousarray(np.moveaxis(scales[:, 0], 0, axis)).astype(value.dtype.numpy())
        number = add_constant(self.graph, f"{value.name}/scale", rows)
        return emit(node, "DequantizeLinear", [quantised, number], value.dtype, data.shape, name=self._dq_name(value), axis=axis,
                    block_size=GROUP)


def pack_int4(data: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Two numbers a byte in row-major order, the first in the low four bits; an odd last byte has zero in the high ones."""
    nibbles = data.astype(np.int8).reshape(-1).view(np.uint8) & 0xF
    nibbles = np.append(nibbles, np.zeros(nibbles.size % 2, np.uint8))
    return np.asarray(nibbles[0::2] | nibbles[1::2] << 4, np.uint8)


def _channel_axis(node: ir.Node, rank: int) -> int:
    """The axis of output channels."""
    return 0 if is_op(node, "Conv") or attribute(node, "transB", 0) else rank - 1


def _nearest(blocks: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """For [blocks, group, n] the f16 scales [blocks, 1, n] of least squared error: with 15 levels it pays to clamp the largest."""
    top = np.abs(blocks).max(axis=1, keepdims=True) / INT4.largest
    best, least = np.ones(top.shape, np.float32), np.full(top.shape, np.inf, np.float32)
    for part in _PARTS:
        scales = _positive((top * part).astype(np.float16))
        error = ((INT4.store(blocks, scales).astype(np.float32) * scales - blocks) ** 2).sum(axis=1, keepdims=True)
        np.copyto(best, scales, where=error < least)
        np.minimum(error, least, out=least)
    return best


def _positive(scales: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Zeros have some scale."""
    return np.where(scales > 0, scales, 1).astype(np.float32)
