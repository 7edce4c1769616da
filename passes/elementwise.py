"""Recognises activation functions by what they compute, in whatever order their multiplications were written."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from infc.passes.evaluate import Array, Unknown, cut, evaluate
from infc.passes.graph import constant, is_op, producer, scalar

_LARGEST = 16  # nodes of an activation
_OPERATORS = ("Mul", "Add", "Sub", "Div", "Pow", "Erf", "Tanh", "Sigmoid", "Neg", "Sqrt", "Cast", "Exp", "Reciprocal")
_SAMPLES = np.concatenate([np.linspace(-8, 8, 61), [0.0, 1e-3, -1e-3]]).astype(np.float32)
_TOLERANCE = 1e-5
_ROUNDED = {ir.DataType.FLOAT16: 2e-4, ir.DataType.BFLOAT16: 2e-3}  # where constants have 11 and 8 bits


def _sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


def _erf(x: Array) -> Array:
    return np.array([math.erf(v) for v in x])


FUNCTIONS: dict[str, Callable[[Array], Array]] = {
    "gelu_erf": lambda x: np.asarray(0.5 * x * (1 + _erf(x / math.sqrt(2)))),
    "gelu_tanh": lambda x: np.asarray(0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))),
    "silu": lambda x: np.asarray(x * _sigmoid(x)),
    "quick_gelu": lambda x: np.asarray(x * _sigmoid(1.702 * x)),
}


def recognise(anchor: ir.Node, names: tuple[str, ...], opset: int) -> tuple[str, ir.Value, ir.Node, list[ir.Node]] | str | None:
    """Looks for one of FUNCTIONS around its transcendental node.

    Returns (function, its argument, the node that makes its result, its nodes); a reason where there is a product with the
    argument that computes something else; None where nothing like it is found.
    """
    reason: str | None = None
    node: ir.Node | None = anchor
    for _ in range(_LARGEST):
        if node is None:
            break
        if node is not anchor and is_op(node, "Mul"):
            for argument in _factors(node):
                try:
                    nodes = cut(node.outputs[0], lambda v, x=argument: v is x, _LARGEST)  # type: ignore[misc]
                    found = _function(nodes, node, argument, names, opset)
                except Unknown:
                    continue
                if anchor not in nodes:
                    continue
                if found:
                    leak = next((n for n in nodes if n is not node and _read_elsewhere(n, nodes)), None)
                    return f"{leak.outputs[0].name} is used elsewhere" if leak else (found, argument, node, nodes)
                reason = f"the function of {argument.name} is none of {', '.join(names)}"
        node = next((use.node for use in node.outputs[0].uses() if is_op(use.node, *_OPERATORS)), None)
    return reason


def _factors(node: ir.Node) -> list[ir.Value]:
    """Variables of a product, the outermost first."""
    out: list[ir.Value] = []
    pending = [node]
    while pending:
        current = pending.pop(0)
        for value in current.inputs:
            if value is None or constant(value) is not None:
                continue
            out.append(value)
            inner = producer(value, "Mul", "Div")
            if inner is not None:
                pending.append(inner)
    return list(dict.fromkeys(out))


def _read_elsewhere(node: ir.Node, nodes: list[ir.Node]) -> bool:
    value = node.outputs[0]
    return value.is_graph_output() or any(use.node not in nodes for use in value.uses())


def _function(nodes: list[ir.Node], root: ir.Node, argument: ir.Value, names: tuple[str, ...], opset: int) -> str | None:
    """Which of the functions the nodes compute. Raises Unknown if they are not an elementwise function with scalar constants."""
    for node in nodes:
        if not is_op(node, *_OPERATORS) or any(
            v is not None and constant(v) is not None and scalar(v) is None for v in node.inputs
        ):
            raise Unknown("not elementwise")
    known = {v: c for node in nodes for v in node.inputs if v is not None and (c := constant(v)) is not None}
    wide = {v: c.numpy().astype(np.float32) for v, c in known.items() if c.dtype in _ROUNDED}
    computed = evaluate(nodes, root.outputs[0], {argument: _SAMPLES, **wide}, {}, opset)
    tolerance = _TOLERANCE if argument.dtype is None else _ROUNDED.get(argument.dtype, _TOLERANCE)
    for name in names:
        expected = FUNCTIONS[name](_SAMPLES.astype(np.float64))
        if computed.shape == expected.shape and np.allclose(computed, expected, rtol=tolerance, atol=tolerance):
            return name
    return None
