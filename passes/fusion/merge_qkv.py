"""Linears that read one value become one wider Linear and a Split: query, key and value, or gate and up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import onnx_ir as ir

from infc.passes.base import Pass, PassResult
from infc.passes.domain import DOMAIN
from infc.passes.graph import add_constant, at, attribute, constant, dims, emit, int_constant, is_op, owner, replace
from infc.passes.quant import stored


class MergeQkv(Pass):
    """Merges siblings without activation and residual, whose weights have one type and are stored alike. Weights are joined when
    they are first read."""

    name: ClassVar[str] = "merge_qkv"

    def run(self, model: ir.Model) -> PassResult:
        groups: dict[tuple[ir.Value, Any], list[ir.Node]] = {}
        for node in model.graph:
            x, weight = at(node, 0), at(node, 1)
            if x is not None and weight is not None and _mergeable(node):
                groups.setdefault((x, weight.dtype), []).append(node)
        matches = [_merge(nodes, x) for (x, _), nodes in groups.items() if len(nodes) > 1 and _alike(nodes)]
        return PassResult(bool(matches), matches)


def _mergeable(node: ir.Node) -> bool:
    return (
        is_op(node, "Linear", domain=DOMAIN)
        and not attribute(node, "activation")
        and at(node, 3) is None
        and stored.is_weight(at(node, 1))
        and (at(node, 2) is None or constant(at(node, 2)) is not None)
    )


def _alike(nodes: Sequence[ir.Node]) -> bool:
    """Whether all weights are plain constants, or all are stored in one way."""
    weights = [stored.read(at(n, 1)) for n in nodes]
    found = [w for w in weights if w is not None]
    return not found or (len(found) == len(weights) and stored.joinable(found))


def _merge(nodes: Sequence[ir.Node], x: ir.Value) -> str:
    first = nodes[0]
    graph = owner(first)
    weights = [n.inputs[1] for n in nodes]
    widths = [int((dims(w) or ())[1]) for w in weights]  # type: ignore[arg-type]
    name = f"{first.name}/merged"
    kept = [w for w in map(stored.read, weights) if w is not None]
    weight = stored.join(kept, first, f"{name}/weight") if kept else joined(graph, f"{name}/weight", weights, widths)
    inputs: list[ir.Value | None] = [x, weight]
    if any(at(n, 2) is not None for n in nodes):
        inputs.append(joined(graph, f"{name}/bias", [at(n, 2) for n in nodes], widths))
    out = first.outputs[0]
    shape = (*(dims(out) or ())[:-1], sum(widths))
    linear = emit(first, "Linear", inputs, {"activation": ""}, domain=DOMAIN, name=name, like=[(out.dtype, shape)], sources=nodes)
    split = emit(
        first,
        "Split",
        [linear.outputs[0], int_constant(graph, widths)],
        {"axis": -1},
        name=f"{first.name}/split",
        like=[n.outputs[0] for n in nodes],
        sources=nodes,
    )
    for node, part in zip(nodes, split.outputs, strict=True):
        replace(node.outputs[0], part)
    return name


def joined(graph: ir.Graph, name: str, parts: Sequence[ir.Value | None], widths: Sequence[int]) -> ir.Value:
    """The constants side by side; an absent one is zero."""
    tensors = [None if p is None else p.const_value for p in parts]
    present = next(t for t in tensors if t is not None)
    dtype, lead = present.dtype, present.shape.numpy()[:-1]

    def join() -> ir.TensorProtocol:
        arrays = [np.zeros(w, dtype.numpy()) if t is None else t.numpy() for t, w in zip(tensors, widths, strict=True)]
        return ir.tensor(np.concatenate(arrays, axis=-1), dtype=dtype)

    return add_constant(graph, name, ir.LazyTensor(join, dtype=dtype, shape=ir.Shape((*lead, sum(widths))), name=name, cache=True))
