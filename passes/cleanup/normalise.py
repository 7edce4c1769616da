"""Brings any source into one form: opset 23, no functions, constants as initializers, unique names, module paths recorded."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes import common

from infc.passes.base import Pass, PassResult
from infc.passes.cleanup import runtime_operators
from infc.passes.cleanup.expand_functions import expand_functions
from infc.passes.cleanup.upgrade import OPSET, upgrade_model
from infc.passes.graph import MODULE
from infc.passes.quant.read_blocks import read_blocks
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
        if any(_is_runtime_operator(node) for node in model.graph.all_nodes()):
            done.append(f"{_write_out(model)} operators of ONNX Runtime")
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
        _name_apart(model)
        return PassResult(bool(done), done)


def _is_runtime_operator(node: ir.Node) -> bool:
    return node.domain == runtime_operators.DOMAIN


def _ranks_are_known(node: ir.Node) -> bool:
    return all(value is None or value.shape is not None for value in node.inputs)


def _write_out(model: ir.Model) -> int:
    """Replaces ONNX Runtime's operators and returns their number. A body may ask for the shapes of operands, which are known when
    the operators before have been written out."""
    Shapes(model)
    runtime_operators.read_masks(model)
    count = read_blocks(model)
    while done := expand_functions(model, lambda node: _is_runtime_operator(node) and _ranks_are_known(node)):
        count += len(done)
    count += len(expand_functions(model, _is_runtime_operator))
    model.opset_imports.pop(runtime_operators.DOMAIN, None)
    return count


def _name_apart(model: ir.Model) -> None:
    """Values of sibling graphs, such as an If's branches, may share names: here each gets its own. The outermost keeps it."""
    taken: set[str] = set()
    for graph in model.graphs():
        for value in (*graph.inputs, *graph.initializers.values(), *(v for node in graph for v in node.outputs if v.name)):
            name, count = value.name or "", 1
            while value.name in taken:
                count += 1
                value.name = f"{name}_{count}"
            taken.add(value.name or "")


def _record_module(node: ir.Node) -> None:
    """Keeps torch's module path: ``a: Class/a.b: Class/node: target`` becomes ``a.b``."""
    scopes = node.metadata_props.pop("namespace", "").split("/")
    if len(scopes) > 1 and MODULE not in node.metadata_props:
        module = scopes[-2].split(":")[0].strip()
        if module:
            node.metadata_props[MODULE] = module
    for key in [k for k in node.metadata_props if k.startswith(_EXPORTER)]:
        del node.metadata_props[key]
