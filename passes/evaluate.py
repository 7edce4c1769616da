"""Evaluates pieces of a graph on sample data with ONNX's reference operators, to prove what they compute."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import onnx.reference.ops
import onnx_ir as ir

from infc.passes.graph import constant, dims

Array = np.ndarray[Any, Any]
_LARGEST = 300  # nodes of a piece


class Unknown(Exception):
    """The piece cannot be evaluated; the message says why."""


def cut(target: ir.Value, stop: Callable[[ir.Value], bool], limit: int = _LARGEST) -> list[ir.Node]:
    """The nodes that ``target`` is made by, in order, back to constants and to values at which ``stop`` is true.

    A Shape is in the piece, what it takes the shape of is not. Raises Unknown for a value that has no producer and does not
    stop, and for a piece of more than ``limit`` nodes.
    """
    order: list[ir.Node] = []
    done: set[ir.Node] = set()
    pending: list[tuple[ir.Value | None, ir.Node | None]] = [(target, None)]
    while pending:
        value, finished = pending.pop()
        if finished is not None:
            order.append(finished)
            continue
        if value is None or constant(value) is not None or stop(value):
            continue
        node = value.producer()
        if node is None:
            raise Unknown(f"it depends on {value.name}")
        if node in done:
            continue
        done.add(node)
        if len(done) > limit:
            raise Unknown(f"it is made by more than {limit} nodes")
        pending.append((None, node))
        if node.op_type != "Shape":
            pending += [(v, None) for v in node.inputs]
    return order


def evaluate(nodes: list[ir.Node], target: ir.Value, feed: dict[ir.Value, Array], symbols: dict[str, int], opset: int) -> Array:
    """The value of ``target``, given values and the sizes of symbolic dimensions. Raises Unknown."""
    env = dict(feed)

    def get(value: ir.Value | None) -> Array | None:
        if value is None:
            return None
        if value not in env:
            tensor = constant(value)
            if tensor is None:
                raise Unknown(f"the value of {value.name} is unknown")
            env[value] = tensor.numpy()
        return env[value]

    for node in nodes:
        if node.op_type == "Shape" and node.inputs[0] not in env:
            results: Any = _shape(node, symbols)
        else:
            results = _apply(node, [get(v) for v in node.inputs], opset)
        for value, result in zip(node.outputs, results, strict=False):
            env[value] = np.asarray(result)
    found = get(target)
    assert found is not None
    return found


def _shape(node: ir.Node, symbols: dict[str, int]) -> list[Array]:
    shape = node.inputs[0].shape if node.inputs[0] is not None else None
    start, end = node.attributes.get("start"), node.attributes.get("end")
    if shape is None:
        raise Unknown(f"the shape that {node.name} takes is unknown")
    sizes = [
        d if isinstance(d, int) else d.evaluate(symbols) if d.value else None
        for d in shape[start.as_int() if start else 0 : end.as_int() if end else None]
    ]
    if not all(isinstance(s, int) for s in sizes):
        raise Unknown(f"the shape that {node.name} takes is {dims(node.inputs[0])}")
    return [np.array(sizes, np.int64)]


@cache
def _operator(op_type: str, opset: int) -> Any:
    return onnx.reference.ops.load_op("", op_type, opset)


def _apply(node: ir.Node, inputs: list[Array | None], opset: int) -> Any:
    if node.domain != "":
        raise Unknown(f"it uses {node.domain}.{node.op_type}")
    attributes = {
        name: ir.serde.serialize_tensor(a.value) if a.type == ir.AttributeType.TENSOR else a.value
        for name, a in node.attributes.items()
    }
    try:
        with np.errstate(all="ignore"):
            result = _operator(node.op_type, opset).eval(*inputs, n_outputs=len(node.outputs), **attributes)
    except Exception as error:  # the reference operators raise whatever they like
        raise Unknown(f"{node.op_type} {node.name} cannot be evaluated: {error}") from error
    return result if isinstance(result, (tuple, list)) else [result]
