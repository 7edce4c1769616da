"""Convolutions become infc.Conv, which takes an activation and a residual; scales and shifts of channels go into the weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import onnx_ir as ir

from infc.passes.base import Miss, NodePass
from infc.passes.domain import DOMAIN
from infc.passes.graph import add_constant, at, attribute, constant, dims, emit, ints, producer, replace, scalar, sole_use

Array = np.ndarray[Any, Any]


class FoldPad(NodePass):
    """A Pad with zeros in front of a Conv becomes pads of the Conv."""

    name = "fold_pad"
    roots: ClassVar[frozenset[str]] = frozenset({"Conv"})

    def rewrite(self, node: ir.Node) -> str | None:
        pad = producer(at(node, 0), "Pad")
        rank = len(dims(at(node, 1)) or ())
        if pad is None or node.domain != "" or rank < 3:
            return None
        if sole_use(pad.outputs[0]) is not node:
            raise Miss(node, f"{pad.outputs[0].name} is used elsewhere")
        sizes = _pads(pad, rank)
        if sizes is None or attribute(node, "auto_pad", "NOTSET") != "NOTSET":
            raise Miss(node, "the Pad is not of zeros and known sizes, or the Conv pads by itself")
        before, after = sizes[:rank], sizes[rank:]
        if any(before[:2]) or any(after[:2]) or min(sizes) < 0:
            raise Miss(node, "the Pad is not of spatial dimensions alone, or cuts")
        own = list(attribute(node, "pads", [0] * (2 * rank - 4)))
        pads = [a + b for a, b in zip(own, [*before[2:], *after[2:]], strict=True)]
        attributes = {name: a.value for name, a in node.attributes.items()} | {"pads": pads}
        fused = emit(node, "Conv", [pad.inputs[0], *node.inputs[1:]], attributes, name=node.name or "", like=node.outputs,
                     sources=(pad, node))
        replace(node.outputs[0], fused.outputs[0])
        return fused.name


def _pads(pad: ir.Node, rank: int) -> list[int] | None:
    """Sizes before and after all dimensions, of a Pad with zeros."""
    sizes, axes = ints(at(pad, 1)), ints(at(pad, 3))
    value = at(pad, 2)
    if sizes is None or attribute(pad, "mode", "constant") != "constant" or (value is not None and scalar(value) != 0.0):
        return None
    if at(pad, 3) is None:
        return sizes if len(sizes) == 2 * rank else None
    if axes is None:
        return None
    full = [0] * (2 * rank)
    for i, axis in enumerate(axes):
        full[axis % rank], full[axis % rank + rank] = sizes[i], sizes[i + len(axes)]
    return full


class FoldBatchNorm(NodePass):
    """BatchNormalization, and Mul and Add by a constant a channel, go into the weights and bias of the Conv before them."""

    name = "fold_batch_norm"
    roots: ClassVar[frozenset[str]] = frozenset({"BatchNormalization", "Mul", "Add"})

    def rewrite(self, node: ir.Node) -> str | None:
        found = next(((v, producer(v, "Conv")) for v in node.inputs[:2] if producer(v, "Conv") is not None), None)
        if found is None or node.domain != "":
            return None
        value, conv = found
        assert value is not None
        assert conv is not None
        weight, bias = at(conv, 1), at(conv, 2)
        shape = dims(weight)
        if weight is None or constant(weight) is None or (bias is not None and constant(bias) is None) or not shape:
            raise Miss(node, f"the weights of {conv.name} are not constant")
        affine = _batch_norm(node, value) if node.op_type == "BatchNormalization" else _per_channel(node, value, shape)
        if affine is None:
            return None
        if sole_use(value) is not node:
            raise Miss(node, f"{value.name} is used elsewhere")
        return _fold(node, conv, affine)


Affine = Callable[[], tuple[Array, Array]]  # scale and shift of each channel, computed when first read


def _batch_norm(node: ir.Node, value: ir.Value) -> Affine | None:
    if at(node, 0) is not value:
        return None
    if any(constant(at(node, i)) is None for i in range(1, 5)):
        raise Miss(node, "its parameters are not constant")
    if attribute(node, "training_mode", 0) or any(v.uses() or v.is_graph_output() for v in node.outputs[1:]):
        raise Miss(node, "it is in training mode")
    epsilon = attribute(node, "epsilon", 1e-5)

    values = [constant(v) for v in node.inputs[1:5]]

    def affine() -> tuple[Array, Array]:
        gamma, beta, mean, variance = (t.numpy().astype(np.float64) for t in values if t is not None)
        scale = gamma / np.sqrt(variance + epsilon)
        return scale, beta - mean * scale

    return affine


def _per_channel(node: ir.Node, value: ir.Value, shape: tuple[Any, ...]) -> Affine | None:
    other = node.inputs[1] if node.inputs[0] is value else node.inputs[0]
    tensor, sizes = constant(other), dims(other)
    rank, channels = len(shape), shape[0]
    if tensor is None or sizes is None or len(sizes) > rank:
        return None
    full = (1,) * (rank - len(sizes)) + sizes
    if any(d != 1 for i, d in enumerate(full) if i != 1) or full[1] not in (1, channels):
        return None
    multiplies = node.op_type == "Mul"

    def affine() -> tuple[Array, Array]:
        each = np.broadcast_to(tensor.numpy().astype(np.float64).reshape(-1), (channels,))
        return (each, np.zeros(channels)) if multiplies else (np.ones(channels), each)

    return affine


def _fold(node: ir.Node, conv: ir.Node, affine: Affine) -> str | None:
    weight, bias = at(conv, 1), at(conv, 2)
    assert weight is not None
    assert weight.const_value is not None
    assert conv.graph is not None
    old, shift = weight.const_value, bias.const_value if bias is not None else None
    shape = dims(weight) or ()

    def scaled() -> Array:
        scale = affine()[0].reshape(-1, *[1] * (len(shape) - 1))
        return np.asarray(old.numpy() * scale)

    def shifted() -> Array:
        scale, more = affine()
        return np.asarray((shift.numpy() if shift is not None else 0.0) * scale + more)

    folded = [_lazy(node, f"{node.name}/weight", shape, old.dtype, scaled),
              _lazy(node, f"{node.name}/bias", shape[:1], old.dtype, shifted)]
    attributes = {name: a.value for name, a in conv.attributes.items()}
    fused = emit(node, "Conv", [at(conv, 0), *folded], attributes, name=conv.name or "", like=node.outputs[:1],
                 sources=(conv, node))
    replace(node.outputs[0], fused.outputs[0])
    return fused.name


def _lazy(node: ir.Node, name: str, shape: tuple[Any, ...], dtype: ir.DataType, function: Callable[[], Array]) -> ir.Value:
    """A constant computed when it is first read, so that a pass costs no pass over the weights."""
    assert isinstance(node.graph, ir.Graph)
    kind = dtype.numpy()
    tensor = ir.LazyTensor(lambda: ir.tensor(np.ascontiguousarray(function().astype(kind)), dtype=dtype), dtype=dtype,
                           shape=ir.Shape(shape), name=name, cache=True)
    return add_constant(node.graph, name, tensor)


class FuseConv(NodePass):
    """Conv becomes infc.Conv, into which an activation and a residual may go."""

    name = "fuse_conv"
    roots: ClassVar[frozenset[str]] = frozenset({"Conv"})

    def rewrite(self, node: ir.Node) -> str | None:
        if node.domain != "" or node.outputs[0].dtype != ir.DataType.FLOAT:
            return None
        attributes = {name: a.value for name, a in node.attributes.items()} | {"activation": ""}
        fused = emit(node, "Conv", node.inputs, attributes, domain=DOMAIN, name=node.name or "", like=node.outputs)
        replace(node.outputs[0], fused.outputs[0])
        return fused.name
