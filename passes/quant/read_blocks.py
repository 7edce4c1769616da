"""ONNX Runtime's MatMulNBits, whose weight is packed in blocks of a column, as MatMul of a DequantizeLinear.

Source: ONNX Runtime's docs/ContribOperators.md.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from infc.compiler.errors import UnsupportedError
from infc.passes.graph import add_constant, array, at, attribute, dims, emit, owner, replace
from infc.passes.quant.numbers import tensor

Array = np.ndarray[Any, Any]
_TYPES = {4: ir.DataType.UINT4, 8: ir.DataType.UINT8}


def read_blocks(model: ir.Model) -> int:
    """How many were written out. Raises UnsupportedError E0402 for a use that Q/DQ cannot express."""
    nodes = [n for n in model.graph if n.domain == "com.microsoft" and n.op_type == "MatMulNBits"]
    for node in nodes:
        _read(node)
    return len(nodes)


def _read(node: ir.Node) -> None:
    """Inputs: a, b ``[N, G, bytes]``, scales ``[N, G]``, zeros packed like b, order of rows, bias."""
    bits, k, n, block = (int(attribute(node, name, 4)) for name in ("bits", "K", "N", "block_size"))
    packed, scales, zeros = array(at(node, 1)), array(at(node, 2)), array(at(node, 3))
    groups = -(-k // block) if block > 0 else 0
    if (bits not in _TYPES or at(node, 4) is not None or packed is None or scales is None
            or (zeros is None and at(node, 3) is not None)):
        raise _unsupported(node, f"{bits} bits, an order of rows, or weights that are not constant")
    if packed.size * 8 != n * groups * block * bits or scales.size != n * groups or k % block:
        raise _unsupported(node, f"sizes {list(packed.shape)} and {list(scales.shape)} for K = {k}, N = {n} in blocks of {block}")
    dtype = _TYPES[bits]
    weight = _unpack(packed.reshape(n, -1), bits)[:, :k].T
    zero = np.full((groups, n), 1 << bits - 1, np.uint8)
    if zeros is not None:
        if zeros.dtype != np.uint8 or zeros.size * 8 < n * groups * bits or zeros.size % n:
            raise _unsupported(node, f"zero points {list(zeros.shape)} of {zeros.dtype}")
        zero = _unpack(zeros.reshape(n, -1), bits)[:, :groups].T
    y, x = node.outputs[0], node.inputs[0]
    graph, name = owner(node), f"{y.name}/weight"  # nodes have no names yet
    parts = [add_constant(graph, f"{name}/{what}", tensor(data.astype(kind.numpy()), kind, f"{name}/{what}"))
             for what, data, kind in (("stored", weight, dtype), ("scale", scales.reshape(n, groups).T, _type_of(node)),
                                      ("zero", zero, dtype))]
    w = emit(node, "DequantizeLinear", parts, {"axis": 0, "block_size": block}, name=name, like=[(_type_of(node), (k, n))])
    bias = at(node, 5)
    product = emit(node, "MatMul", [x, w.outputs[0]], name=f"{y.name}/product", like=[(y.dtype, dims(y))])
    if bias is not None:
        product = emit(node, "Add", [product.outputs[0], bias], name=f"{y.name}/sum", like=[(y.dtype, dims(y))])
    replace(y, product.outputs[0])


def _type_of(node: ir.Node) -> ir.DataType:
    scales = at(node, 2)
    assert scales is not None
    assert scales.dtype is not None
    return scales.dtype


def _unpack(data: Array, bits: int) -> Array:
    """Bytes of each row as numbers, the low bits first."""
    if bits == 8:
        return data
    return np.stack([data & 15, data >> 4], axis=-1).reshape(data.shape[0], -1)


def _unsupported(node: ir.Node, what: str) -> UnsupportedError:
    return UnsupportedError("E0402", f"com.microsoft::MatMulNBits: {what} is not supported", where=f"node '{node.name}'",
                            node=node.name or "", hint="quantise the model again in blocks that divide K, or with infc")
