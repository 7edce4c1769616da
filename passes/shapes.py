"""Symbolic shapes: infers the shape of every value, and the contents of the small integer tensors that shapes are computed with.

The exporter's own annotations are kept where they speak of the graph inputs' dimensions; others (names that some exporters make
up) are replaced by what can be inferred.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import onnx
import onnx_ir as ir

from infc.passes.graph import Dim, Dims, at, attribute, constant, dims, ints, known
from infc.passes.subgraphs import CONTROL, bodies, nested

Symbols = dict[ir.Value, Dims]
_LIMIT = 64  # elements of a tensor that is taken for a shape
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")
_PRODUCT = re.compile(r"\w+(\*\w+)*")
_FUNCTIONS = {"Min", "Max", "Mod", "floor"}


class Shapes:
    """The shapes of a graph. ``contents`` maps integer tensors of up to one dimension to their elements."""

    def __init__(self, model: ir.Model) -> None:
        self.contents: Symbols = {}
        self._opset = model.opset_imports
        self._primary = {name for v in model.graph.inputs for d in dims(v) or () if isinstance(d, str) for name in identifiers(d)}
        self._visit(model.graph)

    def _visit(self, graph: ir.Graph) -> None:
        for node in graph:
            if bodies(node):
                if node.op_type in CONTROL and (node.op_type != "Scan" or self._opset.get("", 9) > 8):  # whose inputs were others
                    self._control(node)
                continue
            self._shape(node)
            rule = _CONTENTS.get(node.op_type) if node.domain == "" else None
            found = rule(self, node) if rule else None
            if found is not None and len(found) <= _LIMIT:
                self.contents[node.outputs[0]] = found
            if node.op_type == "Split" and node.domain == "":
                self._split(node)

    def _split(self, node: ir.Node) -> None:
        """The pieces of a shape."""
        data, at_end = self.elements(at(node, 0)), 0
        if data is None:
            return
        for value in node.outputs:
            shape = dims(value)
            if shape is None or len(shape) != 1 or not isinstance(shape[0], int):
                return
            self.contents[value] = data[at_end : at_end + shape[0]]
            at_end += shape[0]

    def _control(self, node: ir.Node) -> None:
        """The bodies of a node, and its outputs. What a loop hands on from one iteration to the next is taken to keep its shape if
        its body, given that, returns it."""
        for body in bodies(node):
            handed = _body_inputs(node)
            before = {v: v.shape for v in body_values(body)}
            for value, source in handed.items():
                _take(value, *source)
            self._visit(body)
            if all(known(dims(old)) and dims(old) == dims(new) for old, new in _handed_on(node)):
                continue
            for value, old_shape in before.items():
                value.shape = old_shape
                self.contents.pop(value, None)
            changing = {old for old, _ in _handed_on(node)}
            for value, source in handed.items():
                _take(value, source[0], None if value in changing else source[1])
            self._visit(body)
        for value, (dtype, shape) in zip(node.outputs, _results(node), strict=True):
            _take(value, dtype, self._merge(dims(value), shape))

    def elements(self, value: ir.Value | None) -> Dims | None:
        """The elements of a small integer tensor, flattened."""
        if value is None:
            return None
        found = self.contents.get(value)
        return found if found is not None else _tuple(ints(value))

    def _shape(self, node: ir.Node) -> None:
        if not (node.domain == "" or _is_conv(node)) or all(v.dtype is not None and self._trusted(dims(v)) for v in node.outputs):
            return
        rule = _SHAPES.get(node.op_type)
        own = rule(self, node) if rule else None
        dtype = _dtype(node)
        inferred = [(dtype, own)] if own is not None and dtype is not None else self._onnx(node)
        for value, (dtype, shape) in zip(node.outputs, inferred, strict=False):
            if own is not None and value is node.outputs[0]:
                shape = own
            if value.dtype is None and dtype is not None:
                value.dtype = dtype
            merged = self._merge(dims(value), shape)
            if merged is not None and merged != dims(value):
                value.shape = ir.Shape(merged)

    def _trusted(self, shape: Dims | None) -> bool:
        return shape is not None and all(isinstance(d, int) or (d is not None and identifiers(d) <= self._primary) for d in shape)

    def _merge(self, old: Dims | None, new: Dims | None) -> Dims | None:
        if old is None or new is None or len(old) != len(new):
            return new if old is None else old
        return tuple(a if self._trusted((a,)) or b is None else b for a, b in zip(old, new, strict=True))

    def _onnx(self, node: ir.Node) -> list[tuple[ir.DataType | None, Dims | None]]:
        """What ONNX's own inference says of one node."""
        if any(a.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) for a in node.attributes.values()):
            return []
        types: dict[str, onnx.TypeProto] = {}
        data: dict[str, onnx.TensorProto] = {}
        for value in node.inputs:
            if value is None:
                continue
            if value.type is None or value.name is None:
                return []
            proto = ir.serde.serialize_type(value.type)
            if value.shape is not None:
                ir.serde.serialize_shape_into(proto, value.shape)
            types[value.name] = proto
            tensor = constant(value)
            if tensor is not None and tensor.size <= _LIMIT:
                data[value.name] = ir.serde.serialize_tensor(tensor)
        try:
            schema = onnx.defs.get_schema(node.op_type, self._opset[""], "")
            proto_of = ir.serde.serialize_node(node)
            if _is_conv(node):  # ONNX's, and what comes after
                proto_of.domain = ""
                del proto_of.input[3:]
                for name in [a.name for a in proto_of.attribute if a.name not in schema.attributes]:
                    proto_of.attribute.remove(next(a for a in proto_of.attribute if a.name == name))
            found = onnx.shape_inference.infer_node_outputs(schema, proto_of, types, data)
        except (onnx.shape_inference.InferenceError, onnx.defs.SchemaError, onnx.checker.ValidationError, RuntimeError):
            return []
        except (KeyError, TypeError):  # no opset, or a number that is none: refused when it is upgraded
            return []
        out: list[tuple[ir.DataType | None, Dims | None]] = []
        for value in node.outputs:
            known_type = found.get(value.name or "")
            shape = None if known_type is None else ir.serde.deserialize_type_proto_for_shape(known_type)
            kind = None if known_type is None else ir.serde.deserialize_type_proto_for_type(known_type)
            out.append(
                (
                    None if kind is None else kind.dtype,
                    None if shape is None else tuple(d if isinstance(d, int) else d.value for d in shape),
                )
            )
        return out


def infer_anew(model: ir.Model) -> None:
    """What a file says of what its nodes make is taken only where nothing can be inferred: it may be wrong. Of the model's outputs
    it is kept."""
    kept = set(model.graph.outputs)
    said = {v: dims(v) for graph in model.graphs() for node in graph for v in node.outputs if v not in kept}
    for value in said:
        value.shape = None
    Shapes(model)
    for value, old in said.items():
        new = dims(value)
        if old is not None and (new is None or len(new) == len(old)):
            both = zip(new or old, old, strict=True)
            value.shape = ir.Shape([o if n is None else n for n, o in both])


_Described = tuple[ir.DataType | None, Dims | None]


def _take(value: ir.Value, dtype: ir.DataType | None, shape: Dims | None) -> None:
    if value.dtype is None and dtype is not None:
        value.dtype = dtype
    if shape is not None:
        value.shape = ir.Shape(shape)


def body_values(body: ir.Graph) -> list[ir.Value]:
    """All that is computed or handed in, in the body and those within it."""
    return [v for graph in nested(body) for v in (*graph.inputs, *(v for node in graph for v in node.outputs))]


def _handed_on(node: ir.Node) -> list[tuple[ir.Value, ir.Value]]:
    """A loop's values that iterations hand on: as the body takes them, as it returns them."""
    if node.op_type == "If":
        return []
    body, count = attribute(node, "body"), _carried(node)
    skip = 2 if node.op_type == "Loop" else 0
    return list(zip(body.inputs[skip : skip + count], body.outputs[skip // 2 : skip // 2 + count], strict=True))


def _carried(node: ir.Node) -> int:
    return len(node.inputs) - (2 if node.op_type == "Loop" else attribute(node, "num_scan_inputs"))


def _body_inputs(node: ir.Node) -> dict[ir.Value, _Described]:
    """What the inputs of a loop's body are in the first iteration."""
    if node.op_type not in ("Loop", "Scan"):
        return {}
    body, count = attribute(node, "body"), _carried(node)
    if node.op_type == "Loop":
        handed = ((v.dtype, dims(v)) if v else (None, None) for v in node.inputs[2:])
        return dict(zip(body.inputs, [(ir.DataType.INT64, ()), (ir.DataType.BOOL, ()), *handed], strict=True))
    axes = attribute(node, "scan_input_axes") or [0] * attribute(node, "num_scan_inputs")
    found: list[_Described] = [(v.dtype, dims(v)) if v else (None, None) for v in node.inputs[:count]]
    for value, axis in zip(node.inputs[count:], axes, strict=True):
        shape = dims(value)
        found.append((value.dtype if value else None, None if shape is None else _without(shape, axis)))
    return dict(zip(body.inputs, found, strict=True))


def _without(shape: Dims, axis: int) -> Dims:
    return tuple(d for i, d in enumerate(shape) if i != axis % len(shape))


def _results(node: ir.Node) -> list[_Described]:
    """What a control node returns, as far as its bodies tell."""
    inner = bodies(node)
    if node.op_type == "If":
        pairs = list(zip(*(g.outputs for g in inner), strict=True))
        return [(vs[0].dtype or vs[-1].dtype, dims(vs[0]) if all(dims(v) == dims(vs[0]) for v in vs) else None) for vs in pairs]
    if node.op_type not in ("Loop", "Scan"):
        return [(None, None)] * len(node.outputs)
    count, outputs = _carried(node), list(inner[0].outputs)[1 if node.op_type == "Loop" else 0 :]
    found: list[_Described] = [(v.dtype, dims(v)) for v in outputs[:count]]
    length, axes = _trip_count(node), attribute(node, "scan_output_axes") or [0] * (len(outputs) - count)
    for value, axis in zip(outputs[count:], axes, strict=True):
        shape = dims(value)
        if shape is not None:
            axis %= len(shape) + 1
            shape = (*shape[:axis], length, *shape[axis:])
        found.append((value.dtype, shape))
    return found


def _trip_count(node: ir.Node) -> Dim:
    """How often a Scan runs; unknown for a Loop, which its body may end."""
    if node.op_type == "Loop":
        return None
    shape, axis = dims(node.inputs[_carried(node)]), (attribute(node, "scan_input_axes") or [0])[0]
    return shape[axis] if shape else None


def _is_conv(node: ir.Node) -> bool:
    return node.domain == "infc" and node.op_type == "Conv"


def identifiers(text: str) -> set[str]:
    """Names of the dimensions in an expression such as ``Min(512, seq)``."""
    return set(_IDENTIFIER.findall(text)) - _FUNCTIONS


def is_clipped(dim: Dim, symbol: str) -> bool:
    """Whether ``dim`` is ``symbol``, or that clipped to a constant, as in a slice of a table."""
    return dim == symbol or (
        isinstance(dim, str)
        and re.fullmatch(rf"(?i:min)\((\d+, ?{re.escape(symbol)}|{re.escape(symbol)}, ?\d+)\)", dim) is not None
    )


def broadcast(*shapes: Dims) -> Dims | None:
    """The shape of an elementwise result; None where it cannot be told."""
    rank = max(len(s) for s in shapes)
    out: list[Dim] = []
    for column in zip(*((1,) * (rank - len(s)) + s for s in shapes), strict=True):
        sizes = set(column) - {1}
        if not sizes:
            out.append(1)
        elif len(sizes) == 1 and None not in sizes:
            out.append(sizes.pop())
        else:
            plain = [s for s in sizes if isinstance(s, str) and all(is_clipped(o, s) for o in sizes)]
            if not plain:
                return None
            out.append(plain[0])  # the clipped ones can only be equal to it
    return tuple(out)


def reshape_target(source: Dims | None, wanted: Dims | None) -> list[int] | None:
    """A constant ``shape`` operand (0 copies a dimension, -1 is inferred) that takes ``source`` to ``wanted``."""
    if source is None or not known(source) or wanted is None or not known(wanted):
        return None
    target = [d if isinstance(d, int) else 0 if i < len(source) and source[i] == d else -1 for i, d in enumerate(wanted)]
    return target if target.count(-1) <= 1 else None


def _tuple(numbers: list[int] | None) -> Dims | None:
    return None if numbers is None else tuple(numbers)


def _quotient(source: Sequence[Dim], divisor: Sequence[Dim]) -> Dim:
    """Product of ``source`` over product of ``divisor``, where that is a size, a name or a product of names."""
    if None in source or None in divisor:
        return None
    (number, above), (rest, below) = _factors(source), _factors(divisor)
    if below - above or rest == 0 or number % rest:
        return None
    symbols = sorted((above - below).elements())
    factors = [*([str(number // rest)] if number != rest or not symbols else []), *symbols]
    return "*".join(factors) if symbols else number // rest


def _factors(shape: Sequence[Dim]) -> tuple[int, Counter[str]]:
    """A product as its number and its names."""
    parts = [p for d in shape for p in (str(d).split("*") if _PRODUCT.fullmatch(str(d)) else [str(d)])]
    return math.prod(int(p) for p in parts if p.isdigit()), Counter(p for p in parts if not p.isdigit())


# --- shapes of operators whose result depends on the contents of an operand ---------------------------------------------------


def _reshape(shapes: Shapes, node: ir.Node) -> Dims | None:
    source, target = dims(at(node, 0)), shapes.elements(at(node, 1))
    if target is None:
        return None
    copies = not attribute(node, "allowzero", 0)
    out: list[Dim] = [
        source[i] if d == 0 and copies and source is not None and i < len(source) else None if d == 0 and copies else d
        for i, d in enumerate(target)
    ]
    if -1 in out:
        rest = [d for d in out if d != -1]
        out[out.index(-1)] = None if source is None else _quotient(source, rest)
    return tuple(out)


def _expand(shapes: Shapes, node: ir.Node) -> Dims | None:
    source, target = dims(at(node, 0)), shapes.elements(at(node, 1))
    return None if source is None or target is None else broadcast(source, target)


def _constant_of_shape(shapes: Shapes, node: ir.Node) -> Dims | None:
    return shapes.elements(at(node, 0))


def _range(shapes: Shapes, node: ir.Node) -> Dims | None:
    start, limit, step = (shapes.elements(at(node, i)) for i in range(3))
    return limit if start == (0,) and step == (1,) and limit is not None and isinstance(limit[0], str) else None


def _slice(shapes: Shapes, node: ir.Node) -> Dims | None:
    """Slices from 0 to a symbolic end."""
    source, starts, ends = dims(at(node, 0)), shapes.elements(at(node, 1)), shapes.elements(at(node, 2))
    if source is None or starts is None or ends is None:
        return None
    axes = shapes.elements(at(node, 3)) if at(node, 3) is not None else tuple(range(len(starts)))
    steps = shapes.elements(at(node, 4)) if at(node, 4) is not None else (1,) * len(starts)
    if axes is None or steps is None:
        return None
    out = list(source)
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        if not isinstance(axis, int) or step != 1 or start != 0:
            return None
        size = source[axis]
        if isinstance(end, str):
            out[axis] = end if size == end else f"Min({size}, {end})" if isinstance(size, int) else None
        elif isinstance(end, int) and isinstance(size, int):
            out[axis] = min(size, end) if end >= 0 else max(size + end, 0)
        elif isinstance(end, int) and end >= 1 << 31:
            out[axis] = size
        else:
            return None
    return tuple(out)


def _elementwise(shapes: Shapes, node: ir.Node) -> Dims | None:
    operands = [dims(v) for v in node.inputs]
    return broadcast(*[o for o in operands if o is not None]) if all(known(o) for o in operands) else None


def _like_first(shapes: Shapes, node: ir.Node) -> Dims | None:
    return dims(node.inputs[0])


_ARITHMETIC = ("Add", "Sub", "Mul", "Div", "Max", "Min")
_COMPARISONS = ("And", "Or", "Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual")
_UNARY = ("Neg", "Cos", "Sin", "Sqrt", "Exp", "Log", "Erf", "Tanh", "Sigmoid", "Relu", "Reciprocal", "Softmax", "Identity")
_SHAPES: dict[str, Any] = {
    "Reshape": _reshape,
    "Expand": _expand,
    "ConstantOfShape": _constant_of_shape,
    "Range": _range,
    "Slice": _slice,
    **dict.fromkeys(("GroupNormalization", "MeanVarianceNormalization"), _like_first),  # ONNX infers nothing of them
    **dict.fromkeys((*_ARITHMETIC, *_COMPARISONS, *_UNARY, "Where"), _elementwise),
}


def _dtype(node: ir.Node) -> ir.DataType | None:
    """The result's type, where it follows from the operator and its inputs alone."""
    if node.op_type in _COMPARISONS:
        return ir.DataType.BOOL
    value = at(node, 1 if node.op_type == "Where" else 0)
    return node.outputs[0].dtype if value is None or node.op_type == "ConstantOfShape" else value.dtype


# --- contents ----------------------------------------------------------------------------------------------------------------


def _same(shapes: Shapes, node: ir.Node) -> Dims | None:
    return shapes.elements(at(node, 0))


def _cast_contents(shapes: Shapes, node: ir.Node) -> Dims | None:
    return _same(shapes, node) if attribute(node, "to") in (ir.DataType.INT64, ir.DataType.INT32) else None


def _shape_contents(shapes: Shapes, node: ir.Node) -> Dims | None:
    shape = dims(at(node, 0))
    if shape is None:
        return None
    return shape[attribute(node, "start", 0) : attribute(node, "end", len(shape))]


def _gather_contents(shapes: Shapes, node: ir.Node) -> Dims | None:
    data, indices, source = shapes.elements(at(node, 0)), ints(at(node, 1)), dims(at(node, 0))
    if (
        data is None
        or indices is None
        or source is None
        or len(source) != 1
        or any(not -len(data) <= i < len(data) for i in indices)
    ):
        return None
    return tuple(data[i] for i in indices)


def _slice_contents(shapes: Shapes, node: ir.Node) -> Dims | None:
    data, bounds = shapes.elements(at(node, 0)), [ints(at(node, i)) for i in (1, 2)]
    step = ints(at(node, 4)) if at(node, 4) is not None else [1]
    if data is None or len(dims(at(node, 0)) or ()) != 1 or step is None or bounds[0] is None or bounds[1] is None:
        return None
    return data[slice(bounds[0][0], bounds[1][0], step[0])] if step[0] > 0 else None


def _concat_contents(shapes: Shapes, node: ir.Node) -> Dims | None:
    out: list[Dim] = []
    for value in node.inputs:
        found, shape = shapes.elements(value), dims(value)
        if shape is None or len(shape) != 1 or not isinstance(shape[0], int) or shape[0] > _LIMIT:
            return None
        out += found if found is not None else (None,) * shape[0]
    return tuple(out)


def _filled_contents(shapes: Shapes, node: ir.Node) -> Dims | None:
    length, value = shapes.elements(at(node, 0)), attribute(node, "value")
    if length is None or len(length) > 1 or any(not isinstance(n, int) or n > _LIMIT for n in length):
        return None
    if value is None or value.dtype not in (ir.DataType.INT64, ir.DataType.INT32):
        return None
    return (int(value.numpy().reshape(())),) * math.prod(n for n in length if isinstance(n, int))


def _aligned(shapes: Shapes, node: ir.Node, count: int) -> list[tuple[Dim, ...]] | None:
    operands = [shapes.elements(v) for v in node.inputs]
    if len(operands) != count or any(o is None for o in operands):
        return None
    present = [o for o in operands if o is not None]
    length = max(map(len, present))
    if any(len(o) not in (1, length) for o in present):
        return None
    return list(zip(*(o * length if len(o) == 1 else o for o in present), strict=True))


def _arithmetic_contents(shapes: Shapes, node: ir.Node) -> Dims | None:
    pairs = _aligned(shapes, node, 2)
    return None if pairs is None else tuple(_compute(node.op_type, a, b) for a, b in pairs)


def _compute(op: str, a: Dim, b: Dim) -> Dim:
    if a is None or b is None:
        return None
    if isinstance(a, int) and isinstance(b, int):
        if op == "Div":
            return int(a / b) if b else None
        return {"Add": a + b, "Sub": a - b, "Mul": a * b, "Max": max(a, b), "Min": min(a, b)}[op]
    if (op in ("Mul", "Div") and b == 1) or (op in ("Add", "Sub") and b == 0):
        return a
    if (op == "Mul" and a == 1) or (op == "Add" and a == 0):
        return b
    if op == "Mul":
        return "*".join(sorted(map(str, (a, b))))
    return f"{a} {'+' if op == 'Add' else '-'} {b}" if op in ("Add", "Sub") else None


def _equal_contents(shapes: Shapes, node: ir.Node) -> Dims | None:
    pairs = _aligned(shapes, node, 2)
    return None if pairs is None else tuple(_equal(a, b) for a, b in pairs)


def _equal(a: Dim, b: Dim) -> Dim:
    if isinstance(a, str) and isinstance(b, str):
        return 1 if a == b else None
    if isinstance(a, int) and isinstance(b, int):
        return int(a == b)
    number = a if isinstance(a, int) else b
    return 0 if isinstance(number, int) and number < 0 else None  # no dimension is negative


def _where_contents(shapes: Shapes, node: ir.Node) -> Dims | None:
    rows = _aligned(shapes, node, 3)
    return None if rows is None else tuple((a if c else b) if isinstance(c, int) else None for c, a, b in rows)


_CONTENTS: dict[str, Any] = {
    "Shape": _shape_contents,
    "Gather": _gather_contents,
    "Slice": _slice_contents,
    "Concat": _concat_contents,
    "Cast": _cast_contents,
    "ConstantOfShape": _filled_contents,
    "Equal": _equal_contents,
    "Where": _where_contents,
    **dict.fromkeys(("Identity", "Squeeze", "Unsqueeze", "Reshape"), _same),
    **dict.fromkeys(_ARITHMETIC, _arithmetic_contents),
}
