"""An If whose condition is known becomes the branch it takes."""

from __future__ import annotations

import onnx_ir as ir

from infc.passes.base import Pass, PassResult
from infc.passes.graph import array, attribute, is_op
from infc.passes.subgraphs import nested, settle, splice


class InlineIf(Pass):
    """Puts the branch that a constant condition takes in the node's place, in bodies too. Matches name the nodes."""

    name = "inline_if"

    def run(self, model: ir.Model) -> PassResult:
        matches = []
        while (node := _known(model.graph)) is not None:
            matches.append(node.name or "")
            condition = array(node.inputs[0])
            assert condition is not None
            branch = attribute(node, "then_branch" if condition.reshape(-1)[0] else "else_branch")
            settle(node, splice(node, branch, (), model.graph, node.name or "If"))
        return PassResult(bool(matches), matches)


def _known(graph: ir.Graph) -> ir.Node | None:
    return next((n for g in nested(graph) for n in g if is_op(n, "If") and array(n.inputs[0]) is not None), None)
