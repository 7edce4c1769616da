"""Conversion between element types, and operators on bits."""

from __future__ import annotations

import onnx_ir as ir

from infc.compiler.artifact.layout import DTYPE_SIZES, DTYPES
from infc.plugins.cpu.lower import Lowering, rule
from infc.plugins.cpu.rules.elementwise import binary, scalar
from infc.plugins.cpu.types import SMALL_INTEGERS, cast, name_of, retyped
from infc.plugins.cpu.values import Tensor

BITWISE_OPS = {"BitwiseAnd": "bit_and", "BitwiseOr": "bit_or", "BitwiseXor": "bit_xor"}


def wanted_type(lo: Lowering, attribute: str) -> str:
    """The element type that an attribute names."""
    number = ir.DataType(lo.attribute(attribute))
    dtype = name_of(number)
    if dtype is None:
        raise lo.unsupported(f"conversion to {number}")
    return dtype


def converted(lo: Lowering, x: Tensor, dtype: str) -> Tensor:
    return cast(lo, x, dtype, bool(lo.attribute("saturate", 1)), lo.attribute("round_mode", "up"))


@rule("Cast")
def _cast(lo: Lowering, node: ir.Node) -> Tensor:
    return converted(lo, lo.input(0), wanted_type(lo, "to"))


@rule("CastLike")
def _cast_like(lo: Lowering, node: ir.Node) -> Tensor:
    return converted(lo, lo.input(0), lo.input(1).dtype)


@rule("BitCast")
def _bit_cast(lo: Lowering, node: ir.Node) -> Tensor:
    x, dtype = lo.input(0), wanted_type(lo, "to")
    if DTYPE_SIZES[DTYPES[x.dtype]] != DTYPE_SIZES[DTYPES[dtype]] or {x.dtype, dtype} & {*SMALL_INTEGERS, "f4e2m1"}:
        raise lo.unsupported(f"the bits of {x.dtype} as {dtype}: types of different size")
    return retyped(lo, x, dtype)


@rule(*BITWISE_OPS)
def _bitwise(lo: Lowering, node: ir.Node) -> Tensor:
    return binary(lo, lo.input(0), lo.input(1), BITWISE_OPS[node.op_type])


@rule("BitwiseNot")
def _bitwise_not(lo: Lowering, node: ir.Node) -> Tensor:
    x = lo.input(0)
    return binary(lo, x, cast(lo, scalar(lo, -1, "i64"), x.dtype), "bit_xor")


@rule("BitShift")
def _bit_shift(lo: Lowering, node: ir.Node) -> Tensor:
    return binary(lo, lo.input(0), lo.input(1), f"shift_{lo.attribute('direction').lower()}")
