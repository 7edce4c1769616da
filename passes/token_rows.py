"""Language models on rows of tokens: says which dimensions vary at run time, and has what follows the last attention computed for
the rows alone whose logits are wanted.

In such a graph each value of tokens is [tokens, ...], and rows meet only in CachedAttention. What follows it, and is about one row
each, can be done after rows were chosen.
"""

from __future__ import annotations

import json

import onnx_ir as ir

from infc.passes.base import Miss, NearMiss, Pass, PassResult
from infc.passes.domain import DOMAIN
from infc.passes.graph import Dims, at, attribute, dims, emit, is_op, owner, reduced_axes, replace
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
    """Moves the choice of rows in front of the nodes that work row by row and that nobody else reads."""
    rows = choice.inputs[1]
    assert rows is not None
    count = (dims(rows) or (None,))[0]
    made: dict[ir.Value, ir.Value] = {}

    def like(value: ir.Value) -> tuple[ir.DataType | None, Dims | None]:
        return value.dtype, (count, *(dims(value) or ())[1:])

    def chosen(value: ir.Value | None) -> ir.Value | None:
        if value is None or not _of(value, tokens):
            return value
        if value not in made:
            made[value] = emit(choice, "Gather", [value, rows], {"axis": 0}, name=f"{value.name}/chosen", like=[like(value)],
                               sources=[choice]).outputs[0]
        return made[value]

    for node in _movable(choice, tokens):
        copy = emit(choice, node.op_type, [chosen(v) for v in node.inputs], {k: a.value for k, a in node.attributes.items()},
                    name=f"{node.name}/chosen", like=[like(v) for v in node.outputs], sources=[node], domain=node.domain)
        made |= zip(node.outputs, copy.outputs, strict=True)
    if (found := made.get(choice.inputs[0])) is not None:  # type: ignore[arg-type]
        replace(choice.outputs[0], found)


def _movable(choice: ir.Node, tokens: str) -> list[ir.Node]:
    """The nodes that serve the choice alone, in order."""
    inside = {choice}
    for node in reversed(list(owner(choice))):
        uses = [use.node for value in node.outputs for use in value.uses()]
        if uses and inside.issuperset(uses) and _is_row_local(node, tokens) and not any(v.is_graph_output() for v in node.outputs):
            inside.add(node)
    return [node for node in owner(choice) if node in inside and node is not choice]


def _is_row_local(node: ir.Node, tokens: str) -> bool:
    """Whether a row of the node's results follows from the same row of its operands of tokens, all others being constants."""
    shape = dims(node.outputs[0])
    if not _of(node.outputs[0], tokens) or shape is None or len(shape) < 2:
        return False
    rows = [v for v in node.inputs if _of(v, tokens)]
    if any(len(dims(v) or ()) != len(shape) for v in rows) or any(v is not None and v not in rows and v.const_value is None
                                                                    for v in node.inputs):
        return False
    by_elements = node.domain == "" and node.op_type in ELEMENTWISE
    return bool(rows) and (by_elements or node.op_type in _PRODUCTS or (node.domain == "" and node.op_type in _LAST_AXIS))
