"""Rewrites operators of older opsets into the form they have at opset 23, one rule a change of form.

What is not in RULES reads the same at every opset from 7 on, or gained attributes whose defaults are what it did before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx_ir.passes import common

from infc.compiler.errors import UnsupportedError, UsageError
from infc.passes.graph import attribute, dims

OPSET = 23  # what passes work at; a newer one stays as it is
OLDEST, NEWEST = 1, onnx.defs.onnx_opset_version()
_MOST = 1 << 16  # opsets beyond are refused; onnx takes no number of 64 bits
_KNOWN = 7  # rules begin here: of what is older only operators that did not change till then are read
_MOST_SCANS = 64  # that one over a batch becomes
Rule = Callable[[ir.Node], None]


def upgrade_model(model: ir.Model) -> int:
    """Writes out the model's own functions and brings the graph to opset 23, if it is older; returns the opset that it had.

    Raises UsageError E0119 for an opset that is not read, and for a node whose older form has no newer one; UnsupportedError E0406
    for a function that reads an operator as another opset than the model's had it.
    """
    _settle_functions(model)
    common.InlinePass()(model)
    version = model.opset_imports.get("", OPSET)
    if not OLDEST <= version <= NEWEST:
        raise UsageError("E0119", f"the model's opset is {version}, infc reads {OLDEST} to {NEWEST}",
                         hint="export it again with opset 18 or later")
    upgrade(model.graph.all_nodes(), version)
    model.opset_imports[""] = max(OPSET, version)
    return version


def _settle_functions(model: ir.Model) -> None:
    """Leaves no function that is named like an operator of ONNX, which takes its place, as in ONNX Runtime and in ONNX's evaluator,
    and gives the others the model's opsets: ONNX wants operators to be the same in both."""
    imports = model.opset_imports
    for key, function in list(model.functions.items()):
        if _since(function.name, imports.get(function.domain, 0), function.domain):
            del model.functions[key]
            continue
        for name, own in function.opset_imports.items():
            wanted = imports.setdefault(name, own)
            changed = next((n for n in function.all_nodes() if n.domain == name and _changed(n, own, wanted)), None)
            if changed is not None:
                raise UnsupportedError(
                    "E0406", f"function {function.domain}::{function.name} is of opset {own}{f' of {name}' if name else ''}, "
                    f"its model of {wanted}: {changed.op_type} is not the same in both", where=f"function {function.name}",
                    hint=f"export the model again with one opset: ONNX Runtime reads the function as of opset {wanted}")
            function.opset_imports[name] = wanted


def _changed(node: ir.Node, one: int, other: int) -> bool:
    """Whether an operator has two forms at two opsets that are not the same with more types or attributes."""
    if node.domain == "":
        return any(min(one, other) < since <= max(one, other) for since, _ in RULES.get(node.op_type, ()))
    return _since(node.op_type, one, node.domain) != _since(node.op_type, other, node.domain)


def _since(operator: str, version: int, domain: str = "") -> int:
    """The opset that brought the form which an operator has at ``version``; 0 for one that there was not."""
    try:
        return onnx.defs.get_schema(operator, min(version, _MOST), domain).since_version
    except onnx.defs.SchemaError:
        return 0


def upgrade(nodes: Iterable[ir.Node], version: int) -> None:
    """Rewrites nodes of opset ``version``."""
    if version >= OPSET:
        return
    for node in list(nodes):
        if node.domain == "":
            if version < _KNOWN and _since(node.op_type, version) != _since(node.op_type, _KNOWN):
                raise _no_newer(node, f"the meaning it had at opset {version}")
            for since, rule in RULES.get(node.op_type, ()):
                if version < since:
                    rule(node)


# --- the pieces of rules ------------------------------------------------------------------------------------------------------


def _before(node: ir.Node, op_type: str, inputs: list[ir.Value | None], attributes: dict[str, Any] | None = None) -> ir.Value:
    """A new node in front of another one; its value. Names are given when the graph is normalised."""
    made = ir.node(op_type, inputs, attributes or {}, metadata_props=dict(node.metadata_props))
    node.prepend(made)
    return made.outputs[0]


def _constant(node: ir.Node, data: np.ndarray[Any, Any]) -> ir.Value:
    value = _before(node, "Constant", [], {"value": ir.tensor(data)})
    value.dtype, value.shape = ir.DataType.from_numpy(data.dtype), ir.Shape(data.shape)
    return value


def _set_input(node: ir.Node, index: int, value: ir.Value | None) -> None:
    if len(node.inputs) <= index:
        node.resize_inputs(index + 1)
    node.replace_input_with(index, value)


def _floating(node: ir.Node) -> np.dtype[Any]:
    """The NumPy type of the node's first input; float32 where it is not known."""
    first = node.inputs[0]
    return np.dtype(first.dtype.numpy()) if first is not None and first.dtype is not None else np.dtype(np.float32)


def _to_input(name: str, index: int, dtype: Any = np.int64) -> Rule:
    """An attribute that became an input; ``dtype`` None: that of the first input."""

    def rule(node: ir.Node) -> None:
        value = attribute(node, name)
        if value is not None:
            del node.attributes[name]
            _set_input(node, index, _constant(node, np.array(value, _floating(node) if dtype is None else dtype)))

    return rule


def _to_inputs(*rules: Rule) -> Rule:
    def rule(node: ir.Node) -> None:
        for each in rules:
            each(node)

    return rule


def _default(**values: Any) -> Rule:
    """Attributes whose default became another."""

    def rule(node: ir.Node) -> None:
        for name, value in values.items():
            if name not in node.attributes:
                node.attributes.add(ir.convenience.convert_attribute(name, value))

    return rule


def _set(node: ir.Node, name: str, value: Any) -> None:
    node.attributes[name] = ir.convenience.convert_attribute(name, value)


# --- rules --------------------------------------------------------------------------------------------------------------------


def _flattened(node: ir.Node) -> None:
    """Softmax and its like took all dimensions from ``axis`` on for one."""
    axis, shape = attribute(node, "axis", 1), dims(node.inputs[0])
    if axis == -1 or (shape is not None and axis in (len(shape) - 1, -1)):
        _set(node, "axis", -1)
        return
    source, result = node.inputs[0], node.outputs[0]
    size = _before(node, "Shape", [source])
    node.replace_input_with(0, _before(node, "Flatten", [source], {"axis": axis}))
    _set(node, "axis", -1)
    back = ir.node("Reshape", [None, size], metadata_props=dict(node.metadata_props))
    node.append(back)
    value, name = back.outputs[0], result.name
    value.type, value.shape = result.type, result.shape
    ir.convenience.replace_all_uses_with(result, value, replace_graph_outputs=True)
    back.replace_input_with(0, result)
    result.shape = None
    result.name = f"{name}/flat"
    value.name = name


def _dropout(node: ir.Node) -> None:
    node.attributes.pop("seed", None)
    _to_input("ratio", 1, np.float32)(node)


def _batch_normalization(node: ir.Node) -> None:
    spatial = node.attributes.pop("spatial", None)
    if spatial is not None and not spatial.as_int():
        raise _no_newer(node, "spatial=0")
    if any(v.uses() or v.is_graph_output() for v in node.outputs[1:]):
        raise _no_newer(node, "training")
    node.resize_outputs(1)


def _split(node: ir.Node) -> None:
    if len(node.inputs) < 2 and "num_outputs" not in node.attributes:
        _set(node, "num_outputs", len(node.outputs))


def _resize(node: ir.Node) -> None:
    """Resize-10: scales only, coordinates as they are."""
    scales = node.inputs[1]
    node.resize_inputs(3)
    node.replace_input_with(1, None)
    node.replace_input_with(2, scales)
    _set(node, "coordinate_transformation_mode", "asymmetric")
    _set(node, "nearest_mode", "floor")


def _upsample(node: ir.Node) -> None:
    _to_input("scales", 1, np.float32)(node)
    if attribute(node, "mode") == "bilinear":
        _set(node, "mode", "linear")
    node.op_type = "Resize"
    _resize(node)


def _scatter(node: ir.Node) -> None:
    node.op_type = "ScatterElements"


def _group_normalization(node: ir.Node) -> None:
    """Scale and bias went from one a group to one a channel."""
    shape, groups = dims(node.inputs[0]), attribute(node, "num_groups")
    if shape is None or len(shape) < 2 or not isinstance(shape[1], int):
        raise _no_newer(node, "an unknown number of channels")
    for index in (1, 2):
        column = _before(node, "Unsqueeze", [node.inputs[index], _constant(node, np.array([1]))])
        wide = _before(node, "Expand", [column, _constant(node, np.array([groups, shape[1] // groups]))])
        node.replace_input_with(index, _before(node, "Reshape", [wide, _constant(node, np.array([-1]))]))


def _top_k(node: ir.Node) -> None:
    _set_input(node, 1, _constant(node, np.array([node.attributes.pop("k").as_int()])))


def _grid_sample(node: ir.Node) -> None:
    mode = attribute(node, "mode", "bilinear")
    _set(node, "mode", {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode))


def _scan(node: ir.Node) -> None:
    """There was a batch in front, and lengths of its sequences: one Scan for each of them."""
    batch = next((s[0] for v in node.inputs[1:] if (s := dims(v))), None)
    if not isinstance(batch, int) or batch > _MOST_SCANS or node.inputs[0] is not None:
        raise _no_newer(node, "sequences of unknown number or length")
    directions = node.attributes.pop("directions", None)
    if directions is not None:
        _set(node, "scan_input_directions", directions.as_ints())
    body = node.attributes.pop("body").as_graph()
    columns: list[list[ir.Value]] = [[] for _ in node.outputs]
    for b in range(batch):
        inputs = [_before(node, "Gather", [v, _constant(node, np.array(b))], {"axis": 0}) for v in node.inputs[1:]]
        attributes = {**node.attributes, "body": ir.AttrGraph("body", body.clone(allow_outer_scope_values=True))}
        one = ir.node("Scan", inputs, attributes, num_outputs=len(node.outputs), metadata_props=dict(node.metadata_props))
        node.prepend(one)
        for column, value in zip(columns, one.outputs, strict=True):
            column.append(_before(node, "Unsqueeze", [value, _constant(node, np.array([0]))]))
    results = [_before(node, "Concat", list(column), {"axis": 0}) for column in columns]
    for old, new in zip(node.outputs, results, strict=True):
        new.name, new.type, new.shape, old.name = old.name, old.type, old.shape, f"{old.name}/replaced"
        ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
    assert node.graph is not None
    node.graph.remove(node, safe=True)


def _no_newer(node: ir.Node, what: str) -> UsageError:
    return UsageError("E0119", f"{node.op_type} of an older opset, with {what}, has no newer form", where=f"node '{node.name}'",
                      hint="export the model again with opset 18 or later")


_AXES = _to_input("axes", 1)
_REDUCE = ((18, _AXES),)
_SOFTMAX = ((13, _flattened),)
# Operator -> (first opset of the newer form, rule), oldest first.
RULES: dict[str, tuple[tuple[int, Rule], ...]] = {
    "BatchNormalization": ((14, _batch_normalization),),
    "Clip": ((11, _to_inputs(_to_input("min", 1, None), _to_input("max", 2, None))),),
    "DFT": ((20, _to_inputs(_default(axis=1), _to_input("axis", 2))),),
    "Dropout": ((12, _dropout),),
    "GridSample": ((20, _grid_sample),),
    "GroupNormalization": ((21, _group_normalization),),
    "Hardmax": _SOFTMAX,
    "LogSoftmax": _SOFTMAX,
    "Pad": ((11, _to_inputs(_to_input("pads", 1), _to_input("value", 2, None))),),
    **dict.fromkeys(("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin",
                     "ReduceProd", "ReduceSumSquare"), _REDUCE),
    "ReduceSum": ((13, _AXES),),
    "Resize": ((11, _resize),),
    "RoiAlign": ((16, _default(coordinate_transformation_mode="output_half_pixel")),),
    "Scan": ((9, _scan),),
    "Scatter": ((11, _scatter),),
    "Slice": ((10, _to_inputs(_to_input("starts", 1), _to_input("ends", 2), _to_input("axes", 3))),),
    "Softmax": _SOFTMAX,
    "Split": ((13, _to_input("split", 1)), (18, _split)),
    "Squeeze": ((13, _AXES),),
    "TopK": ((10, _top_k),),
    "Unsqueeze": ((13, _AXES),),
    "Upsample": ((23, _upsample),),
}
