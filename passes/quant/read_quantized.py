"""Other people's quantised graphs in the Q/DQ form: operators on integers, weights quantised in the graph, weights in blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import onnx_ir as ir

from infc.passes.base import Miss, NodePass
from infc.passes.graph import add_constant, array, at, attribute, constant, dims, emit, is_op, other, owner, replace, sole_use
from infc.passes.quant import stored
from infc.passes.quant.numbers import tensor

Array = np.ndarray[Any, Any]
_F32 = ir.DataType.FLOAT
_RANGES = {ir.DataType.INT8: (-128, 127), ir.DataType.UINT8: (0, 255), ir.DataType.FLOAT8E4M3FN: (-448, 448),
           ir.DataType.INT4: (-8, 7), ir.DataType.UINT4: (0, 15)}


class ReadQuantized(NodePass):
    """QLinearMatMul, QLinearConv, MatMulInteger and ConvInteger of constant weights become MatMul and Conv between Q/DQ. A weight
    that the graph quantises is stored; a Transpose of a stored one is done; a bias in int32 becomes f32."""

    name = "read_quantized"
    roots: ClassVar[frozenset[str]] = frozenset({"QLinearMatMul", "QLinearConv", "MatMulInteger", "ConvInteger", "QuantizeLinear",
                                                 "DequantizeLinear", "Transpose"})

    def rewrite(self, node: ir.Node) -> str | None:
        return _RULES[node.op_type](node) if node.domain == "" else None


def _dequantize(anchor: ir.Node, name: str, value: ir.Value, scale: ir.Value, zero: ir.Value | None, axis: int) -> ir.Value:
    inputs = [value, scale] if zero is None else [value, scale, zero]
    return emit(anchor, "DequantizeLinear", inputs, {"axis": axis}, name=name, like=[(_F32, dims(value))]).outputs[0]


def _quantise(root: ir.Node, value: ir.Value, scale: ir.Value | None, zero: ir.Value | None) -> str:
    done = emit(root, "QuantizeLinear", [value, scale, zero], name=f"{root.name}/q", like=root.outputs, sources=(root,))
    replace(root.outputs[0], done.outputs[0])
    return root.name or ""


def _vector(node: ir.Node, index: int, channels: int) -> ir.Value | None:
    """Scales or zeros of a weight as one number or ``[channels]``; None where there are none. Raises Miss for others."""
    value = at(node, index)
    if value is None:
        return None
    data = array(value)
    if data is None or data.size not in (1, channels):
        raise Miss(node, f"{value.name} is no constant with a number for each of {channels} channels")
    wanted = () if data.size == 1 else (channels,)
    if data.shape == wanted:
        return value
    return add_constant(owner(node), f"{value.name}/flat", ir.tensor(data.reshape(wanted), dtype=value.dtype))


def _weight(node: ir.Node, index: int) -> ir.Value:
    value = at(node, index)
    if value is None or constant(value) is None:
        raise Miss(node, "it multiplies two activations")
    return value


def _qlinear(node: ir.Node) -> str:
    """QLinearMatMul and QLinearConv."""
    x, weight, conv = at(node, 0), _weight(node, 3), node.op_type == "QLinearConv"
    shape = dims(weight) or ()
    axis = 0 if conv else len(shape) - 1
    x_scale, y_scale = at(node, 1), at(node, 6)
    if x is None or x_scale is None or dims(x_scale) not in ((), (1,)) or dims(y_scale) not in ((), (1,)) or not shape:
        raise Miss(node, "its activations have more than one scale")
    if x_scale.dtype != _F32:
        raise Miss(node, f"its scales are {x_scale.dtype}")
    channels = int(shape[axis])  # type: ignore[arg-type]
    w_scale, w_zero = _vector(node, 4, channels), _vector(node, 5, channels)
    assert w_scale is not None
    inputs = [_dequantize(node, f"{node.name}/x", x, x_scale, at(node, 2), 1),
              _dequantize(node, f"{node.name}/w", weight, w_scale, w_zero, axis)]
    if at(node, 8) is not None:
        inputs.append(_int32_bias(node, at(node, 8), x_scale, w_scale))
    product = emit(node, "Conv" if conv else "MatMul", inputs, {k: a.value for k, a in node.attributes.items()},
                   name=node.name or "", like=[(_F32, dims(node.outputs[0]))])
    return _quantise(node, product.outputs[0], y_scale, at(node, 7))


def _int32_bias(node: ir.Node, bias: ir.Value | None, x_scale: ir.Value, w_scale: ir.Value) -> ir.Value:
    """A bias in steps of a product of 8-bit integers, as f32."""
    data, first, second = array(bias), array(x_scale), array(w_scale)
    if data is None or first is None or second is None:
        raise Miss(node, "its bias or a scale is no constant")
    return add_constant(owner(node), f"{node.name}/bias", np.asarray(
        data.astype(np.float64) * first.reshape(()).astype(np.float64) * second.astype(np.float64), np.float32))


def _integer(node: ir.Node) -> str | None:
    """MatMulInteger or ConvInteger of what a DynamicQuantizeLinear made, cast to f32 and scaled by both scales."""
    x, weight = at(node, 0), at(node, 1)
    source = x.producer() if x is not None else None
    cast = sole_use(node.outputs[0])
    scaled = sole_use(cast.outputs[0]) if is_op(cast, "Cast") and cast is not None else None
    if x is None or weight is None or constant(weight) is None or not is_op(source, "DynamicQuantizeLinear"):
        return None
    assert source is not None
    if cast is None or scaled is None or not is_op(scaled, "Mul") or attribute(cast, "to") != int(_F32):
        raise Miss(node, "what follows is not a Cast to float32 and a multiplication by scales")
    if at(node, 2) is not source.outputs[2]:
        raise Miss(node, "its zero point is not that of its activations")
    shape, conv = dims(weight) or (), node.op_type == "ConvInteger"
    axis = 0 if conv else len(shape) - 1
    root, factor = _weight_scale(scaled, cast.outputs[0], source.outputs[1])
    data = array(factor)
    if factor is None or data is None or data.size not in (1, shape[axis]):
        raise Miss(node, "the factors are not the scales of activations and weights")
    spatial = (1,) * (len(shape) - 2 if conv else 0)
    if data.size > 1 and dims(factor) not in ((data.size, *spatial), (1, data.size, *spatial)):
        raise Miss(node, f"{factor.name} is not along the output channels")
    flat = data.reshape(() if data.size == 1 else (-1,))
    scale = factor if factor.shape is not None and dims(factor) == flat.shape else add_constant(
        owner(node), f"{factor.name}/flat", flat)
    inputs = [_dequantize(node, f"{node.name}/x", x, source.outputs[1], source.outputs[2], 1),
              _dequantize(node, f"{node.name}/w", weight, scale, _vector(node, 3, int(shape[axis])), axis)]  # type: ignore[arg-type]
    product = emit(root, "Conv" if conv else "MatMul", inputs, {k: a.value for k, a in node.attributes.items()},
                   name=f"{node.name}/float", like=root.outputs, sources=(node, cast, root))
    name = node.name or ""
    replace(root.outputs[0], product.outputs[0])
    return name


def _weight_scale(scaled: ir.Node, product: ir.Value, x_scale: ir.Value) -> tuple[ir.Node, ir.Value | None]:
    """The last Mul, and the scale of the weights: ``product * (x_scale * scale)``, or one multiplication after the other."""
    factor = other(scaled, product)
    inner = factor.producer() if factor is not None else None
    if inner is not None and is_op(inner, "Mul") and x_scale in inner.inputs:
        return scaled, other(inner, x_scale)
    after = sole_use(scaled.outputs[0])
    if not is_op(after, "Mul") or after is None:
        return scaled, None
    pair = (factor, other(after, scaled.outputs[0]))
    if x_scale not in pair:
        return scaled, None
    return after, pair[1] if pair[0] is x_scale else pair[0]


def _stored(node: ir.Node) -> str | None:
    """QuantizeLinear of a constant."""
    x, scale, zero = array(at(node, 0)), array(at(node, 1)), array(at(node, 2))
    value = node.outputs[0]
    dtype = value.dtype
    if x is None or scale is None or (zero is None and at(node, 2) is not None) or dtype not in _RANGES or value.is_graph_output():
        return None
    if dtype is None or attribute(node, "block_size", 0) or x.ndim == 0:
        return None
    axis = attribute(node, "axis", 1) % x.ndim
    low, high = _RANGES[dtype]

    def spread(a: Array) -> Array:
        return a.reshape(()) if a.size == 1 else a.reshape([-1 if i == axis else 1 for i in range(x.ndim)])

    scaled = x.astype(np.float32) / spread(scale.astype(np.float32))
    if dtype != ir.DataType.FLOAT8E4M3FN:
        scaled = np.rint(scaled)
    if zero is not None:
        scaled = scaled + spread(zero).astype(np.float32)
    name = f"{value.name}/stored"
    data = np.clip(scaled, low, high).astype(dtype.numpy())
    replace(value, add_constant(owner(node), name, tensor(data, dtype, name)), rename=False)
    return node.name


def _bias(node: ir.Node) -> str | None:
    """DequantizeLinear of a constant vector."""
    x, scale, zero = array(at(node, 0)), array(at(node, 1)), array(at(node, 2))
    value = node.outputs[0]
    if x is None or scale is None or x.ndim > 1 or (zero is None and at(node, 2) is not None) or value.is_graph_output():
        return None
    if value.dtype != _F32 or attribute(node, "block_size", 0):
        return None
    wide = x.astype(np.float64) - (0 if zero is None else zero.astype(np.float64))
    data = np.asarray(wide * scale.astype(np.float64), np.float32).reshape(x.shape)
    replace(value, add_constant(owner(node), f"{value.name}/float", data), rename=False)
    return node.name


def _transpose(node: ir.Node) -> str | None:
    weight = stored.read(at(node, 0))
    if weight is None or list(attribute(node, "perm", [1, 0])) != [1, 0] or len(dims(weight.data) or ()) != 2:
        return None
    x, value = node.inputs[0], node.outputs[0]
    assert x is not None
    if value.is_graph_output():
        return None
    replace(value, stored.transposed(x, node), rename=False)
    return node.name


_RULES: dict[str, Callable[[ir.Node], str | None]] = {
    "QLinearMatMul": _qlinear,
    "QLinearConv": _qlinear,
    "MatMulInteger": _integer,
    "ConvInteger": _integer,
    "QuantizeLinear": _stored,
    "DequantizeLinear": _bias,
    "Transpose": _transpose,
}
