"""Language models on rows of tokens: says which dimensions vary at run time, and has what follows the last attention computed for the
rows alone whose logits are wanted.

In such a graph each value of tokens is [tokens, ...], and rows meet only in CachedAttention. What follows it, and is about one row
each, can be done after rows were chosen.
"""

from __future__ import annotations

import json

import onnx_ir as ir

from infc.passes.base import Miss, NearMiss, Pass, PassResult
from infc.passes.domain import DOMAIN
from infc.passes.graph import Dims, at, attribute, dims, emit, is_op, reduced_axes, replace, same_shape
from infc.passes.pack_tokens import PACKED
from infc.passes.row_rules import ELEMENTWISE

_LAST_AXIS = ("LayerNormalization", "RMSNormalization", "Softmax", "LogSoftmax")
_PRODUCTS = ("Linear", "MatMul", "AddNorm", "L2Normalize")


class TokenRows(Pass):
    """See the module. The match is the input of rows."""

    name = "token_rows"

    def run(self, model: ir.Model) -> PassResult:
        symbols = _symbols(model.graph)
        if symbols is None or PACKED in model.metadata_props:
            return PassResult(False)
        tokens = symbols[0]
        try:
            for node in model.graph:
                _check(node, tokens)
        except Miss as miss:
            return PassResult(False, [], [NearMiss(miss.node.name or "", miss.reason)])
        model.metadata_props[PACKED] = json.dumps({name: [name] for name in symbols})
        chosen = [n for n in model.graph if _chooses(n, tokens)]
        for node in chosen:
            _earlier(node, tokens)
        return PassResult(True, [n.name or "" for n in chosen])


def _symbols(graph: ir.Graph) -> list[str] | None:
    """The dimensions of the inputs, tokens first; None for a graph without a cache."""
    attention = next((n for n in graph if is_op(n, "CachedAttention", domain=DOMAIN)), None)
    shape = dims(at(attention, 0)) if attention is not None else None
    if not shape or not isinstance(shape[0], str):
        return None
    return list(dict.fromkeys([shape[0], *(d for v in graph.inputs for d in dims(v) or () if isinstance(d, str))]))


def _chooses(node: ir.Node, tokens: str) -> bool:
    """Whether the node takes some rows of a value of tokens."""
    return is_op(node, "Gather") and attribute(node, "axis", 0) == 0 and _of(at(node, 0), tokens) and not _of(at(node, 1), tokens)


def _of(value: ir.Value | None, tokens: str) -> bool:
    return (dims(value) or ())[:1] == (tokens,)


def _check(node: ir.Node, tokens: str) -> None:
    """Raises Miss for a node that may mix tokens."""
    if is_op(node, "CachedAttention", domain=DOMAIN) or _chooses(node, tokens):
        return
    for value in (*node.inputs, *node.outputs):
        shape = dims(value)
        if value is not None and value.const_value is None and (shape is None or tokens in shape[1:]):
            raise Miss(node, f"{value.name} of shape {shape} has tokens elsewhere than in front")
    if not any(_of(v, tokens) for v in node.inputs):
        return
    if not all(_of(v, tokens) for v in node.outputs):
        raise Miss(node, f"{node.op_type} reads all tokens")
    axes = reduced_axes(node) if node.op_type.startswith("Reduce") else [attribute(node, "axis", -1)]
    if node.op_type not in ("Gather", "Concat", "Split") and (axes is None or 0 in axes):
        raise Miss(node, f"{node.op_type} may mix tokens")


def _earlier(choice: ir.Node, tokens: str) -> None:
    """Moves the choice of rows in front of the nodes that work row by row."""
    made: dict[ir.Value, ir.Value] = {}
    rows = choice.inputs[1]
    assert rows is not None
    value = choice.inputs[0]
    assert value is not None
    new = _chosen(value, rows, choice, made)
    replace(choice.outputs[0], new)


def _chosen(value: ir.Value, rows: ir.Value, anchor: ir.Node, made: dict[ir.Value, ir.Value]) -> ir.Value:
    """The rows of a value, computed from rows of what it was made of where that is as good."""
    if value in made:
        return made[value]
    node = value.producer()
    count = (dims(rows) or (None,))[0]

    def like(v: ir.Value) -> tuple[ir.DataType | None, Dims | None]:
        return v.dtype, (count, *(dims(v) or ())[1:])

    if node is not None and _row_local(node, value):
        tokens = (dims(value) or ())[0]
        inputs = [_chosen(v, rows, anchor, made) if v is not None and (dims(v) or ())[:1] == (tokens,) and len(dims(v) or ()) ==
                  len(dims(value) or ()) else v for v in node.inputs]
        copy = emit(anchor, node.op_type, inputs, {k: a.value for k, a in node.attributes.items()}, name=f"{node.name}/chosen",
                    like=[like(v) for v in node.outputs], sources=[node], domain=node.domain)
        for old, new in zip(node.outputs, copy.outputs, strict=True):
            made[old] = new
        return made[value]
    taken = emit(anchor, "Gather", [value, rows], {"axis": 0}, name=f"{value.name}/chosen", like=[like(value)], sources=[anchor])
    made[value] = taken.outputs[0]
    return made[value]


def _row_local(node: ir.Node, value: ir.Value) -> bool:
    """Whether a row of the node's result follows from the same row of its operands of tokens, all others being constants that are
    broadcast."""
    rank = len(dims(value) or ())
    if node.domain == "" and node.op_type in ELEMENTWISE:
        return all(v is None or same_rank(v, value) or len(dims(v) or (0,) * rank) < rank for v in node.inputs)
    if node.op_type in _PRODUCTS or (node.domain == "" and node.op_type in _LAST_AXIS):
        return rank > 1 and all(_of(v, str((dims(value) or ("",))[0])) for v in node.inputs[:1])
    return False


def same_rank(a: ir.Value, b: ir.Value) -> bool:
    return same_shape(a, b) or len(dims(a) or ()) == len(dims(b) or ())
