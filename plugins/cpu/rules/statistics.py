"""Norms over other dimensions than the last."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from infc.plugins.cpu.lower import Lowering, rule
from infc.plugins.cpu.rules.elementwise import binary, scalar, select, unary
from infc.plugins.cpu.rules.movement import reshape
from infc.plugins.cpu.rules.rows import norm, reduce
from infc.plugins.cpu.values import NUMPY, Tensor


def _per_channel(t: Tensor, rank: int) -> Tensor:
    """``[C]`` as ``[C, 1, ...]`` beside ``[N, C, spatial...]``."""
    return t.view((*t.dims, *[1] * (rank - 2)), (*t.strides, *[1] * (rank - 2)))


def _grouped(lo: Lowering, x: Tensor, groups: int, scale: Tensor, bias: Tensor) -> Tensor:
    """Each group of channels of each image to mean 0 and variance 1, then scaled by channel."""
    rows = reshape(lo, x, (x.dims[0], groups, x.size // (x.dims[0] * groups)), (x.symbol, None, None))
    y = reshape(lo, norm(lo, rows, "layer", lo.attribute("epsilon", 1e-5))[0], x.dims, x.symbols)
    rank = len(x.dims)
    return binary(lo, binary(lo, y, _per_channel(scale, rank), "mul"), _per_channel(bias, rank), "add")


@rule("InstanceNormalization")
def _instance_normalization(lo: Lowering, node: ir.Node) -> Tensor:
    x = lo.input(0)
    return _grouped(lo, x, x.dims[1], lo.input(1), lo.input(2))


@rule("GroupNormalization")
def _group_normalization(lo: Lowering, node: ir.Node) -> Tensor:
    x, groups, scale, bias = lo.input(0), lo.attribute("num_groups"), lo.input(1), lo.input(2)
    if scale.dims != (x.dims[1],) or bias.dims != scale.dims:  # by group before opset 21
        raise lo.unsupported(f"a scale of shape {list(scale.dims)} for {x.dims[1]} channels")
    return _grouped(lo, x, groups, scale, bias)


@rule("LpNormalization")
def _lp_normalization(lo: Lowering, node: ir.Node) -> Tensor:
    """x / its norm; zeros where that is zero."""
    x, p = lo.input(0), lo.attribute("p", 2)
    size = reduce(lo, x, f"l{p}", [lo.attribute("axis", -1) % len(x.dims)], True)
    zero = lo.constant(np.zeros((), NUMPY[x.dtype]))
    safe = select(lo, binary(lo, size, zero, "equal"), scalar(lo, 1.0), size)
    return binary(lo, x, safe, "div")


@rule("BatchNormalization")
def _batch_normalization(lo: Lowering, node: ir.Node) -> list[Tensor]:
    """Inference: y = x * a + b. With a and b known now these are two binary steps."""
    x, epsilon = lo.input(0), lo.attribute("epsilon", 1e-5)
    parameters = [lo.input(i) for i in range(1, 5)]
    known = [p.constant for p in parameters]
    if all(k is not None for k in known):
        scale, bias, mean, var = (k for k in known if k is not None)
        factor = (scale / np.sqrt(var + np.float32(epsilon))).astype(np.float32)
        a, b = lo.constant(factor), lo.constant((bias - mean * factor).astype(np.float32))
    else:
        a = binary(lo, parameters[0], unary(lo, binary(lo, parameters[3], scalar(lo, epsilon), "add"), "rsqrt"), "mul")
        b = binary(lo, parameters[1], binary(lo, parameters[2], a, "mul"), "sub")
    rank = len(x.dims)
    return [binary(lo, binary(lo, x, _per_channel(a, rank), "mul"), _per_channel(b, rank), "add")]
