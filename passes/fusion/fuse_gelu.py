"""GELU in its written-out forms becomes ONNX's Gelu."""

from __future__ import annotations

from typing import ClassVar

import onnx_ir as ir

from infc.passes.base import Miss, NodePass, PassResult
from infc.passes.elementwise import recognise
from infc.passes.graph import emit, opset, replace

_FORMS = {"Erf": ("gelu_erf", "none"), "Tanh": ("gelu_tanh", "tanh")}


class FuseGelu(NodePass):
    """``x/2 (1 + erf(x/√2))`` and ``x/2 (1 + tanh(√(2/π) (x + 0.044715 x³)))`` in any order of operations; recognised by
    evaluation, so that a wrong constant does not match."""

    name = "fuse_gelu"
    roots: ClassVar[frozenset[str]] = frozenset(_FORMS)

    def run(self, model: ir.Model) -> PassResult:
        self._opset = opset(model)
        return super().run(model)

    def rewrite(self, node: ir.Node) -> str | None:
        function, approximate = _FORMS[node.op_type]
        found = recognise(node, (function,), self._opset)
        if found is None:
            return None
        if isinstance(found, str):
            raise Miss(node, found)
        _, argument, root, nodes = found
        fused = emit(root, "Gelu", [argument], {"approximate": approximate}, name=root.name or "", like=root.outputs, sources=nodes)
        replace(root.outputs[0], fused.outputs[0])
        return fused.name
