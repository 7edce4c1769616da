"""Brings any source into one form: opset 23, no functions, constants as initializers, unique names, module paths recorded."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes import common

from infc.passes.base import Pass, PassResult
from infc.passes.cleanup import runtime_operators
from infc.passes.cleanup.expand_functions import expand_functions
from infc.passes.cleanup.upgrade import OPSET, upgrade_model
from infc.passes.graph import MODULE
from infc.passes.shapes import Shapes

_EXPORTER = "pkg."  # metadata of exporters: stack traces and absolute paths, of no use past this point


class Normalise(Pass):
    """See the module. The matches are what had to be done."""

    name = "normalise"

    def run(self, model: ir.Model) -> PassResult:
        done = []
        if model.opset_imports.get("", OPSET) < OPSET:
            Shapes(model)  # some rules ask for ranks and types
        if (own := upgrade_model(model)) < OPSET:
            done.append(f"opset {own} to {OPSET}")
        if written_out := expand_functions(model, lambda node: node.domain == runtime_operators.DOMAIN):
            done.append(f"{len(written_out)} operators of ONNX Runtime")
            model.opset_imports.pop(runtime_operators.DOMAIN, None)
        for step in (
            common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
            common.RemoveInitializersFromInputsPass(),
            common.NameFixPass(),
        ):
            if step(model).modified:
                done.append(type(step).__name__.removesuffix("Pass"))
        for i, node in enumerate(model.graph):
            node.name = node.name or f"{node.op_type}_{i}"
            _record_module(node)
        common.NameFixPass()(model)
        return PassResult(bool(done), done)


def _record_module(node: ir.Node) -> None:
    """Keeps torch's module path: ``a: Class/a.b: Class/node: target`` becomes ``a.b``."""
    scopes = node.metadata_props.pop("namespace", "").split("/")
    if len(scopes) > 1 and MODULE not in node.metadata_props:
        module = scopes[-2].split(":")[0].strip()
        if module:
            node.metadata_props[MODULE] = module
    for key in [k for k in node.metadata_props if k.startswith(_EXPORTER)]:
        del node.metadata_props[key]
