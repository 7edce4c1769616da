"""Graphs within graphs: what the bodies of If, Loop and Scan are made of, and putting them into the graph around them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx_ir as ir

CONTROL = ("If", "Loop", "Scan")


def bodies(node: ir.Node) -> list[ir.Graph]:
    """The graphs that the node holds."""
    return [a.as_graph() for a in node.attributes.values() if a.type == ir.AttributeType.GRAPH]


def nested(graph: ir.Graph) -> Iterator[ir.Graph]:
    """The graph and all within it, inner ones first."""
    for node in graph:
        for body in bodies(node):
            yield from nested(body)
    yield graph


def size(graph: ir.Graph) -> int:
    """Nodes of the graph and of all within it."""
    return sum(len(g) for g in nested(graph))


def splice(anchor: ir.Node, body: ir.Graph, inputs: Sequence[ir.Value], root: ir.Graph, prefix: str) -> list[ir.Value]:
    """Puts a copy of the body in front of ``anchor``, its inputs being ``inputs``; what it returns.

    Shapes of the copy are left to be inferred: they may differ from one copy to the next. Initializers go to ``root``, but for
    those that a graph within returns.
    """
    copy = body.clone(allow_outer_scope_values=True)
    outputs = list(copy.outputs)
    copy.outputs.clear()
    taken = dict(zip(copy.inputs, inputs, strict=True))
    for graph in nested(copy):
        _rename(graph, prefix)
        for node in graph:
            for index, value in enumerate(node.inputs):
                if value in taken:
                    node.replace_input_with(index, taken[value])
        if graph is not copy:
            for index, value in enumerate(graph.outputs):
                graph.outputs[index] = taken.get(value, value)
    for graph in nested(copy):
        for name, value in list(graph.initializers.items()):
            del graph.initializers[name]
            value.name = f"{prefix}/{name}"
            (graph if value.is_graph_output() else root).register_initializer(value)
    nodes = list(copy)
    copy.remove(nodes)
    anchor.prepend(nodes)
    return [taken.get(v, v) for v in outputs]


def _rename(graph: ir.Graph, prefix: str) -> None:
    for node in graph:
        node.name = f"{prefix}/{node.name or node.op_type}"
        for value in node.outputs:
            if value.name != "":
                value.name = f"{prefix}/{value.name}"
            value.shape = None
    for value in graph.inputs:
        value.name = f"{prefix}/{value.name}"


def settle(node: ir.Node, results: Sequence[ir.Value]) -> None:
    """Lets ``results`` serve the uses of the node's outputs, and removes it."""
    for old, new in zip(list(node.outputs), results, strict=True):
        if old.is_graph_output():  # keeps its name, and has a producer of its own
            passed = ir.node("Identity", [new], outputs=[ir.Value(name=old.name, type=old.type, shape=old.shape)],
                             name=f"{node.name}/{old.name}")
            node.prepend(passed)
            new = passed.outputs[0]
        ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
        old.name = f"{old.name}/replaced"
    assert node.graph is not None
    node.graph.remove(node, safe=True)
