"""Projections by a constant matrix become infc.Linear."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import onnx_ir as ir

from infc.passes.base import Miss, NodePass
from infc.passes.domain import DOMAIN
from infc.passes.graph import Dim, add_constant, at, attribute, constant, dims, emit, is_op, other, replace, sole_use
from infc.passes.quant import stored

_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


class FuseLinear(NodePass):
    """MatMul by a constant ``[K,N]``, with the Add of a constant ``[N]`` that follows, and Gemm with constant weight, become
    Linear. The weight may be stored in fewer bits."""

    name = "fuse_linear"
    roots: ClassVar[frozenset[str]] = frozenset({"MatMul", "Gemm"})

    def rewrite(self, node: ir.Node) -> str | None:
        if node.domain != "":
            return None
        x, weight = at(node, 0), at(node, 1)
        shape = dims(weight)
        if (
            x is None
            or weight is None
            or not stored.is_weight(weight)
            or shape is None
            or len(shape) != 2
            or weight.dtype not in _FLOATS
        ):
            return None
        if len(dims(x) or ()) < 2:
            raise Miss(node, f"the rank of {x.name} is unknown or below 2")
        return _gemm(node, x, weight) if node.op_type == "Gemm" else _matmul(node, x, weight)


def _matmul(node: ir.Node, x: ir.Value, weight: ir.Value) -> str | None:
    root, bias = node, None
    add = sole_use(node.outputs[0])
    if is_op(add, "Add"):
        assert add is not None
        bias = _bias(other(add, node.outputs[0]), (dims(weight) or (None, None))[1])
        root = add if bias is not None else node
    inputs = [x, weight] if bias is None else [x, weight, bias]
    fused = emit(
        root, "Linear", inputs, {"activation": ""}, domain=DOMAIN, name=root.name or "", like=root.outputs, sources=(node, root)
    )
    replace(root.outputs[0], fused.outputs[0])
    return fused.name


def _bias(value: ir.Value | None, width: Dim) -> ir.Value | None:
    """The value as ``[width]``, if it is a constant of that or of 1 in front of it."""
    tensor = constant(value)
    if value is None or tensor is None or tensor.size != width or (dims(value) or (None,))[-1] != width:
        return None
    return value if tensor.shape.rank() == 1 else _derived(value, "flat", (width,), lambda a: a.reshape(-1))


def _gemm(node: ir.Node, x: ir.Value, weight: ir.Value) -> str | None:
    if attribute(node, "transA", 0):
        raise Miss(node, "Gemm transposes its first operand")
    bias, alpha, beta = at(node, 2), attribute(node, "alpha", 1.0), attribute(node, "beta", 1.0)
    trans, plain = attribute(node, "transB", 0), constant(weight) is not None
    if alpha != 1.0 and not plain:
        raise Miss(node, "Gemm scales a weight that is stored in fewer bits")
    if bias is not None:
        bias = _bias(bias, (dims(weight) or (None, None))[0 if trans else 1])
        if bias is None:
            raise Miss(node, "the third operand of Gemm is not a constant row")
        if beta != 1.0:
            bias = _derived(bias, f"times {beta}", dims(bias) or (), lambda a: a * a.dtype.type(beta))
    if trans and plain:
        weight = _derived(weight, "transposed", (dims(weight) or ())[::-1], lambda a: a.T)
    elif trans:
        weight = stored.transposed(weight, node)
    if alpha != 1.0:
        weight = _derived(weight, f"times {alpha}", dims(weight) or (), lambda a: a * a.dtype.type(alpha))
    fused = emit(
        node,
        "Linear",
        [x, weight] if bias is None else [x, weight, bias],
        {"activation": ""},
        domain=DOMAIN,
        name=node.name or "",
        like=node.outputs,
    )
    replace(node.outputs[0], fused.outputs[0])
    return fused.name


def _derived(value: ir.Value, how: str, shape: tuple[Any, ...], function: Any) -> ir.Value:
    """A constant computed from another when it is first read, so that a pass costs no pass over the weights."""
    tensor = value.const_value
    assert tensor is not None
    assert value.graph is not None
    name = f"{value.name}/{how}"
    lazy = ir.LazyTensor(
        lambda: ir.tensor(np.ascontiguousarray(function(tensor.numpy())), dtype=tensor.dtype),
        dtype=tensor.dtype,
        shape=ir.Shape(shape),
        name=name,
        cache=True,
    )
    return add_constant(value.graph, name, lazy)
