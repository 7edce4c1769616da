"""What operators do to packed rows: the rules of pack_tokens, one an operator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import onnx_ir as ir

from infc.passes.base import Miss
from infc.passes.domain import DOMAIN
from infc.passes.graph import (
    Dim,
    add_constant,
    array,
    at,
    attribute,
    dims,
    int_constant,
    ints,
    producer,
    reduced_axes,
    scalar,
    split_constant,
)
from infc.passes.shapes import is_clipped

if TYPE_CHECKING:
    from infc.passes.pack_tokens import Packer

Rule = Callable[["Packer", ir.Node], None]


def _elementwise(p: Packer, node: ir.Node) -> None:
    rows = [p.row(v) for v in node.inputs]
    present = [r for r in rows if r is not None]
    shape, lead = dims(node.outputs[0]), max(r.lead for r in present)
    if shape is None:
        raise Miss(node, f"the shape of {node.outputs[0].name} is unknown")
    trailing = shape[lead:]
    if any(len(r.trailing) != len(trailing) for r in present):
        raise Miss(node, f"rows of shapes {[r.trailing for r in present]} do not align")
    inputs = [r.value if r is not None else p.plain(node, v, len(trailing)) for v, r in zip(node.inputs, rows, strict=True)]
    p.like(node, inputs, lead=lead, from_input=all(r.from_input for r in present))


def _over_rows(p: Packer, node: ir.Node) -> None:
    """Operators over the last axis, with constant parameters and perhaps a residual."""
    x = p.row(node.inputs[0])
    if x is None:
        raise Miss(node, f"{node.inputs[0] and node.inputs[0].name} has no rows, another operand has")
    rank = len(x.trailing)
    axis = attribute(node, "axis", -1)
    if axis not in (-1, x.lead + rank - 1) or rank == 0:
        raise Miss(node, f"{node.op_type} is not over the last axis")
    inputs = [r.value if (r := p.row(v)) is not None else p.plain(node, v, max(rank, 2)) for v in node.inputs]
    attributes = {k: a.value for k, a in node.attributes.items()}
    if "axis" in attributes or node.op_type in ("LayerNormalization", "RMSNormalization", "Softmax", "LogSoftmax"):
        attributes["axis"] = -1
    p.like(node, inputs, attributes, lead=x.lead, from_input=x.from_input)


def _scaled(p: Packer, node: ir.Node) -> None:
    """QuantizeLinear and DequantizeLinear with one scale for the tensor."""
    x = p.row(node.inputs[0])
    if x is None or any(p.row(v) is not None or dims(v) not in ((), (1,)) for v in node.inputs[1:] if v is not None):
        raise Miss(node, "it has more than one scale")
    attributes = {k: a.value for k, a in node.attributes.items() if k not in ("axis", "block_size")}
    p.like(node, [x.value, *node.inputs[1:]], attributes, lead=x.lead, from_input=x.from_input)


def _projection(p: Packer, node: ir.Node) -> None:
    """Linear, and MatMul by a matrix without rows."""
    weight = node.inputs[1]
    if p.row(weight) is not None or len(dims(weight) or ()) != 2:
        raise Miss(node, f"it multiplies by {weight and weight.name}, which is no single matrix")
    _over_rows(p, node)


def _gather(p: Packer, node: ir.Node) -> None:
    data, indices = node.inputs
    x, ids, axis = p.row(data), p.row(indices), attribute(node, "axis", 0)
    assert data is not None
    if ids is not None:
        if x is not None or axis != 0:
            raise Miss(node, f"rows of {data.name} are looked up by rows")
        p.like(
            node,
            [data, p.ids(ids)],
            {"axis": 0},
            trailing=[(*ids.trailing, *(dims(data) or ())[1:])],
            lead=ids.lead,
            from_input=ids.from_input,
        )
        return
    assert x is not None
    axis %= len(dims(data) or ())
    if axis >= x.lead:
        p.like(node, [x.value, indices], {"axis": axis - x.lead + 1}, lead=x.lead, from_input=x.from_input)
    elif axis == 1 and ints(indices) == [0]:
        p.select_first(node, data, x, keeps_axis=len(dims(indices) or ()) == 1)
    elif not x.from_input:
        raise Miss(node, f"positions of {data.name} other than 0 are selected")


def _slice(p: Packer, node: ir.Node) -> None:
    data = node.inputs[0]
    x, rank = p.row(data), len(dims(data) or ())
    starts, ends, axes = (ints(at(node, i)) for i in (1, 2, 3))
    steps = ints(at(node, 4)) if at(node, 4) is not None else None
    if x is None or data is None or axes is None:
        raise Miss(node, "the axes of the slice are not constant")
    axes = [a % rank for a in axes]
    if all(a >= x.lead for a in axes):
        shifted = int_constant(p.graph, [a - x.lead + 1 for a in axes])
        p.like(node, [x.value, *node.inputs[1:3], shifted, *node.inputs[4:]], lead=x.lead, from_input=x.from_input)
    elif (axes, starts, ends) == ([1], [0], [1]) and steps in (None, [1]):
        p.select_first(node, data, x, keeps_axis=True)
    elif not x.from_input:
        raise Miss(node, f"positions of {data.name} other than 0 are selected")


def _split_or_concat(p: Packer, node: ir.Node) -> None:
    """Split, Concat and the like along an axis of the rows."""
    counted = node.inputs if node.op_type == "Concat" else node.inputs[:1]
    rows = [p.row(v) for v in counted]
    rank, axis = len(dims(node.inputs[0]) or ()), attribute(node, "axis", 0)
    if any(r is None for r in rows):
        raise Miss(node, "it joins rows and other values")
    present = [r for r in rows if r is not None]
    lead = present[0].lead
    if axis % rank < lead or any(r.lead != lead for r in present):
        raise Miss(node, f"{node.op_type} is along batch or seq")
    attributes = {k: a.value for k, a in node.attributes.items()} | {"axis": axis % rank - rank}
    p.like(
        node,
        [*(r.value for r in present), *node.inputs[len(counted) :]],
        attributes,
        lead=lead,
        from_input=all(r.from_input for r in present),
    )


def _layout(p: Packer, node: ir.Node) -> None:
    """Reshape, Squeeze, Unsqueeze, Expand: only dimensions after seq may change, and what comes before it may gain or lose a 1."""
    x, shape, out = p.row(node.inputs[0]), dims(node.outputs[0]), node.outputs[0]
    assert x is not None
    if shape is None or p.seq not in map(_symbol(p.seq), shape[:2]):
        if x.from_input:
            return
        raise Miss(node, f"the result's shape {shape} does not lead with batch and seq")
    lead = list(map(_symbol(p.seq), shape[:2])).index(p.seq) + 1
    trailing = shape[lead:]
    if lead == 2 and shape[0] not in (1, p.batch):
        raise Miss(node, f"the result's shape {shape} does not lead with batch and seq")
    if trailing == x.trailing:
        p.rows[out] = replace(x, lead=lead)
    elif node.op_type == "Expand" or not all(isinstance(d, int) for d in trailing):
        if not x.from_input:
            raise Miss(node, f"it takes rows of {x.trailing} to {trailing}")
    else:
        target = int_constant(p.graph, [0, *(int(d) for d in trailing)])  # type: ignore[arg-type]
        p.like(node, [x.value, target], {}, op_type="Reshape", trailing=[trailing], lead=lead, from_input=x.from_input)


def _symbol(seq: str) -> Callable[[Dim], Dim]:
    return lambda dim: seq if is_clipped(dim, seq) else dim


def _transpose(p: Packer, node: ir.Node) -> None:
    x, perm = p.row(node.inputs[0]), list(attribute(node, "perm", []))
    assert x is not None
    if perm[: x.lead] != list(range(x.lead)):
        raise Miss(node, "it moves batch or seq")
    p.like(node, [x.value], {"perm": [0, *(a - x.lead + 1 for a in perm[x.lead :])]}, lead=x.lead, from_input=x.from_input)


def _reduce(p: Packer, node: ir.Node) -> None:
    x, axes = p.row(node.inputs[0]), reduced_axes(node)
    if x is None or not axes or min(axes) < x.lead:
        if x is not None and x.from_input:
            return
        raise Miss(node, "it reduces over batch or seq")
    attributes = {k: a.value for k, a in node.attributes.items() if k != "axes"}
    p.like(node, [x.value, int_constant(p.graph, [a - x.lead + 1 for a in axes])], attributes, lead=x.lead, from_input=x.from_input)


def _embedding_sum(p: Packer, node: ir.Node) -> None:
    inputs: list[ir.Value | None] = []
    for ids, table in zip(node.inputs[::2], node.inputs[1::2], strict=True):
        row = p.row(ids)
        if row is None or row.trailing:
            raise Miss(node, f"the ids {ids and ids.name} have no rows")
        inputs += [p.ids(row), table]
    p.like(node, inputs)


def _attention(p: Packer, node: ir.Node) -> None:
    rows = [p.row(v) for v in node.inputs[:3]]
    if any(r is None for r in rows):
        raise Miss(node, "query, key or value has no rows")
    p.like(node, [*(r.value for r in rows if r is not None), p.offsets, p.key_start], op_type="VarlenAttention")


def _pool(p: Packer, node: ir.Node) -> None:
    x = p.row(node.inputs[0])
    if x is None:
        raise Miss(node, "what is pooled has no rows")
    attributes = {k: a.value for k, a in node.attributes.items()}
    p.replaced.append((node.outputs[0], p.reduce(node, x, attributes, dims(node.outputs[0]) or ())))


ELEMENTWISE = (
    "Abs",
    "Add",
    "And",
    "Cast",
    "CastLike",
    "Ceil",
    "Clip",
    "Cos",
    "Div",
    "Elu",
    "Equal",
    "Erf",
    "Exp",
    "Floor",
    "Gelu",
    "Greater",
    "GreaterOrEqual",
    "HardSigmoid",
    "HardSwish",
    "Identity",
    "IsInf",
    "IsNaN",
    "LeakyRelu",
    "Less",
    "LessOrEqual",
    "Log",
    "Max",
    "Mean",
    "Min",
    "Mish",
    "Mod",
    "Mul",
    "Neg",
    "Not",
    "Or",
    "PRelu",
    "Pow",
    "Reciprocal",
    "Relu",
    "Round",
    "Selu",
    "Sigmoid",
    "Sign",
    "Sin",
    "Softplus",
    "Softsign",
    "Sqrt",
    "Sub",
    "Sum",
    "Swish",
    "Tanh",
    "Where",
    "Xor",
)
def _running_sum(p: Packer, node: ir.Node) -> None:
    """A CumSum along seq of an input, or of where an input is not some number: how positions are computed from ids."""
    x, value = _counted(at(node, 0))
    if x is None or not p.is_input(x) or x.dtype not in (ir.DataType.INT64, ir.DataType.INT32) or len(dims(x) or ()) != 2:
        raise Miss(node, f"CumSum may mix the rows of {node.inputs[0] and node.inputs[0].name}")
    if ints(at(node, 1)) != [1] or attribute(node, "reverse", 0) or attribute(node, "exclusive", 0):
        raise Miss(node, "the running sum is not forwards along seq")
    p.sum_until(node, x, value)


def _counted(value: ir.Value | None) -> tuple[ir.Value | None, int | None]:
    """The input that is summed; and the number, if what is summed is where the input is not that."""
    while (cast := producer(value, "Cast")) is not None and cast.outputs[0].dtype in (ir.DataType.INT64, ir.DataType.INT32):
        value = at(cast, 0)
    unlike = producer(value, "Not")
    equal = producer(at(unlike, 0), "Equal") if unlike is not None else None
    if equal is None:
        return value, None
    sides = split_constant(equal)
    number = scalar(sides[1]) if sides is not None else None
    return (sides[0], int(number)) if sides is not None and number is not None else (None, None)


def _look_up(p: Packer, node: ir.Node) -> None:
    """GatherElements along seq from a constant that is the same for every text, as exporters write for token types left out."""
    data, indices, axis = at(node, 0), p.row(at(node, 1)), attribute(node, "axis", 0)
    spread = producer(data, "Expand")
    table = array(at(spread, 0) if spread is not None else data)
    if indices is None or table is None or table.ndim != 2 or table.shape[0] != 1 or axis not in (1, -1):
        raise Miss(node, f"rows are looked up in {data and data.name}")
    row = add_constant(p.graph, f"{node.name}/table", table[0])
    p.like(node, [row, p.ids(indices)], {"axis": 0}, op_type="Gather", lead=indices.lead, from_input=indices.from_input)


RULES: dict[tuple[str, str], Rule] = {
    **{("", op): _elementwise for op in ELEMENTWISE},
    **{("", op): _over_rows for op in ("LayerNormalization", "RMSNormalization", "Softmax", "LogSoftmax")},
    **{("", op): _layout for op in ("Reshape", "Squeeze", "Unsqueeze", "Expand")},
    **{("", op): _reduce for op in ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceL2", "ReduceSumSquare")},
    ("", "QuantizeLinear"): _scaled,
    ("", "DequantizeLinear"): _scaled,
    ("", "MatMul"): _projection,
    ("", "CumSum"): _running_sum,
    ("", "GatherElements"): _look_up,
    ("", "Gather"): _gather,
    ("", "Slice"): _slice,
    ("", "Transpose"): _transpose,
    ("", "Split"): _split_or_concat,
    ("", "Concat"): _split_or_concat,
    (DOMAIN, "Linear"): _projection,
    (DOMAIN, "AddNorm"): _over_rows,
    (DOMAIN, "L2Normalize"): _over_rows,
    (DOMAIN, "EmbeddingSum"): _embedding_sum,
    (DOMAIN, "PaddedAttention"): _attention,
    (DOMAIN, "SegmentPool"): _pool,
}
