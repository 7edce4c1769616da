"""Brings any source into one form: opset 23, no functions, constants as initializers, unique names, module paths recorded."""

from __future__ import annotations

import logging

import onnx_ir as ir
from onnx_ir.passes import common
from onnxscript import version_converter

from infc.compiler.errors import UsageError
from infc.passes.base import Pass, PassResult
from infc.passes.graph import MODULE, opset

OPSET = 23
logging.getLogger(version_converter.__name__).setLevel(logging.ERROR)  # that it converts is no news
_EXPORTER = "pkg."  # metadata of exporters: stack traces and absolute paths, of no use past this point


class Normalise(Pass):
    """See the module. The matches are what had to be done."""

    name = "normalise"

    def run(self, model: ir.Model) -> PassResult:
        done = []
        if 0 < opset(model) < OPSET:
            done.append(f"opset {opset(model)} to {OPSET}")
            version_converter.convert_version(model, OPSET, fallback=True)
            if opset(model) < OPSET:
                raise UsageError(
                    "E0119",
                    f"the model's opset {opset(model)} cannot be converted to {OPSET}",
                    hint="export it again with opset 18 or later",
                )
        for step in (
            common.InlinePass(),
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
