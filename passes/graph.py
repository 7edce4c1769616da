"""Reading and rewriting onnx_ir graphs: the vocabulary that passes are written in."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

Dim = int | str | None
Dims = tuple[Dim, ...]

FUSED = "infc.fused"  # metadata: names of the source nodes that a node stands for, separated by spaces
MODULE = "infc.module"  # metadata: the source module the node comes from, such as encoder.layer.0.attention


# --- reading ---------------------------------------------------------------------------------------------------------------


def dims(value: ir.Value | None) -> Dims | None:
    """Sizes, names of symbolic dimensions, and None for unknown ones; None when the rank is unknown."""
    if value is None or value.shape is None:
        return None
    return tuple(d if isinstance(d, int) else d.value for d in value.shape)


def known(shape: Dims | None) -> bool:
    return shape is not None and None not in shape


def same_shape(a: ir.Value | None, b: ir.Value | None) -> bool:
    """Whether both shapes are known and equal."""
    return known(dims(a)) and dims(a) == dims(b)


def constant(value: ir.Value | None) -> ir.TensorProtocol | None:
    """The tensor of an initializer that the caller cannot override."""
    if value is None or value.const_value is None or value.is_graph_input():
        return None
    return value.const_value


def array(value: ir.Value | None) -> np.ndarray[Any, Any] | None:
    """The data of a constant."""
    tensor = constant(value)
    return None if tensor is None else tensor.numpy()


def scalar(value: ir.Value | None) -> float | None:
    """The number in a constant of one element."""
    tensor = constant(value)
    return float(tensor.numpy().reshape(())) if tensor is not None and tensor.size == 1 else None


def ints(value: ir.Value | None) -> list[int] | None:
    """The elements of a small constant of integers."""
    tensor = constant(value)
    if tensor is None or tensor.size > 64 or tensor.dtype not in (ir.DataType.INT64, ir.DataType.INT32):
        return None
    return [int(x) for x in tensor.numpy().reshape(-1)]


def attribute(node: ir.Node, name: str, default: Any = None) -> Any:
    found = node.attributes.get(name)
    return default if found is None else found.value


def at(node: ir.Node, index: int) -> ir.Value | None:
    """Input ``index`` of the node, None where it is absent."""
    return node.inputs[index] if index < len(node.inputs) else None


def is_op(node: ir.Node | None, *op_types: str, domain: str = "") -> bool:
    return node is not None and node.domain == domain and node.op_type in op_types


def producer(value: ir.Value | None, *op_types: str, domain: str = "") -> ir.Node | None:
    """The node that makes the value, if it is one of these operators."""
    node = value.producer() if value is not None else None
    return node if is_op(node, *op_types, domain=domain) else None


def sole_use(value: ir.Value) -> ir.Node | None:
    """The only node that reads the value, once, when it is not a graph output."""
    uses = value.uses()
    return next(iter(uses)).node if len(uses) == 1 and not value.is_graph_output() else None


def other(node: ir.Node, value: ir.Value) -> ir.Value | None:
    """The other operand of a node with two inputs."""
    if len(node.inputs) != 2:
        return None
    return node.inputs[1] if node.inputs[0] is value else node.inputs[0]


def split_constant(node: ir.Node) -> tuple[ir.Value, ir.Value] | None:
    """(variable, constant) operands of a commutative node of two inputs."""
    if len(node.inputs) != 2:
        return None
    a, b = node.inputs
    if a is None or b is None or (constant(a) is None) == (constant(b) is None):
        return None
    return (b, a) if constant(a) is not None else (a, b)


def opset(model: ir.Model) -> int:
    return model.opset_imports.get("", 0)


def reduced_axes(node: ir.Node) -> list[int] | None:
    """Non-negative axes of a Reduce operator, sorted; None when unknown."""
    shape = dims(at(node, 0))
    if shape is None:
        return None
    axes = attribute(node, "axes")
    if at(node, 1) is not None:
        axes = ints(at(node, 1))
        if axes is None:
            return None
    if not axes:
        return [] if attribute(node, "noop_with_empty_axes", 0) else list(range(len(shape)))
    return sorted(a % len(shape) for a in axes)


def over_last_axis(node: ir.Node, default_axis: int = -1) -> bool:
    """Whether the node's ``axis`` is the last one of its first input."""
    shape = dims(at(node, 0))
    axis = attribute(node, "axis", default_axis)
    return axis == -1 or (shape is not None and axis == len(shape) - 1)


# --- rewriting -------------------------------------------------------------------------------------------------------------


def emit(
    anchor: ir.Node,
    op_type: str,
    inputs: Sequence[ir.Value | None],
    attributes: dict[str, Any] | None = None,
    *,
    name: str,
    like: Sequence[ir.Value | tuple[ir.DataType | None, Dims | None]],
    sources: Iterable[ir.Node] = (),
    domain: str = "",
) -> ir.Node:
    """Inserts a node before ``anchor``. ``like`` gives the outputs' types and shapes, ``sources`` the nodes it stands for."""
    outputs = []
    for i, wanted in enumerate(like):
        dtype, shape = _described(wanted)
        outputs.append(
            ir.Value(
                name=f"{name}/{op_type}.{i}",
                type=None if dtype is None else ir.TensorType(dtype),
                shape=None if shape is None else ir.Shape(shape),
            )
        )
    node = ir.node(op_type, inputs, attributes or {}, domain=domain, outputs=outputs, name=name)
    inherit(node, sources or (anchor,))
    anchor.prepend(node)
    return node


def channels_last(anchor: ir.Node, x: ir.Value, name: str) -> ir.Value:
    """``[N, C, ...]`` as ``[N, ..., C]``: a Transpose before ``anchor``."""
    rank = len(dims(x) or ())
    return _transposed(anchor, x, [0, *range(2, rank), 1], f"{name}/last")


def channels_first(anchor: ir.Node, x: ir.Value, name: str) -> ir.Value:
    """``[N, ..., C]`` as ``[N, C, ...]``."""
    rank = len(dims(x) or ())
    return _transposed(anchor, x, [0, rank - 1, *range(1, rank - 1)], f"{name}/first")


def _transposed(anchor: ir.Node, x: ir.Value, order: Sequence[int], name: str) -> ir.Value:
    shape = dims(x) or ()
    like = (x.dtype, tuple(shape[i] for i in order))
    return emit(anchor, "Transpose", [x], {"perm": list(order)}, name=name, like=[like]).outputs[0]


def _described(like: ir.Value | tuple[ir.DataType | None, Dims | None]) -> tuple[ir.DataType | None, Dims | None]:
    return (like.dtype, dims(like)) if isinstance(like, ir.Value) else like


def inherit(node: ir.Node, sources: Iterable[ir.Node]) -> None:
    """Records what the node stands for, and its module: that of the first source that has one."""
    sources = list(sources)
    names = dict.fromkeys(n for s in sources for n in s.metadata_props.get(FUSED, s.name or "").split())
    node.metadata_props[FUSED] = " ".join(names)
    module = next((s.metadata_props[MODULE] for s in sources if MODULE in s.metadata_props), None)
    if module:
        node.metadata_props[MODULE] = module


def replaceable(old: ir.Value, new: ir.Value) -> bool:
    """Whether ``new`` may take the place of ``old``: a graph output must keep its name and have a producer of its own."""
    return not old.is_graph_output() or (new.producer() is not None and not new.is_graph_output())


def replace(old: ir.Value, new: ir.Value, *, rename: bool = True) -> None:
    """Lets ``new`` serve the uses of ``old`` and erases what that leaves dead. ``new`` takes the name if it is new or must."""
    name = old.name
    rename = rename or old.is_graph_output()
    ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
    if rename:
        old.name = f"{name}/replaced"
        new.name = name
    node = old.producer()
    if node is not None:
        erase(node)


def erase(node: ir.Node) -> None:
    """Removes the node if nothing reads it, then the producers that this leaves unread."""
    pending = [node]
    while pending:
        dead = pending.pop()
        if dead.graph is None or any(v.uses() or v.is_graph_output() for v in dead.outputs):
            continue
        makers = [v.producer() for v in dead.inputs if v is not None]
        dead.graph.remove(dead, safe=True)
        pending += [m for m in makers if m is not None]


def add_constant(graph: ir.Graph, name: str, data: np.ndarray[Any, Any] | ir.TensorProtocol) -> ir.Value:
    """An initializer under this name, or the one that already has it."""
    if name in graph.initializers:
        return graph.initializers[name]
    tensor = ir.tensor(data, name=name) if isinstance(data, np.ndarray) else data
    value = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(tensor.shape.numpy()), const_value=tensor)
    graph.register_initializer(value)
    return value


def int_constant(graph: ir.Graph, numbers: Sequence[int]) -> ir.Value:
    """A shared 1-D int64 initializer."""
    return add_constant(graph, f"infc.ints[{','.join(map(str, numbers))}]", np.array(numbers, np.int64))


def owner(node: ir.Node) -> ir.Graph:
    assert isinstance(node.graph, ir.Graph)
    return node.graph
