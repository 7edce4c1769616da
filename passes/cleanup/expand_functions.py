"""Replaces operators by their definitions in other operators: ONNX's own function bodies, and those of runtime_operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx
import onnx_ir as ir
from onnx_ir.passes import common

from infc.passes import domain
from infc.passes.cleanup import runtime_operators, tree_ensemble, upgrade
from infc.passes.graph import FUSED
from infc.passes.shapes import Shapes

_DOMAIN = "infc.body"  # of nodes whose body is about to take their place


def expand_functions(model: ir.Model, wanted: Callable[[ir.Node], bool]) -> list[str]:
    """Writes out the wanted nodes that have a body; returns their names. Bodies may hold such nodes again."""
    chosen = [node for node in model.graph.all_nodes() if wanted(node)]
    if not chosen:
        return []
    Shapes(model)  # bodies depend on types
    names = []
    for number, node in enumerate(chosen):
        function = _body(node, model.opset_imports)
        if function is None:
            continue
        _name(function, node)
        function.domain, function.name, function.overload = _DOMAIN, node.op_type, str(number)
        for place, value in enumerate(node.outputs):
            value.name = value.name or f"{node.name}/unread.{place}"
        node.domain, node.overload = _DOMAIN, function.overload
        node.metadata_props.setdefault(FUSED, node.name or "")  # those of the body inherit it
        function.opset_imports.clear()
        function.opset_imports.update(model.opset_imports)
        model.functions[function.identifier()] = function
        names.append(node.name or node.op_type)
    if names:
        common.InlinePass()(model)
        common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
        model.opset_imports.pop(_DOMAIN, None)
        Shapes(model)
    return names


def _body(node: ir.Node, imports: dict[str, int]) -> ir.Function | None:
    """The node's definition, with its attributes filled in, at the passes' opset."""
    if node.domain == runtime_operators.DOMAIN or (node.domain, node.op_type) == tree_ensemble.OPERATOR:
        function: ir.Function | None = (tree_ensemble if node.domain == tree_ensemble.OPERATOR[0] else runtime_operators).body(node)
        node.attributes.clear()
        return function
    if node.domain == domain.DOMAIN:
        function = domain.body(node)
        node.attributes.clear()
        return function
    try:
        schema = onnx.defs.get_schema(node.op_type, imports.get(node.domain, 1), node.domain)
    except onnx.defs.SchemaError:
        return None
    for name, declared in schema.attributes.items():
        if name not in node.attributes and declared.default_value.name:
            node.attributes.add(ir.serde.deserialize_attribute(declared.default_value))
    if node.op_type == "Attention" and not node.attributes.get_float("softcap", 0.0) > 0:
        node.attributes.add(ir.AttrFloat32("softcap", 0.0))  # none, to everyone but the body, which makes NaN of infinity
    text = _proto(schema, node, imports.get("", upgrade.OPSET))
    if text is None:
        return None
    proto = onnx.FunctionProto.FromString(text)
    del proto.output[len(node.outputs):]
    made = {name for inner in proto.node for name in inner.output}
    for name in proto.output:
        if name not in made:
            proto.node.append(onnx.helper.make_node("Identity", [proto.output[0]], [name]))
    function = ir.from_proto(proto)
    assert isinstance(function, ir.Function)
    for inner in function.all_nodes():
        for key, attribute in list(inner.attributes.items()):
            if attribute.is_ref():
                own = node.attributes.get(attribute.ref_attr_name or "")
                if own is None:
                    del inner.attributes[key]
                else:
                    inner.attributes[key] = ir.Attr(key, own.type, own.value)
    function.attributes.clear()
    node.attributes.clear()
    upgrade.upgrade(function.all_nodes(), function.opset_imports.get("", upgrade.OPSET))
    return function


def _proto(schema: Any, node: ir.Node, opset: int) -> bytes | None:
    """The newest body that is not newer than the opset. (onnx's type stubs lack these methods of an OpSchema.)"""
    plain = [v for v in schema.function_opset_versions if v <= opset]
    if plain:
        found: bytes = schema.get_function_with_opset_version(max(plain))
        return found
    versions = [v for v in schema.context_dependent_function_opset_versions if v <= opset]
    types = [onnx.TypeProto() if v is None or v.type is None else ir.serde.serialize_type(v.type) for v in node.inputs]
    if not versions:
        return None
    for value, proto in zip(node.inputs, types, strict=True):
        if value is not None and value.shape is not None:
            ir.serde.serialize_shape_into(proto, value.shape)
    made: bytes = schema.get_context_dependent_function_with_opset_version(
        max(versions), ir.serde.serialize_node(node).SerializeToString(), [t.SerializeToString() for t in types])
    return made or None


def _name(function: ir.Function, node: ir.Node) -> None:
    """Names that say whose body it is, and that no other has."""
    for number, inner in enumerate(function.all_nodes()):
        inner.name = f"{node.name or node.op_type}/{inner.op_type}_{number}"
        for place, value in enumerate(inner.outputs):
            if value.name != "":
                value.name = f"{inner.name}.{place}"
