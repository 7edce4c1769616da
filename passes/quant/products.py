"""The products of a graph that can be stored in fewer bits: what they multiply, and along which axes."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx_ir as ir

from infc.passes.domain import DOMAIN
from infc.passes.graph import at, attribute, constant, dims
from infc.passes.quant.patches import Patches
from infc.passes.quant.stored import read

Array = np.ndarray[Any, Any]
KEPT = "its weight is stored in fewer bits, and keeps its own numbers"


@dataclass(frozen=True)
class Product:
    """A node that multiplies ``x`` by the constant ``weight`` ``[K, N]``, or ``[N, K]`` where ``k_axis`` is 1; of a Conv
    ``[N, C, ...]``, whose K is all that one output channel sums over."""

    node: ir.Node
    x: ir.Value
    weight: ir.Value
    conv: bool
    k_axis: int

    @property
    def name(self) -> str:
        return self.node.name or ""

    @property
    def n_axis(self) -> int:
        return 0 if self.conv else 1 - self.k_axis

    def now(self) -> Product:
        """With the operands that the node has by now."""
        x, weight = at(self.node, 0), at(self.node, 1)
        assert x is not None
        assert weight is not None
        return replace(self, x=x, weight=weight)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Of the weight."""
        assert self.weight.const_value is not None
        return tuple(self.weight.const_value.shape.numpy())

    @property
    def shape(self) -> tuple[int, int]:
        """K and N."""
        sizes, n = self.sizes, self.sizes[self.n_axis]
        return math.prod(sizes) // max(n, 1), n

    def matrix(self) -> Array:
        """The weight, f32 ``[K, N]``; a view where it can be."""
        tensor = self.weight.const_value
        assert tensor is not None
        return self.to_matrix(np.asarray(tensor.numpy(), np.float32))

    def to_matrix(self, data: Array) -> Array:
        if self.conv:
            return data.reshape(data.shape[0], -1).T
        return data if self.k_axis == 0 else data.T

    def from_matrix(self, data: Array) -> Array:
        """``[K, N]``, or ``[G, N]`` of a matrix, in the order of the weight's axes."""
        if self.conv:
            return data.T.reshape(self.sizes)
        return data if self.k_axis == 0 else data.T

    @property
    def gram(self) -> str:
        """The name of its Gram matrix: that of a matrix's rows, or of the patches that a convolution meets."""
        return f"{self.x.name} of {self.name}" if self.conv else self.x.name or ""

    def patches(self) -> Patches | None:
        """What a convolution meets, where its padding is given in numbers."""
        axes, auto = len(self.sizes) - 2, attribute(self.node, "auto_pad", "NOTSET")
        if not self.conv or auto not in ("NOTSET", "VALID"):
            return None
        one, groups = (1,) * axes, attribute(self.node, "group", 1)
        strides, dilations = (tuple(attribute(self.node, name) or one) for name in ("strides", "dilations"))
        pads = attribute(self.node, "pads") if auto == "NOTSET" else None
        return Patches(self.sizes[2:], strides, dilations, tuple(pads or (0, 0) * axes), groups, self.sizes[1] * groups)

    @property
    def pointwise(self) -> bool:
        """Whether it is a convolution that is a product of each pixel's channels and a matrix."""
        if not self.conv or attribute(self.node, "auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
            return False
        ones = {*self.sizes[2:], *(attribute(self.node, "strides") or ()), attribute(self.node, "group", 1)}
        return ones == {1} and not any(attribute(self.node, "pads") or ())

    @property
    def taps(self) -> int:
        """How many rows of the matrix each channel of x meets: 1, or as many as a kernel has elements."""
        return math.prod(self.sizes[2:]) if self.conv else 1


def find(model: ir.Model) -> tuple[list[Product], dict[str, str]]:
    """Products with constant weights in floats; and of other nodes with such operators why they are none, by name."""
    found, others = [], {}
    for node in model.graph:
        if not ((node.domain == DOMAIN and node.op_type in ("Linear", "Conv"))
                or (node.domain == "" and node.op_type in ("MatMul", "Gemm", "Conv"))):
            continue
        product = _product(node)
        if isinstance(product, str):
            others[node.name or ""] = product
        else:
            found.append(product)
    return found, others


def _product(node: ir.Node) -> Product | str:
    x, weight = at(node, 0), at(node, 1)
    if x is None or weight is None or constant(x) is not None:
        return "it multiplies constants"
    if constant(weight) is None:
        return KEPT if read(weight) is not None else "it multiplies two activations"
    shape = dims(weight) or ()
    if weight.dtype not in (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16) or 0 in shape:
        return f"its weight is {list(shape)} of {weight.dtype}"
    if node.op_type == "Conv":
        return Product(node, x, weight, True, 1)
    if len(shape) != 2:
        return "it multiplies by more than one matrix"
    if node.op_type == "Gemm" and (attribute(node, "transA", 0) or attribute(node, "alpha", 1.0) != 1.0):
        return "Gemm transposes or scales its operand"
    return Product(node, x, weight, False, 1 if node.op_type == "Gemm" and attribute(node, "transB", 0) else 0)
