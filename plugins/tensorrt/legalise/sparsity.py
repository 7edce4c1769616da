"""Finds weights with the 2:4 pattern: of four neighbours along K, the axis that is summed over, at most two are not zero.

It reads the finished graph, so a rewrite cannot turn the axis unnoticed, and looks through Q/DQ, Cast and Transpose.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx_ir as ir

from infc.compiler.errors import UnsupportedError, UsageError
from infc.plugins.tensorrt.legalise.contract import SparseWeight
from infc.plugins.tensorrt.legalise.graph import array, attribute, is_op, name_of

_SEEN_THROUGH = ("QuantizeLinear", "DequantizeLinear", "Cast", "Identity", "Transpose")
_GROUP, _MOST = 4, 2


def check_sparsity(model: ir.Model, wanted: str) -> list[SparseWeight]:
    """The state of every weight, if a pattern is wanted. Raises UsageError E0725 for another pattern than 2:4, UnsupportedError
    E0715 if no weight holds it."""
    if not wanted:
        return []
    if wanted != "2:4":
        raise UsageError("E0725", f"there is no sparsity '{wanted}'", where="--sparsity", hint="2:4 is the pattern that GPUs have")
    weights = [_judge(*found) for found in _weights(model.graph)]
    if any(w.state == "eligible" for w in weights):
        return weights
    turned = next((w for w in weights if w.state == "wrong-axis"), None)
    if turned is not None:
        raise UnsupportedError("E0715", f"no weight holds 2:4 along the axis that is summed over; '{turned.name}' holds it along "
                               f"another: {turned.detail}", where=turned.node, hint="prune along the input channels")
    raise UnsupportedError("E0715", f"none of {len(weights)} weights holds the 2:4 pattern", where="--sparsity",
                           hint="prune the weights 2:4 along the input channels first, or build without --sparsity")


def _weights(graph: ir.Graph) -> Iterator[tuple[ir.Node, ir.Value, int]]:
    """(node, constant, axis of K in the constant)."""
    for node in graph:
        if not is_op(node, "Conv", "MatMul", "Gemm") or node.inputs[1] is None:
            continue
        value = node.inputs[1]
        rank = len(value.shape) if value.shape is not None else 0
        axis = 1 if is_op(node, "Conv") or attribute(node, "transB", 0) else rank - 2
        source, axis = _origin(value, axis)
        if source.const_value is not None and source.shape is not None and len(source.shape) > 1 and axis >= 0:
            yield node, source, axis


def _origin(value: ir.Value, axis: int) -> tuple[ir.Value, int]:
    """The constant that the value is made from, and where its axis lies there."""
    while is_op(node := value.producer(), *_SEEN_THROUGH):
        assert node is not None
        source = node.inputs[0]
        if source is None:
            break
        if is_op(node, "Transpose"):
            rank = len(value.shape) if value.shape is not None else 0
            axis = attribute(node, "perm", list(reversed(range(rank))))[axis]
        value = source
    return value, axis


def _judge(node: ir.Node, value: ir.Value, axis: int) -> SparseWeight:
    data = array(value)
    assert data is not None
    name = value.name or ""
    if holds(data, axis):
        return SparseWeight(name, name_of(node), axis, "eligible", f"2:4 along axis {axis} of {list(data.shape)}")
    others = [a for a in range(data.ndim) if a != axis and data.shape[a] >= _GROUP and holds(data, a)]
    if others:
        return SparseWeight(name, name_of(node), axis, "wrong-axis",
                            f"2:4 along axis {others[0]} of {list(data.shape)}, K is axis {axis}")
    zeros = float((data == 0).mean())
    return SparseWeight(name, name_of(node), axis, "dense", f"{zeros:.0%} zeros, not 2:4 along axis {axis} of {list(data.shape)}")


def holds(data: np.ndarray[Any, Any], axis: int) -> bool:
    """Whether at most two in each group of four along the axis, which four divides, are not zero."""
    if data.shape[axis] == 0 or data.shape[axis] % _GROUP:
        return False
    filled = np.moveaxis(data != 0, axis, -1).reshape(-1, _GROUP)
    return bool((filled.sum(axis=1) <= _MOST).all())
