"""Makes weights 2:4 along K, before they are quantised, and finds those that are."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from infc.compiler.errors import UsageError
from infc.passes.graph import add_constant, owner
from infc.passes.quant.products import Product, find
from infc.passes.quant.scaling import drop
from infc.passes.quant.statistics import Statistics
from infc.passes.sparsity.two_in_four import GROUP, is_sparse, prune, sparsegpt

Array = np.ndarray[Any, Any]
METHODS = ("magnitude", "wanda", "sparsegpt")
DENSE, SPARSE = "dense", "2:4"
NOT_ASKED = "its weights are not 2:4, and no method was given that makes them so"


@dataclass(frozen=True)
class SparseDecision:
    """What became of a product: ``actual`` is "2:4" or "dense". ``found``: its weights were 2:4 before. ``why``: why it is dense,
    another method was taken, or its zeros are multiplied. ``error``: the part that went of the weights' energy, or of the products'
    where statistics are.
    ``eligible``: 2:4 could make the target faster.
    ``kernel``: "skips zeros", or "multiplies them" where that is faster, in the order of programs; of the CPU."""

    node: str
    actual: str
    method: str = ""
    found: bool = False
    why: str = ""
    error: float | None = None
    kernel: str = ""
    eligible: bool = True

    def record(self) -> dict[str, Any]:
        """For reports."""
        return {k: v for k, v in asdict(self).items() if v not in ("", None, False)}


def check(method: str) -> None:
    """Raises UsageError E0054 for what is no method; "" is one."""
    if method and method not in METHODS:
        raise UsageError("E0054", f"'{method}' is no method of 2:4 sparsity", where="--sparsity-method",
                         hint=f"one of: {', '.join(METHODS)}")


def sparsify(model: ir.Model, method: str = "", statistics: Statistics | None = None,
             nodes: Collection[str] | None = None) -> list[SparseDecision]:
    """Rewrites the graph in place; a record for each product with a constant weight.

    ``method``: one of METHODS, or "" to find only. ``nodes``: names of those that may be changed; all, if None. Wanda needs the
    channels of the inputs and SparseGPT their Gram matrices: without, a weight goes by magnitude, and the record says so. Raises
    UsageError E0054 for another method.
    """
    check(method)
    done: dict[tuple[ir.Value, ir.Value], ir.Value] = {}
    return [_sparsify(p, method if nodes is None or p.name in nodes else "", statistics, done) for p in find(model)[0]]


def _sparsify(product: Product, method: str, statistics: Statistics | None,
              done: dict[tuple[ir.Value, ir.Value], ir.Value]) -> SparseDecision:
    why = _objection(product)
    if why:
        return SparseDecision(product.name, DENSE, why=why, eligible=False)
    matrix = _along_channels(product)
    if is_sparse(matrix):
        return SparseDecision(product.name, SPARSE, found=True)
    if not method:
        return SparseDecision(product.name, DENSE, why=NOT_ASKED)
    seen = statistics.values.get(product.x.name or "") if statistics else None
    channels = seen.channels if seen else None
    squares = None if channels is None else np.tile(channels.square_mean, product.taps)
    if squares is not None and squares.size != matrix.shape[0]:
        squares = None
    gram = statistics.grams.get(product.x.name or "") if statistics and method == "sparsegpt" and not product.conv else None
    if method == "sparsegpt" and gram is not None:
        pruned = sparsegpt(matrix, gram)
    elif method == "wanda" and squares is not None:
        pruned = prune(matrix, np.sqrt(squares))
    else:
        why = "" if method == "magnitude" else f"{method}: {product.x.name} has no statistics for it"
        method, pruned = "magnitude", prune(matrix)
    error = _error(matrix, pruned, gram, squares)
    key = (product.weight, product.x)
    if key not in done:
        done[key] = add_constant(owner(product.node), f"{product.name}/2:4", _back(product, pruned))
    product.node.replace_input_with(1, done[key])
    drop(product.weight)
    return SparseDecision(product.name, SPARSE, method, why=why, error=error)


def _objection(product: Product) -> str:
    """Why a weight cannot be 2:4."""
    if product.weight.dtype != ir.DataType.FLOAT:
        return f"its weight is {product.weight.dtype}"
    inner = product.sizes[1] if product.conv else product.shape[0]
    return f"{inner} weights along K are not a multiple of {GROUP}" if inner % GROUP else ""


def _along_channels(product: Product) -> Array:
    """``[K, N]``; channels of a convolution are neighbours, for each element of its kernel, as TensorRT wants them."""
    matrix = product.matrix()
    if not product.conv:
        return matrix
    n, channels, taps = matrix.shape[1], product.sizes[1], product.taps
    return matrix.reshape(channels, taps, n).transpose(1, 0, 2).reshape(-1, n)


def _back(product: Product, matrix: Array) -> Array:
    if product.conv:
        n, channels, taps = matrix.shape[1], product.sizes[1], product.taps
        matrix = matrix.reshape(taps, channels, n).transpose(1, 0, 2).reshape(-1, n)
    return np.ascontiguousarray(product.from_matrix(matrix))


def _error(before: Array, after: Array, gram: Array | None, squares: Array | None) -> float:
    def energy(w: Array) -> float:
        if gram is not None:
            return float(np.vdot(w, gram @ w))
        return float(np.vdot(w, w if squares is None else squares[:, None] * w))

    return energy(after - before) / (energy(before) or 1.0)
