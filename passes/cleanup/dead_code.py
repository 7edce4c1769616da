"""Removes what no graph output depends on."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes import common

from infc.passes.base import Pass, PassResult


class DeadCode(Pass):
    """Removes unread nodes and initializers. Matches name the nodes that went."""

    name = "dead_code"

    def run(self, model: ir.Model) -> PassResult:
        names = [n.name or "" for n in model.graph]
        modified = common.RemoveUnusedNodesPass()(model).modified
        left = {n.name for n in model.graph}
        return PassResult(modified, [n for n in names if n not in left])
