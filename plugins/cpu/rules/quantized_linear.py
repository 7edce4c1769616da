"""Products of quantised rows and quantised weights, and the quantisation of rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from infc.compiler.artifact.ops import GEMM_16, GROUPED_ZEROS, QUANTIZE_ROWS, UNARY
from infc.plugins.cpu.lower import Lowering, rule
from infc.plugins.cpu.pack import PANEL
from infc.plugins.cpu.pack_16 import DEPTH, dense
from infc.plugins.cpu.pack_grouped import GROUPS, PARTS, grouped, pack
from infc.plugins.cpu.pack_i8 import i8_k4n32
from infc.plugins.cpu.rules.elementwise import binary
from infc.plugins.cpu.rules.linear import finish, gemm, has_residual
from infc.plugins.cpu.rules.movement import reshape
from infc.plugins.cpu.rules.quant import dequantize, quantize
from infc.plugins.cpu.types import cast, convert
from infc.plugins.cpu.values import NUMPY, Tensor, dense_strides

MAX_K = 65536  # of gemm_i8: longer sums could leave int32
SHIFT = 128  # from int8 to uint8


@dataclass(frozen=True)
class Product:
    """An infc.QuantizedLinear by name (docs/domain.md). ``source`` is the QuantizeRows that makes q, None if it is another.
    With a source q is what rows_of gives: of the kind that a kernel wants, not always that of the graph."""

    q: Tensor
    q_scale: Tensor | None
    q_zero: Tensor | None
    w: Tensor
    w_scale: Tensor | None
    w_zero: Tensor | None
    bias: Tensor | None
    residual: Tensor | None
    y_scale: Tensor | None
    y_zero: Tensor | None
    activation: str
    residual_first: bool
    group: int
    block: int
    fine_zeros: bool  # w_zero counts sixteenths
    source: ir.Node | None


# Each lowers the products its kernels can do, and returns None for others; the first that can is taken.
Lowerer = Callable[[Lowering, Product], Tensor | None]


# ---- Rows

def quantize_rows(lo: Lowering, x: Tensor, group: int, kind: str) -> tuple[Tensor, Tensor]:
    """Rows of x [..., K] as bytes, and what they are read with, [rows, G, 2], as op ``quantize_rows`` has it; made once."""
    key = ("quantize_rows", x.buffer, x.dtype, x.dims, x.strides, x.offset, group, kind)
    if key not in lo.made:
        x = cast(lo, x, "f32")
        k = x.dims[-1]
        if group and k % group:
            raise lo.unsupported(f"groups of {group} of {k} elements")
        source, rows, _ = lo.matrix(x, strided=True)
        q = lo.new("i8" if kind == "symmetric" else "u8", x.dims, x.symbols)
        params = lo.new("f32", (rows, k // group if group else 1, 2), (x.symbol, None, None))
        lo.emit("quantize_rows", [source], [q.ref((rows, k)), params.ref(params.dims)], (QUANTIZE_ROWS.index(kind), group), rows,
                x.symbol)
        lo.made[key], lo.made[*key, "params"] = q, params
    return lo.made[key], lo.made[*key, "params"]


def rows_of(lo: Lowering, node: ir.Node, kind: str) -> tuple[Tensor, Tensor]:
    """What a QuantizeRows makes, in the kind that a kernel wants: "shifted" for a symmetric one that gives u8."""
    x = node.inputs[0]
    assert x is not None
    return quantize_rows(lo, lo.tensor(x), _int(node, "group"), kind)


def _int(node: ir.Node, name: str) -> int:
    found = node.attributes.get(name)
    return 0 if found is None else int(found.value)


def _wants_bytes(node: ir.Node, index: int) -> bool:
    """Whether a symmetric q that a node reads is better u8."""
    if node.op_type != "QuantizedLinear" or index != 0:
        return False
    w = node.inputs[3]
    return w is not None and w.dtype in (ir.DataType.INT8, ir.DataType.UINT8) and not _int(node, "block")


@rule("QuantizeRows", domain="infc")
def _quantize_rows(lo: Lowering, node: ir.Node) -> list[Tensor]:
    x, group = lo.input(0), lo.attribute("group", 0)
    uses = list(node.outputs[0].uses())
    bytes_do = bool(uses) and all(_wants_bytes(u.node, u.idx) for u in uses) and not node.outputs[0].is_graph_output()
    kind = "asymmetric" if not lo.attribute("symmetric", 0) else "shifted" if bytes_do else "symmetric"
    q, params = quantize_rows(lo, x, group, kind)
    scale, zero = _columns(params, x)
    if len(node.outputs) < 3:
        return [q, scale]
    read = any(u.node.op_type != "QuantizedLinear" for u in node.outputs[2].uses()) or node.outputs[2].is_graph_output()
    return [q, scale, cast(lo, zero, "u8") if read else zero]


def _columns(params: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Scales and zeros [..., G] of the rows of x [..., K]."""
    dims, symbols = (*x.dims[:-1], params.dims[1]), (*x.symbols[:-1], None)
    strides = [2 * s for s in dense_strides(dims)]
    return params.view(dims, strides, symbols), params.view(dims, strides, symbols, offset=1)


@rule("DequantizeRows", domain="infc")
def _dequantize_rows(lo: Lowering, node: ir.Node) -> Tensor:
    return _plain_rows(lo, lo.input(0), lo.input(1), lo.optional(2), lo.attribute("group", 0))


def _plain_rows(lo: Lowering, q: Tensor, scale: Tensor | None, zero: Tensor | None, group: int) -> Tensor:
    """(q - zero) * scale in f32."""
    x = cast(lo, q, "f32")
    if scale is None:
        return x
    grouped = x
    if group:
        grouped = reshape(lo, x, (*x.dims[:-1], x.dims[-1] // group, group), (*x.symbols[:-1], None, None))
        scale = scale.view((*scale.dims, 1), (*scale.strides, 1), (*scale.symbols, None))
        zero = zero and zero.view((*zero.dims, 1), (*zero.strides, 1), (*zero.symbols, None))
    if zero is not None:
        grouped = binary(lo, grouped, cast(lo, zero, "f32"), "sub")
    grouped = binary(lo, grouped, scale, "mul")
    return reshape(lo, grouped, x.dims, x.symbols) if group else grouped


@rule("DequantizeBlocks", domain="infc")
def _dequantize_blocks(lo: Lowering, node: ir.Node) -> Tensor:
    return dequantize(lo, lo.input(0), lo.input(1), lo.input(2), lo.attribute("axis", 0), lo.attribute("block_size", 0), PARTS)


# ---- Products

@rule("QuantizedLinear", domain="infc")
def _quantized_linear(lo: Lowering, node: ir.Node) -> Tensor:
    q = node.inputs[0]
    source = q.producer() if q is not None else None
    if source is not None and (source.op_type, source.domain) != ("QuantizeRows", "infc"):
        source = None
    scale, zero, bias, residual, y_scale, y_zero = (lo.optional(i) for i in range(4, 10))
    p = Product(lo.input(0), lo.optional(1), lo.optional(2), lo.input(3), scale, zero, bias, residual, y_scale, y_zero,
                lo.attribute("activation", "") or "identity", bool(lo.attribute("residual_first", 0)), lo.attribute("group", 0),
                lo.attribute("block", 0), bool(lo.attribute("fine_zeros", 0)) and zero is not None, source)
    if p.w.constant is None or len(p.w.dims) != 2:
        raise lo.unsupported("a weight that is no constant matrix")
    if not p.q.dims or p.q.dims[-1] != p.w.dims[0]:
        raise lo.unsupported(f"{list(p.q.dims)} times {list(p.w.dims)}")
    for lowerer in LOWERERS:
        y = lowerer(lo, p)
        if y is not None:
            return y
    raise AssertionError("the last takes any product")


def gemm_i8(lo: Lowering, p: Product) -> Tensor | None:
    """Bytes times int8 with a scale a column, in integers."""
    weight = _signed_weight(p)
    if weight is None or p.group or p.q_scale is None or p.q.dtype not in ("u8", "i8") or p.w.dims[0] > MAX_K:
        return None
    static = p.q_scale.size == 1 and p.q_scale.constant is not None and (p.q_zero is None or p.q_zero.constant is not None)
    if p.source is not None:
        q, params = rows_of(lo, p.source, "shifted" if _int(p.source, "symmetric") else "asymmetric")
    else:
        q = p.q
        if p.q.dtype == "i8":
            q = cast(lo, binary(lo, cast(lo, p.q, "i32"), lo.constant(np.array(SHIFT, np.int32)), "add"), "u8")
        params = _static_params(lo, p) if static else _dynamic_params(lo, p)
    k, n = p.w.dims
    dims, symbols = (*q.dims[:-1], n), (*q.symbols[:-1], None)
    a, rows, _ = lo.matrix(q, strided=True)
    scales = np.broadcast_to(np.asarray(p.w_scale.constant, np.float32).reshape(-1), n) if p.w_scale else np.ones(n, np.float32)
    constants = (i8_k4n32(weight), scales, weight.sum(0, dtype=np.int32))
    inputs = [a, params.ref((rows, 2)) if not static else params.ref((2,)), *(t.ref(t.dims) for t in map(lo.constant, constants)),
              *finish(lo, dims, symbols, p.bias, p.residual)]
    out = _out_params(p)
    if out is not None:
        inputs.append(lo.constant(out).ref((2,)))
    y = lo.new("f32" if out is None else "u8", dims, symbols)
    words = (UNARY.index(p.activation), int(p.bias is not None), has_residual(p.residual, p.residual_first), int(out is not None),
             int(not static), k, 0)
    lo.emit("gemm_i8", inputs, [y.ref((rows, n))], words, rows, q.symbol, cols=-(-n // PANEL))
    return y if out is not None else _requantized(lo, p, y)


def _signed_weight(p: Product) -> np.ndarray | None:
    """The weight as int8 whose zero is 0, if it is one of 8 bits with at most a scale a column."""
    n, w = p.w.dims[1], p.w.constant
    if w is None or p.block or p.w.dtype not in ("i8", "u8") or (
            p.w_scale is not None and (p.w_scale.constant is None or p.w_scale.size not in (1, n))):
        return None
    zero = 0 if p.w_zero is None else p.w_zero.constant
    if zero is None or np.any(np.asarray(zero, np.int32) != (0 if p.w.dtype == "i8" else SHIFT)):
        return None
    return w if p.w.dtype == "i8" else (w ^ np.uint8(SHIFT)).view(np.int8)


def _static_params(lo: Lowering, p: Product) -> Tensor:
    assert p.q_scale is not None
    scale = float(np.asarray(p.q_scale.constant).reshape(()))
    zero = 0 if p.q_zero is None else int(np.asarray(p.q_zero.constant).reshape(()))
    return lo.constant(np.array([scale, zero + SHIFT * (p.q.dtype == "i8")], np.float32))


def _dynamic_params(lo: Lowering, p: Product) -> Tensor:
    """Scales and zeros of rows that this graph did not quantise."""
    assert p.q_scale is not None
    dims, symbols = (*p.q.dims[:-1], 2), (*p.q.symbols[:-1], None)
    params = lo.new("f32", dims, symbols)
    zero = lo.constant(np.zeros((), np.float32)) if p.q_zero is None else cast(lo, p.q_zero, "f32")
    if p.q.dtype == "i8":
        zero = binary(lo, zero, lo.constant(np.array(SHIFT, np.float32)), "add")
    for column, part in enumerate((p.q_scale, zero)):
        target = params.view((*dims[:-1], 1), params.strides, symbols, offset=params.offset + column)
        lo.copy_into(_spread(part, target), target)
    return params


def _spread(x: Tensor, like: Tensor) -> Tensor:
    """x repeated along the dimensions it lacks."""
    missing = len(like.dims) - len(x.dims)
    strides = [0] * missing + [s if d != 1 else 0 for d, s in zip(x.dims, x.strides, strict=True)]
    return x.view(like.dims, strides, like.symbols)


def _out_params(p: Product) -> np.ndarray | None:
    """Scale and zero of a result that the kernel can give as bytes."""
    if p.y_scale is None or p.y_scale.constant is None or p.y_scale.size != 1:
        return None
    zero = np.zeros((), np.uint8) if p.y_zero is None else p.y_zero.constant
    if zero is None or zero.dtype != NUMPY["u8"]:
        return None
    return np.array([float(p.y_scale.constant.reshape(())), float(zero.reshape(()))], np.float32)


def _requantized(lo: Lowering, p: Product, y: Tensor) -> Tensor:
    """The result as the graph wants it."""
    if p.y_scale is None:
        return y
    return quantize(lo, y, p.y_scale, p.y_zero, p.y_zero.dtype if p.y_zero is not None else "u8")


def gemm_16(lo: Lowering, p: Product) -> Tensor | None:
    """Floats times weights in bf16, f16 or f8e4m3 with at most a scale a column. Of rows in bf16 or less the products are of bf16,
    of others those of f32 and f16."""
    n, scale = p.w.dims[1], _column_scale(p)
    narrow = p.q.dtype in ("bf16", "f8e4m3fn")
    stored = p.w.dtype if narrow or p.w.dtype != "f8e4m3fn" else "f16"  # which has all its numbers
    if scale is None or p.source is not None or p.q.dtype not in ("f32", "f16", "bf16", "f8e4m3fn") or stored not in DEPTH or (
            stored == "bf16" and not narrow):
        return None
    w = convert(np.asarray(p.w.constant), stored)
    if w.dtype.itemsize == 1 and not np.isfinite(w.astype(np.float32)).all():
        return None  # the kernel has no NaN
    a, rows, _ = lo.matrix(cast(lo, p.q, "f32" if stored == "f16" else "bf16"), strided=True)
    dims, symbols = (*p.q.dims[:-1], n), (*p.q.symbols[:-1], None)
    packed = lo.constant(dense(w.view(np.uint16 if w.dtype.itemsize == 2 else np.uint8), DEPTH[stored]))
    scaled = bool(np.any(scale != 1.0))
    inputs = [a, packed.ref(packed.dims), *([lo.constant(scale).ref((n,))] if scaled else []),
              *finish(lo, dims, symbols, p.bias, p.residual)]
    y = lo.new("f32", dims, symbols)
    words = (UNARY.index(p.activation), int(p.bias is not None), has_residual(p.residual, p.residual_first), int(scaled),
             GEMM_16.index(stored.removesuffix("fn")), 0, p.w.dims[0], n)
    lo.emit("gemm_16", inputs, [y.ref((rows, n))], words, rows, p.q.symbol, cols=-(-n // PANEL))
    return _requantized(lo, p, y)


def _column_scale(p: Product) -> np.ndarray | None:
    """What the sums of each column are multiplied by, f32 [N], if that is known and zeros are 0."""
    n = p.w.dims[1]
    if p.block or p.group or any(z is not None and (z.constant is None or np.any(z.constant != 0)) for z in (p.w_zero, p.q_zero)):
        return None
    scale = np.ones(n, np.float32)
    for part, sizes in ((p.w_scale, (1, n)), (p.q_scale, (1,))):
        if part is not None and (part.constant is None or part.size not in sizes):
            return None
        if part is not None:
            scale = scale * np.asarray(part.constant, np.float32).reshape(-1)
    return scale


def gemm_grouped(lo: Lowering, p: Product) -> Tensor | None:
    """Rows quantised at run time, symmetric, in the groups along K that the scales of a weight in 4 or 8 bits have."""
    if p.block not in GROUPS or p.group != p.block or p.source is None or not _int(p.source, "symmetric") or (
            p.w.dtype not in ("i4", "u4", "i8", "u8") or p.w_scale is None or p.w_scale.constant is None or (
            p.w_zero is not None and p.w_zero.constant is None) or (
            p.fine_zeros and p.w.dtype != "u4")):
        return None
    k, n = p.w.dims
    zero = None if p.w_zero is None else p.w_zero.constant
    weight = grouped(np.asarray(p.w.constant), p.w_scale.constant, zero, p.fine_zeros)
    q, params = rows_of(lo, p.source, "symmetric")
    dims, symbols = (*q.dims[:-1], n), (*q.symbols[:-1], None)
    a, rows, _ = lo.matrix(q, strided=True)
    packed = lo.constant(pack(weight))
    inputs = [a, params.ref((rows, k // p.block, 2)), packed.ref(packed.dims), *finish(lo, dims, symbols, p.bias, p.residual)]
    y = lo.new("f32", dims, symbols)
    words = (UNARY.index(p.activation), int(p.bias is not None), has_residual(p.residual, p.residual_first), weight.bits,
             int(weight.wide), GROUPED_ZEROS.index(weight.zeros), 0, p.block, k, n)
    lo.emit("gemm_grouped", inputs, [y.ref((rows, n))], words, rows, q.symbol, cols=-(-n // PANEL))
    return _requantized(lo, p, y)


def in_f32(lo: Lowering, p: Product) -> Tensor | None:
    """Any product: of what the operands stand for."""
    w = (cast(lo, p.w, "f32") if p.w_scale is None
         else dequantize(lo, p.w, p.w_scale, p.w_zero, 0 if p.block else 1, p.block, PARTS if p.fine_zeros else 1))
    if w.constant is None:
        raise lo.unsupported("scales of a weight that are no constants")
    q, scale, zero = p.q, p.q_scale, p.q_zero
    if p.source is not None and _int(p.source, "symmetric"):
        q, params = rows_of(lo, p.source, "symmetric")
        scale, _ = _columns(params, q)
    x = _plain_rows(lo, q, scale, zero, p.group)
    return _requantized(lo, p, gemm(lo, x, w.constant, p.bias, p.activation, p.residual, p.residual_first))


LOWERERS: list[Lowerer] = [gemm_i8, gemm_grouped, gemm_16, in_f32]
