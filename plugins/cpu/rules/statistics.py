"""Norms over other dimensions than the last."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from infc.plugins.cpu.lower import Lowering, rule
from infc.plugins.cpu.rules.elementwise import binary, scalar, select
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
