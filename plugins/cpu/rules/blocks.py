"""Operators that exchange channels and pixels: views and one copy."""

from __future__ import annotations

import onnx_ir as ir

from infc.plugins.cpu.lower import Lowering, rule
from infc.plugins.cpu.rules.movement import reshape, transpose
from infc.plugins.cpu.values import Tensor


@rule("DepthToSpace")
def _depth_to_space(lo: Lowering, node: ir.Node) -> Tensor:
    x, b = lo.input(0), lo.attribute("blocksize")
    n, c, h, w = x.dims
    by_columns = lo.attribute("mode", "DCR") == "CRD"
    depth = c // (b * b)
    wide = reshape(lo, x, (n, depth, b, b, h, w) if by_columns else (n, b, b, depth, h, w), [x.symbol, *[None] * 5])
    moved = transpose(wide, (0, 1, 4, 2, 5, 3) if by_columns else (0, 3, 4, 1, 5, 2))
    return reshape(lo, moved, (n, depth, h * b, w * b), [x.symbol, *[None] * 3])


@rule("SpaceToDepth")
def _space_to_depth(lo: Lowering, node: ir.Node) -> Tensor:
    x, b = lo.input(0), lo.attribute("blocksize")
    n, c, h, w = x.dims
    by_columns = lo.attribute("mode", "DCR") == "CRD"
    wide = reshape(lo, x, (n, c, h // b, b, w // b, b), [x.symbol, *[None] * 5])
    moved = transpose(wide, (0, 1, 3, 5, 2, 4) if by_columns else (0, 3, 5, 1, 2, 4))
    return reshape(lo, moved, (n, c * b * b, h // b, w // b), [x.symbol, *[None] * 3])
