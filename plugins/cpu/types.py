"""Element types: which are computed in which, and conversions.

A type that no kernel computes in has a carrier, a wider type: what an operator reads is widened, what it makes is narrowed.
Integers keep their low bits, as ONNX has it; floats are rounded once an operator, or, in chains of 16-bit floats, where they
leave the chain.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from infc.plugins.cpu.layout import in_order
from infc.plugins.cpu.values import NAMES, NUMPY, Tensor

if TYPE_CHECKING:
    from infc.plugins.cpu.lower import Lowering

HALVES = ("f16", "bf16")
SMALL_FLOATS = ("f8e4m3fn", "f8e4m3fnuz", "f8e5m2", "f8e5m2fnuz", "f8e8m0", "f4e2m1")
SMALL_INTEGERS = ("i4", "u4", "i2", "u2")
CARRIERS = {**dict.fromkeys((*HALVES, *SMALL_FLOATS), "f32"), **dict.fromkeys(("i8", "u8", "i16", "u16", *SMALL_INTEGERS), "i32"),
            "u32": "i64"}
FLOATS = ("f32", "f64", *HALVES, *SMALL_FLOATS)
# Operators that move elements and look at none.
MOVERS = frozenset({
    "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Expand", "Tile", "Slice", "Split", "Concat", "Pad", "Identity",
    "Dropout", "Where", "Gather", "GatherElements", "GatherND", "ScatterND", "ScatterElements", "Scatter", "DepthToSpace",
    "SpaceToDepth", "ReverseSequence", "TensorScatter", "Trilu", "CenterCropPad"})
# Operators for which tensors are what the graph says: conversions, control flow, and those between rectangles and rows, as a
# rectangle of which two dimensions vary cannot be converted.
EXACT = frozenset({"Cast", "CastLike", "BitCast", "If", "Loop", "Scan", "QuantizeLinear", "DequantizeLinear", "QLinearConv",
                   "QLinearMatMul", "PackTokens", "PackRows", "UnpackRows", "QuantizeRows", "DequantizeRows", "DequantizeBlocks",
                   "QuantizedLinear", "QuantizedConv"})
# Narrow types that an operator's kernels know.
NATIVE = {"MaxPool": ("u8", "i8"), **dict.fromkeys(("ArgMax", "ArgMin", "TopK"), ("i8", "u8", "i16", "u16", "u32"))}
_ROUNDS = ("up", "down", "nearest")


def name_of(dtype: ir.DataType | None) -> str | None:
    """A key of layout.DTYPES; None for a type that is not there."""
    try:
        return None if dtype is None else NAMES.get(np.dtype(dtype.numpy()))
    except TypeError:
        return None


def operand(lo: Lowering, value: ir.Value) -> Tensor:
    """A value as the rule of the node at hand takes it."""
    assert lo.node is not None
    if lo.node.op_type in EXACT:
        return lo.tensor(value)
    held = lo.held(value)
    if lo.node.op_type in MOVERS:
        mixed = held.dtype in HALVES and any(v in lo.wide for v in lo.node.inputs if v is not None)
        return cast(lo, held, "f32") if mixed else held
    if held.dtype in NATIVE.get(lo.node.op_type, ()):
        return held
    return cast(lo, held, CARRIERS.get(held.dtype, held.dtype))


def keep(lo: Lowering, value: ir.Value, tensor: Tensor) -> None:
    """Makes a rule's result the value, in the graph's type or, for 16-bit floats in a chain, in the carrier."""
    wanted = name_of(value.dtype) or _half_of_inputs(lo)
    if wanted is not None and wanted != tensor.dtype and CARRIERS.get(wanted) == tensor.dtype:
        if wanted in HALVES and lo.half_chains:
            lo.wide[value] = wanted
        else:
            tensor = cast(lo, tensor, wanted)
    lo.values[value] = tensor


def _half_of_inputs(lo: Lowering) -> str | None:
    """What an untyped result is, if it is a float."""
    assert lo.node is not None
    found = (lo.wide.get(v) or lo.values[v].dtype for v in lo.node.inputs if v is not None and v in lo.values)
    return next((t for t in found if t in HALVES), None)


def retyped(lo: Lowering, x: Tensor, dtype: str) -> Tensor:
    """The same bits as another type of the same size."""
    if x.constant is not None:
        return lo.constant(np.ascontiguousarray(x.constant).view(NUMPY[dtype]).reshape(x.dims))
    if x.buffer.space == "INPUT":  # whose type is the caller's
        y = lo.like(x)
        lo.copy_into(x, y)
        x = y
    return replace(x, dtype=dtype)


def cast(lo: Lowering, x: Tensor, dtype: str, saturate: bool = True, rounds: str = "up") -> Tensor:
    """x as another element type; ``saturate`` and ``rounds`` as Cast's attributes."""
    if x.dtype == dtype:
        return x
    key: tuple[Any, ...] = (x.buffer, x.dtype, x.dims, x.strides, x.offset, dtype, saturate, rounds)
    if key not in lo.made:
        if x.constant is not None and dtype != "f8e8m0":
            lo.made[key] = lo.constant(convert(x.constant, dtype, saturate))
        else:
            lo.made[key] = in_order(lo, "cast", x, dtype, (int(saturate), _ROUNDS.index(rounds)))
    return lo.made[key]


def convert(array: np.ndarray, dtype: str, saturate: bool = True) -> np.ndarray:
    """What the kernel ``cast`` makes of known values."""
    target = NUMPY[dtype]
    if dtype == "bool":
        return np.asarray(array != 0)
    with np.errstate(invalid="ignore", over="ignore"):
        if NAMES[array.dtype] not in FLOATS:
            return array.astype(np.int64).astype(target) if dtype in SMALL_INTEGERS else array.astype(target)
        if dtype not in FLOATS:
            return _truncated(array.astype(np.float64), dtype)
        if saturate and dtype in SMALL_FLOATS:
            largest = _largest(dtype)
            array = np.clip(array.astype(np.float64), -largest, largest)
        return array.astype(target)


def _largest(dtype: str) -> float:
    values = np.arange(128, dtype=np.uint8).view(NUMPY[dtype])[: 8 if dtype == "f4e2m1" else None].astype(np.float64)
    return float(values[np.isfinite(values)].max())


def _truncated(array: np.ndarray, dtype: str) -> np.ndarray:
    if dtype in SMALL_INTEGERS:
        return _truncated(array, "i32").astype(np.int64).astype(NUMPY[dtype])
    limits = np.iinfo(NUMPY[dtype])
    inside = (array > float(limits.min)) & (array < float(limits.max))
    result = np.where(inside, array, 0).astype(NUMPY[dtype])
    result[array >= float(limits.max)] = limits.max
    result[array <= float(limits.min)] = limits.min
    return result
