"""A Loop whose number of trips is known, and a Scan, become copies of their bodies while these are few."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from infc.passes.base import Pass, PassResult
from infc.passes.graph import add_constant, array, at, attribute, dims, emit, int_constant, is_op
from infc.passes.subgraphs import nested, settle, size, splice

MAX_NODES = 1024  # of all copies; a longer loop stays one
_Results = list[ir.Value]


class Unroll(Pass):
    """Writes short loops out, inner ones first. Matches name the nodes."""

    name = "unroll"

    def run(self, model: ir.Model) -> PassResult:
        matches = []
        while (found := _short(model.graph)) is not None:
            node, trips = found
            matches.append(node.name or "")
            unrolled = _unroll_loop if node.op_type == "Loop" else _unroll_scan
            settle(node, unrolled(node, trips, model.graph))
        return PassResult(bool(matches), matches)


def _short(graph: ir.Graph) -> tuple[ir.Node, int] | None:
    for inner in nested(graph):
        for node in inner:
            trips = _trips(node)
            if trips is not None and trips > 0 and trips * size(attribute(node, "body")) <= MAX_NODES:
                return node, trips
    return None


def _trips(node: ir.Node) -> int | None:
    """The number of iterations, where it is known."""
    if is_op(node, "Loop"):
        count, condition = array(at(node, 0)), at(node, 1)
        starts = condition is None or ((known := array(condition)) is not None and bool(known.all()))
        return int(count.reshape(-1)[0]) if count is not None and starts and _goes_on(attribute(node, "body")) else None
    if is_op(node, "Scan"):
        first = len(node.inputs) - attribute(node, "num_scan_inputs")
        shape, axis = dims(at(node, first)), (attribute(node, "scan_input_axes") or [0])[0]
        length = shape[axis] if shape else None
        return length if isinstance(length, int) else None
    return None


def _goes_on(body: ir.Graph) -> bool:
    """Whether the body never ends the loop: it returns the condition it was given, or True."""
    value = body.outputs[0]
    while (node := value.producer()) is not None and is_op(node, "Identity") and node.inputs[0] is not None:
        value = node.inputs[0]
    known = array(value)
    return value is body.inputs[1] or (known is not None and bool(known.all()))


def _unroll_loop(node: ir.Node, trips: int, root: ir.Graph) -> _Results:
    body = attribute(node, "body")
    carried = [v for v in node.inputs[2:] if v is not None]
    count = len(carried)
    rows: list[_Results] = []
    goes_on = add_constant(root, "infc.true", np.array(True))
    for i in range(trips):
        number = add_constant(root, f"infc.int[{i}]", np.array(i, np.int64))
        made = splice(node, body, [number, goes_on, *carried], root, f"{node.name}/{i}")
        carried = made[1 : 1 + count]
        rows.append(made[1 + count :])
    return [*carried, *(_collect(node, root, list(values), 0, k) for k, values in enumerate(zip(*rows, strict=True)))]


def _unroll_scan(node: ir.Node, trips: int, root: ir.Graph) -> _Results:
    body, scanned = attribute(node, "body"), attribute(node, "num_scan_inputs")
    states = [v for v in node.inputs[: len(node.inputs) - scanned] if v is not None]
    count, xs = len(states), node.inputs[len(node.inputs) - scanned :]
    axes, backwards = (attribute(node, f"scan_input_{n}") or [0] * scanned for n in ("axes", "directions"))
    results = len(node.outputs) - count
    out_axes, out_backwards = (attribute(node, f"scan_output_{n}") or [0] * results for n in ("axes", "directions"))
    rows: list[_Results] = []
    for i in range(trips):
        slices = []
        for k, (x, axis, reverse) in enumerate(zip(xs, axes, backwards, strict=True)):
            place = trips - 1 - i if reverse else i
            number = add_constant(root, f"infc.int[{place}]", np.array(place, np.int64))
            assert x is not None
            shape = dims(x)
            rest = None if shape is None else tuple(d for j, d in enumerate(shape) if j != axis % len(shape))
            taken = emit(node, "Gather", [x, number], {"axis": axis}, name=f"{node.name}/{i}/input_{k}", like=[(x.dtype, rest)])
            slices.append(taken.outputs[0])
        made = splice(node, body, [*states, *slices], root, f"{node.name}/{i}")
        states = made[:count]
        rows.append(made[count:])
    collected = []
    for k, values in enumerate(zip(*rows, strict=True)):
        ordered = list(reversed(values)) if out_backwards[k] else list(values)
        collected.append(_collect(node, root, ordered, out_axes[k], k))
    return [*states, *collected]


def _collect(node: ir.Node, root: ir.Graph, values: Sequence[ir.Value], axis: int, number: int) -> ir.Value:
    """The values side by side along a new axis."""
    parts = [emit(node, "Unsqueeze", [v, int_constant(root, [axis])], name=f"{node.name}/{i}/row_{number}",
                  like=[(v.dtype, None)]).outputs[0] for i, v in enumerate(values)]
    joined = emit(node, "Concat", parts, {"axis": axis}, name=f"{node.name}/output_{number}", like=[(values[0].dtype, None)])
    return joined.outputs[0]
