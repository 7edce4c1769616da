"""ai.onnx.ml's TreeEnsemble as comparisons and two products of matrices.

All comparisons of all trees are made at once: D [rows, nodes] of 0 and 1. A leaf is reached if the comparisons on its path have
the right results: with A [nodes, leaves] 1 where the path takes the true branch and -1 where it takes the false one, if (D·A) is
the number of true branches. Source: Nakandala et al., A Tensor Compiler for Unified Machine Learning Prediction Serving, 2020.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper, numpy_helper

from infc.compiler.errors import UnsupportedError
from infc.passes.graph import attribute

OPERATOR = ("ai.onnx.ml", "TreeEnsemble")
_OPSET = 23
_MODES = {0: "LessOrEqual", 1: "Less", 2: "GreaterOrEqual", 3: "Greater", 4: "Equal", 5: "Equal", 6: ""}  # 5: negated; 6: a member
_NOT_EQUAL, _MEMBER = 5, 6
_LARGEST = 1 << 28  # elements of A
_SUM, _AVERAGE, _MIN, _MAX = 1, 0, 2, 3
_POST = {0: "Identity", 1: "Softmax", 2: "Sigmoid"}
Array = np.ndarray[Any, Any]


class _Writer:
    """Collects nodes of a function body."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []

    def add(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, list(inputs), [name], **attributes))
        return name

    def constant(self, data: Array) -> str:
        return self.add("Constant", value=numpy_helper.from_array(data))


def body(node: ir.Node) -> ir.Function:
    """The node's definition. Raises UnsupportedError E0402 for a use that is not known, or attributes that contradict each
    other."""
    try:
        return _body(node)
    except (IndexError, KeyError, ValueError, TypeError, StopIteration) as error:
        raise _unsupported(node, "a forest whose attributes do not agree with each other") from error


def _body(node: ir.Node) -> ir.Function:
    out = _Writer()
    modes = _tensor(node, "nodes_modes").astype(int)
    order = np.argsort(modes, kind="stable")
    results = _compare(out, node, modes, order)
    paths, leaves, trees = _paths(node, order)
    kind = _tensor(node, "leaf_weights").dtype
    along = out.add("MatMul", out.add("CastLike", results, out.constant(np.zeros(1, kind))), out.constant(paths.astype(kind)))
    reached = out.add("Equal", along, out.constant((paths > 0).sum(0).astype(kind)))
    found = _aggregate(out, node, reached, leaves, trees, kind)
    post = attribute(node, "post_transform", 0)
    if post not in _POST:
        raise _unsupported(node, f"post_transform {post}")
    found = out.add(_POST[post], found)
    proto = helper.make_function(*OPERATOR, ["v"], [found], out.nodes, [helper.make_opsetid("", _OPSET)])
    function = ir.from_proto(proto)
    assert isinstance(function, ir.Function)
    return function


def _unsupported(node: ir.Node, what: str) -> UnsupportedError:
    return UnsupportedError("E0402", f"TreeEnsemble: {what} is not supported", where=f"node '{node.name}'", node=node.name or "",
                            hint="export the trees with another aggregation or transform")


def _tensor(node: ir.Node, name: str) -> Array:
    value = attribute(node, name)
    return np.asarray(value.numpy() if hasattr(value, "numpy") else value)


def _compare(out: _Writer, node: ir.Node, modes: Array, order: Array) -> str:
    """The results of all comparisons, [rows, nodes] bool, the nodes ordered by their mode."""
    features, splits = _tensor(node, "nodes_featureids").astype(np.int64), _tensor(node, "nodes_splits")
    tracks = attribute(node, "nodes_missing_value_tracks_true")
    sets = iter(_sets(node))
    members = {int(n): next(sets) for n in np.flatnonzero(modes == _MEMBER)}
    parts = []
    for mode in np.unique(modes[order]):
        chosen = order[modes[order] == mode]
        picked = out.add("Gather", "v", out.constant(features[chosen]), axis=1)
        if mode == _MEMBER:
            width = max(len(members[int(n)]) for n in chosen)
            table = np.full((len(chosen), width), np.nan, splits.dtype)
            for row, n in enumerate(chosen):
                table[row, : len(members[int(n)])] = members[int(n)]
            equal = out.add("Equal", out.add("Unsqueeze", picked, out.constant(np.array([2]))), out.constant(table))
            most = out.add("ReduceMax", out.add("Cast", equal, to=onnx.TensorProto.FLOAT), out.constant(np.array([2])), keepdims=0)
            result = out.add("Cast", most, to=onnx.TensorProto.BOOL)
        else:
            result = out.add(_MODES[int(mode)], picked, out.constant(splits[chosen]))
            result = out.add("Not", result) if mode == _NOT_EQUAL else result
        if tracks is not None and np.asarray(tracks)[chosen].any():
            missing = out.add("And", out.add("IsNaN", picked), out.constant(np.asarray(tracks)[chosen].astype(bool)))
            result = out.add("Or", result, missing)
        parts.append(result)
    return out.add("Concat", *parts, axis=1)


def _sets(node: ir.Node) -> list[Array]:
    """The sets of members, in the nodes' order: NaN ends each."""
    if attribute(node, "membership_values") is None:
        return []
    values = _tensor(node, "membership_values")
    ends = np.flatnonzero(np.isnan(values))
    return [values[start:end] for start, end in zip([0, *(ends[:-1] + 1)], ends, strict=True)]


def _paths(node: ir.Node, order: Array) -> tuple[Array, Array, int]:
    """(A, the leaf that each of its columns is, number of trees)."""
    branches = [(_tensor(node, f"nodes_{side}nodeids"), _tensor(node, f"nodes_{side}leafs"), sign)
                for side, sign in (("true", 1), ("false", -1))]
    place, roots = {int(n): i for i, n in enumerate(order)}, _tensor(node, "tree_roots")
    columns: list[Array] = []
    leaves: list[int] = []
    pending = [(int(root), np.zeros(len(order), np.int8)) for root in roots]
    while pending:
        current, path = pending.pop()
        if path[place[current]]:
            raise _unsupported(node, "a tree with a cycle")
        for targets, is_leaf, sign in branches:
            longer = path.copy()
            longer[place[current]] = sign
            if is_leaf[current]:
                columns.append(longer)
                if len(columns) > 2 * len(order) or len(columns) * len(order) > _LARGEST:
                    raise _unsupported(node, "a graph that is no forest, or one so large")
                leaves.append(int(targets[current]))
            else:
                pending.append((int(targets[current]), longer))
    return np.stack(columns, 1), np.array(leaves), len(roots)


def _aggregate(out: _Writer, node: ir.Node, reached: str, leaves: Array, trees: int, kind: np.dtype[Any]) -> str:
    weights, targets = _tensor(node, "leaf_weights")[leaves], _tensor(node, "leaf_targetids")[leaves]
    how, count = attribute(node, "aggregate_function", _SUM), attribute(node, "n_targets", 1)
    if how in (_SUM, _AVERAGE):
        table = np.zeros((len(leaves), count), kind)
        table[np.arange(len(leaves)), targets] = weights / (trees if how == _AVERAGE else 1)
        return out.add("MatMul", out.add("CastLike", reached, out.constant(np.zeros(1, kind))), out.constant(table))
    if how not in (_MIN, _MAX) or set(range(count)) - set(map(int, targets)):
        raise _unsupported(node, f"aggregate_function {how} of such trees")
    parts = []
    for target in range(count):
        chosen = np.flatnonzero(targets == target)
        on = out.add("Gather", reached, out.constant(chosen), axis=1)
        never = np.array(np.inf if how == _MIN else -np.inf, kind)
        held = out.add("Where", on, out.constant(weights[chosen]), out.constant(never))
        parts.append(out.add("ReduceMin" if how == _MIN else "ReduceMax", held, out.constant(np.array([1])), keepdims=1))
    return out.add("Concat", *parts, axis=1)
