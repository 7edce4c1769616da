"""Products in the Q/DQ form, and what quantises their results, become infc.QuantizedLinear and infc.QuantizedConv."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from infc.passes.base import Miss, NodePass
from infc.passes.domain import DOMAIN
from infc.passes.graph import (
    add_constant,
    at,
    attribute,
    channels_first,
    channels_last,
    constant,
    dims,
    emit,
    is_op,
    owner,
    producer,
    replace,
    sole_use,
)
from infc.passes.quant import stored
from infc.passes.quant.products import Product
from infc.passes.quant.stored import Weight

_BYTES = (ir.DataType.UINT8, ir.DataType.INT8)
_ACTIVATIONS = (*_BYTES, ir.DataType.FLOAT8E4M3FN)
_HALVES = (ir.DataType.BFLOAT16, ir.DataType.FLOAT16, ir.DataType.FLOAT8E4M3FN)


@dataclass(frozen=True)
class _Rows:
    """What the product multiplies: ``q`` with a scale for the tensor, or for ``group`` elements of each row, or none."""

    q: ir.Value
    scale: ir.Value | None = None
    zero: ir.Value | None = None
    group: int = 0
    by_row: bool = False


class FuseQuantized(NodePass):
    """Linear and Conv of a stored weight, with their own scales: one for the tensor, one an output channel, or blocks along K. A
    QuantizeLinear with one constant scale that alone reads the result goes in as well. A Conv of pixels that have scales of their
    own is the product of a matrix."""

    name = "fuse_quantized"
    roots: ClassVar[frozenset[str]] = frozenset({"Linear", "Conv"})

    def rewrite(self, node: ir.Node) -> str | None:
        if node.domain != DOMAIN:
            return None
        weight, rows = stored.read(at(node, 1)), _activation(at(node, 0))
        if weight is None or rows is None:
            return None
        conv = node.op_type == "Conv"
        if conv and (weight.scale is None or rows.scale is None):
            return None  # floats: convolutions have no kernel for them
        n = (dims(weight.data) or ())[0 if conv else 1]
        scales = _scales(node, weight, conv, n)
        if conv and rows.by_row and not _is_pointwise(node, weight.data):
            raise Miss(node, "activations of a convolution have a scale for each row")
        bias = at(node, 2)
        if bias is not None and (constant(bias) is None or dims(bias) != (n,)):
            raise Miss(node, f"{bias.name} is no constant of {n} numbers")
        root, result = _result(node)
        attributes = {name: a.value for name, a in node.attributes.items()}
        if conv and rows.by_row:
            return _of_pixels(node, rows, weight.data, scales, root, result)
        if not conv:
            attributes |= {"group": rows.group, "block": weight.block, **({"fine_zeros": 1} if weight.fine else {})}
        residual, *number = _residual(at(node, 3)) if conv else (at(node, 3),)
        operands = [rows.q, rows.scale, rows.zero, weight.data, *scales, bias, residual, *result, *number]
        while operands[-1] is None:
            operands.pop()
        fused = emit(root, "QuantizedConv" if conv else "QuantizedLinear", operands, attributes, domain=DOMAIN,
                     name=node.name or "", like=root.outputs, sources=(node, root))
        replace(root.outputs[0], fused.outputs[0])
        return fused.name


def _is_pointwise(node: ir.Node, weight: ir.Value) -> bool:
    x = at(node, 0)
    assert x is not None
    return Product(node, x, weight, True, 1).pointwise


def _of_pixels(node: ir.Node, rows: _Rows, data: ir.Value, scales: tuple[ir.Value | None, ir.Value | None], root: ir.Node,
               result: tuple[ir.Value | None, ir.Value | None]) -> str | None:
    """The convolution as a QuantizedLinear between images whose channels come last."""
    name, matrix, y = node.name or "", constant(data), root.outputs[0]
    assert matrix is not None
    count, channels = matrix.shape.numpy()[:2]
    weight = add_constant(owner(node), f"{data.name}/matrix", np.ascontiguousarray(matrix.numpy().reshape(count, channels).T))
    residual = at(node, 3)
    if residual is not None:
        residual = channels_last(root, residual, f"{name}/residual")
    operands = [rows.q, rows.scale, rows.zero, weight, *scales, at(node, 2), residual, *result]
    while operands[-1] is None:
        operands.pop()
    shape = dims(y) or ()
    attributes = {key: attribute(node, key, default) for key, default in (("activation", ""), ("residual_first", 0))}
    attributes |= {"group": 0, "block": 0}
    fused = emit(root, "QuantizedLinear", operands, attributes, domain=DOMAIN, name=name,
                 like=[(y.dtype, (shape[0], *shape[2:], shape[1]))], sources=(node, root))
    replace(y, channels_first(root, fused.outputs[0], name))
    return fused.name


def _activation(value: ir.Value | None) -> _Rows | None:
    if value is None or value.dtype != ir.DataType.FLOAT:
        return None
    moved = producer(value, "Transpose")
    if moved is not None and len(dims(value) or ()) > 2 and _puts_channels_first(moved):
        found = _activation(moved.inputs[0])
        return found if found is not None and found.by_row and not found.group else _Rows(value)
    rows = producer(value, "DequantizeRows", domain=DOMAIN)
    if rows is not None and rows.inputs[0] is not None:
        return _Rows(rows.inputs[0], at(rows, 1), at(rows, 2), attribute(rows, "group", 0), True)
    cast = producer(value, "Cast")
    if cast is not None and cast.inputs[0] is not None and cast.inputs[0].dtype in _HALVES:
        return _Rows(cast.inputs[0])
    node = producer(value, "DequantizeLinear")
    if node is None or node.inputs[0] is None or node.inputs[0].dtype not in _ACTIVATIONS or constant(node.inputs[0]) is not None:
        return _Rows(value)
    scale, zero = _number(node, 1), _number(node, 2)
    if scale is None or attribute(node, "block_size", 0) or (zero is None and at(node, 2) is not None):
        return _Rows(value)
    return _Rows(node.inputs[0], scale, zero)


def _puts_channels_first(transpose: ir.Node) -> bool:
    perm = list(attribute(transpose, "perm") or ())
    return perm == [0, len(perm) - 1, *range(1, len(perm) - 1)]


def _residual(value: ir.Value | None) -> tuple[ir.Value | None, ir.Value | None, ir.Value | None]:
    """The residual of a convolution, with scale and zero where it is quantised."""
    found = None if value is None else _activation(value)
    if found is None or found.by_row or found.scale is None or found.q.dtype not in _BYTES:
        return value, None, None
    return found.q, found.scale, found.zero


def _number(node: ir.Node, index: int) -> ir.Value | None:
    """The operand, if it is one number: as a scalar where it is constant."""
    value = at(node, index)
    shape = dims(value)
    if value is None or shape not in ((), (1,)):
        return None
    tensor = constant(value)
    if shape == () or tensor is None:
        return value if shape == () else None
    return add_constant(owner(node), f"{value.name}/scalar", ir.tensor(tensor.numpy().reshape(()), dtype=tensor.dtype))


def _scales(node: ir.Node, weight: Weight, conv: bool, n: object) -> tuple[ir.Value | None, ir.Value | None]:
    """Scales and zeros as the fused operator takes them."""
    if weight.scale is None:
        return None, None
    shape, k_axis = dims(weight.scale), 1 if conv else 0
    if weight.block:
        if conv or weight.axis != k_axis:
            raise Miss(node, f"its weight has blocks along axis {weight.axis}")
        return weight.scale, weight.zero
    if weight.one_scale:
        dq = at(node, 1)
        maker = dq.producer() if dq is not None else None
        assert maker is not None
        return _number(maker, 1), _number(maker, 2)
    if weight.axis == k_axis or shape != (n,):
        raise Miss(node, f"its weight has scales {list(shape or ())} along axis {weight.axis}")
    return weight.scale, weight.zero


def _result(node: ir.Node) -> tuple[ir.Node, tuple[ir.Value | None, ir.Value | None]]:
    """The node that ends the match, and scale and zero of a quantised result."""
    quantise = sole_use(node.outputs[0])
    if quantise is None or not is_op(quantise, "QuantizeLinear") or quantise.inputs[0] is not node.outputs[0]:
        return node, (None, None)
    scale, zero, dtype = _number(quantise, 1), _number(quantise, 2), quantise.outputs[0].dtype
    if (scale is None or constant(scale) is None or dtype not in _BYTES or (zero is None and at(quantise, 2) is not None)
            or (zero is not None and constant(zero) is None)):
        return node, (None, None)
    if zero is None and dtype == ir.DataType.INT8:
        zero = add_constant(owner(node), "infc.zero.int8", np.zeros((), np.int8))
    return quantise, (scale, zero)
