"""Matrix products."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import onnx_ir as ir

from infc.compiler.artifact.ops import UNARY
from infc.plugins.cpu.lower import Lowering, rule, word
from infc.plugins.cpu.rules.elementwise import binary
from infc.plugins.cpu.rules.movement import expand, transpose
from infc.plugins.cpu.rules.rows import vector
from infc.plugins.cpu.types import FLOATS, retyped
from infc.plugins.cpu.values import NUMPY, Ref, Tensor, product

PANEL = 32  # columns of a packed weight panel


def gemm(lo: Lowering, x: Tensor, weight: np.ndarray, bias: Tensor | None = None, activation: str = "identity",
         residual: Tensor | None = None, residual_first: bool = False) -> Tensor:
    """act(x @ weight + bias) + residual for a constant weight [K, N]; act(x @ weight + bias + residual) if ``residual_first``."""
    lo.want(x, "f32")
    k, n = weight.shape
    if not x.dims or x.dims[-1] != k:
        raise lo.unsupported(f"{list(x.dims)} times {[k, n]}")
    dims, symbols = (*x.dims[:-1], n), (*x.symbols[:-1], None)
    source, rows, _ = lo.matrix(x, strided=True)
    packed = lo.constant(weight, packing="F32_K1N32")
    inputs = [source, Ref(packed.buffer, "f32", (k, n), 0, n), *finish(lo, dims, symbols, bias, residual)]
    y = lo.new("f32", dims, symbols)
    words = (UNARY.index(activation), int(bias is not None), has_residual(residual, residual_first))
    lo.emit("gemm", inputs, [y.ref((rows, n))], words, rows, x.symbol, cols=-(-n // PANEL))
    return y


def finish(lo: Lowering, dims: tuple[int, ...], symbols: tuple[str | None, ...], bias: Tensor | None,
           residual: Tensor | None) -> list[Ref]:
    """Operands of what follows a product of f32 [dims]: bias and residual, where there are such."""
    refs = []
    if bias is not None:
        refs.append(vector(lo, bias, dims[-1]).ref((dims[-1],)))
    if residual is not None:
        if residual.dtype != "f32" or lo.broadcast([residual, residual.view(dims, (0,) * len(dims))])[0] != dims:
            raise lo.unsupported(f"a residual {residual.dtype}{list(residual.dims)} for f32{list(dims)}")
        refs.append(lo.matrix(residual if residual.dims == dims else expand(residual, dims, symbols), strided=True)[0])
    return refs


def has_residual(residual: Tensor | None, first: bool) -> int:
    """The word of gemm and conv."""
    return 0 if residual is None else 2 if first else 1


def matmul(lo: Lowering, a: Tensor, b: Tensor, alpha: float = 1.0) -> Tensor:
    """alpha * a @ b for tensors of at least two dimensions, leading ones broadcast."""
    if a.dtype == b.dtype == "u64":  # the low bits of products are those of signed ones
        return retyped(lo, matmul(lo, retyped(lo, a, "i64"), retyped(lo, b, "i64"), alpha), "u64")
    lo.want(a, "f32", "f64", "i32", "i64")
    lo.want(b, a.dtype)
    if alpha != 1.0 and a.dtype not in FLOATS:
        raise lo.unsupported(f"a product of integers times {alpha}")
    if a.dims[-1] != b.dims[-2]:
        raise lo.unsupported(f"{list(a.dims)} times {list(b.dims)}")
    if a.symbol and len(a.dims) == 2:  # as many products of one row
        a = a.view((a.dims[0], 1, a.dims[1]), (a.strides[0], a.strides[0], a.strides[1]), (a.symbol, None, None))
        y = matmul(lo, a, b, alpha)
        return y.view((y.dims[0], y.dims[2]), (y.strides[0], 1), (y.symbol, None))
    if b.symbol and len(b.dims) == 2:
        raise lo.unsupported("a product over a dimension that varies at run time")
    heads = [Tensor(t.buffer, t.dtype, t.dims[:-2], t.strides[:-2], 0, t.symbols[:-2] or ()) for t in (a, b)]
    batch, symbols = lo.broadcast(heads)
    symbol = symbols[0] if symbols else None
    m, k, n = a.dims[-2], a.dims[-1], b.dims[-1]
    count = product(batch)
    if symbol and product(batch[1:]) != 1:
        raise lo.unsupported("rows whose number is known at run time must be the only leading dimension")
    a, stride_a = _batched(lo, a, batch, symbols, transposable=False)
    b, stride_b = _batched(lo, b, batch, symbols, transposable=True)
    trans_b = not _is_plain(b)
    y = lo.new(a.dtype, (*batch, m, n), (*symbols, None, None))
    words = (m, n, k, stride_a, stride_b, int(trans_b), word(alpha))
    shape_b = (n, k) if trans_b else (k, n)
    lo.emit("matmul", [_operand(a, stride_a, count, (m, k)), _operand(b, stride_b, count, shape_b)],
            [y.ref((count, m, n))], words, count, symbol, cols=-(-n // PANEL))
    return y


def _is_plain(t: Tensor) -> bool:
    """Whether the last two dimensions are dense."""
    return (t.dims[-1] == 1 or t.strides[-1] == 1) and (t.dims[-2] == 1 or t.strides[-2] == t.dims[-1])


def _batched(lo: Lowering, t: Tensor, batch: tuple[int, ...], symbols: tuple[str | None, ...],
             transposable: bool) -> tuple[Tensor, int]:
    """The tensor broadcast over ``batch`` so that the elements of the batch lie evenly apart, and how far."""
    fits = _is_plain(t) or (transposable and _is_plain(transpose(t, [*range(len(t.dims) - 2), len(t.dims) - 1, len(t.dims) - 2])))
    if not fits or not t.is_aligned:
        t = lo.copied(t)
    wide = expand(t, (*batch, *t.dims[-2:]), (*symbols, None, None))
    stride = _even_stride(wide)
    if stride is None:
        wide = lo.copied(wide)
        stride = t.dims[-1] * t.dims[-2]
    return wide, stride


def _even_stride(t: Tensor) -> int | None:
    pairs = [(d, s) for d, s in zip(t.dims[:-2], t.strides[:-2], strict=True) if d != 1]
    if not pairs:
        return t.dims[-1] * t.dims[-2]
    even = all(s == d2 * s2 for (_, s), (d2, s2) in pairwise(pairs))
    return pairs[-1][1] if even and (pairs[-1][1] == 0 or pairs[-1][1] >= t.dims[-1] * t.dims[-2]) else None


def _operand(t: Tensor, stride: int, count: int, shape: tuple[int, int]) -> Ref:
    if stride == 0:
        return Ref(t.buffer, t.dtype, shape, t.offset, shape[1])
    return Ref(t.buffer, t.dtype, (count, *shape), t.offset, stride, t.symbol)


@rule("MatMul")
def _matmul(lo: Lowering, node: ir.Node) -> Tensor:
    a, b = lo.input(0), lo.input(1)
    known = b.constant
    if known is not None and b.dtype == "f32" and b.size == product(b.dims[-2:]) and len(b.dims) > 1 and a.constant is None:
        return _ranked(lo, gemm(lo, a, known.reshape(b.dims[-2:])), len(b.dims))
    wide_a = a if len(a.dims) > 1 else a.view((1, *a.dims), (a.dims[0], *a.strides))
    wide_b = b if len(b.dims) > 1 else b.view((*b.dims, 1), (*b.strides, 1))
    y = matmul(lo, wide_a, wide_b)
    drop = [i for i, t in ((len(y.dims) - 2, a), (len(y.dims) - 1, b)) if len(t.dims) == 1]
    return transpose(y, [i for i in range(len(y.dims)) if i not in drop])


def _ranked(lo: Lowering, y: Tensor, rank: int) -> Tensor:
    """y with leading dimensions of 1 where the constant has more of them."""
    missing = rank - len(y.dims)
    if missing <= 0:
        return y
    return y.view((1,) * missing + y.dims, (1,) * missing + y.strides, (None,) * missing + y.symbols)


@rule("Linear", domain="infc")
def _linear(lo: Lowering, node: ir.Node) -> Tensor:
    weight = lo.const(1)
    assert weight is not None
    return gemm(lo, lo.input(0), weight, lo.optional(2), lo.attribute("activation", "") or "identity", lo.optional(3),
                bool(lo.attribute("residual_first", 0)))


@rule("Gemm")
def _gemm(lo: Lowering, node: ir.Node) -> Tensor:
    a, b, c = lo.input(0), lo.input(1), lo.optional(2)
    alpha, beta = lo.attribute("alpha", 1.0), lo.attribute("beta", 1.0)
    if lo.attribute("transA", 0):
        a = transpose(a, (1, 0))
    if lo.attribute("transB", 0):
        b = transpose(b, (1, 0))
    if c is not None and beta != 1.0:
        factor = NUMPY[c.dtype].type(beta)
        c = lo.constant(c.constant * factor) if c.constant is not None else binary(lo, c, lo.constant(np.array(factor)), "mul")
    if b.constant is None or b.dtype != "f32":
        y = matmul(lo, a, b, alpha)
        return y if c is None else binary(lo, y, c, "add")
    weight = b.constant * np.float32(alpha)
    per_column = c is not None and c.size in (1, weight.shape[1]) and (c.dims or (1,))[-1] in (1, weight.shape[1]) and (
        len(c.dims) < 2 or c.dims[-2] == 1)
    return gemm(lo, a, weight, bias=c if per_column else None, residual=None if per_column else c)
