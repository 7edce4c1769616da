"""Computes equal things once."""

from __future__ import annotations

import logging

import onnx_ir as ir
from onnx_ir.passes import common

from infc.passes.base import Pass, PassResult

logging.getLogger("onnx_ir.passes.common.initializer_deduplication").setLevel(logging.ERROR)  # that it leaves outputs is no news


class CommonSubexpressions(Pass):
    """Merges equal small initializers, then nodes with equal operator, attributes and inputs. Matches name the nodes that went."""

    name = "common_subexpressions"

    def run(self, model: ir.Model) -> PassResult:
        names = [n.name or "" for n in model.graph]
        modified = common.DeduplicateInitializersPass(size_limit=1024)(model).modified
        modified |= common.CommonSubexpressionEliminationPass()(model).modified
        left = {n.name for n in model.graph}
        for i, node in enumerate(model.graph):
            node.name = node.name or f"{node.op_type}_shared_{i}"  # an Identity in front of a graph output
        return PassResult(modified, [n for n in names if n not in left])
