"""Proves that a graph may run on rectangles filled up with zeros: what it computes of the caller's part does not change.

The claim about every value: at larger sizes of batch and seq, with zeros added at the end of the inputs, the part of it that is
there at the smaller sizes holds what it holds there. Operators that work position by position keep that. Positions along seq may
meet only where those beyond the caller's are known to be nothing: zeros in a sum, or keys that attention masks. Anything else
leaves the dimensions exact, with a near miss. The claim is about any sizes, so none may be a value that is computed with.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from infc.passes.base import Miss, NearMiss, Pass, PassResult
from infc.passes.domain import DOMAIN
from infc.passes.graph import Dim, Dims, at, attribute, constant, dims, ints, reduced_axes, scalar
from infc.passes.masks import MASKED
from infc.passes.pack_tokens import PACKED
from infc.passes.row_rules import ELEMENTWISE
from infc.passes.shapes import is_clipped

PADDED = "infc.padded"  # model metadata: JSON, the names of the dimensions that pad

Rule = Callable[["Prover", ir.Node], None]


class ProvePadding(Pass):
    """See the module. The match is the first input that pads."""

    name = "prove_padding"

    def run(self, model: ir.Model) -> PassResult:
        names = None if PACKED in model.metadata_props else _names(model.graph)
        if names is None:
            return PassResult(False)
        try:
            prover = Prover(names)
            for value in model.graph.inputs:
                prover.admit(value, next(iter(model.graph)))
            for node in model.graph:
                prover.visit(node)
            for value in model.graph.outputs:
                prover.release(value)
        except Miss as miss:
            return PassResult(False, [], [NearMiss(miss.node.name or "", miss.reason)])
        model.metadata_props[PADDED] = json.dumps(names)
        return PassResult(True, [next(v.name or "" for v in model.graph.inputs if set(names) & set(dims(v) or ()))])


def _names(graph: ir.Graph) -> list[str] | None:
    """batch and seq of the inputs [batch, seq]: the same two of all, or of a constant batch seq alone. None if there are none."""
    found = {shape[:2] for v in graph.inputs if (shape := dims(v)) is not None and len(shape) == 2 and isinstance(shape[1], str)}
    if len(found) != 1:
        return None
    (shape,) = found
    return [d for d in shape if isinstance(d, str)] if len(set(shape)) == 2 else None


@dataclass(frozen=True)
class Fact:
    """``beyond`` gives, by axis of seq, what the value is beyond the caller's part, where that is one number; ``size``: it is made
    of sizes, and so is another at other sizes."""

    beyond: dict[int, float] = field(default_factory=dict)
    size: bool = False


class Prover:
    """Facts of the values that were visited. Raises Miss where the claim cannot be made."""

    def __init__(self, names: Sequence[str]) -> None:
        self.batch, self.seq = (names[0] if len(names) == 2 else None), names[-1]
        self.facts: dict[ir.Value, Fact] = {}

    # --- reading ---

    def fact(self, value: ir.Value) -> Fact:
        return self.facts.get(value, Fact())

    def is_size(self, value: ir.Value | None) -> bool:
        return value is not None and self.fact(value).size

    def is_seq(self, dim: Dim) -> bool:
        return is_clipped(dim, self.seq)

    def factors(self, node: ir.Node, dim: Dim) -> list[Dim]:
        """batch and seq as they are; a product of batch and numbers with batch outermost, for so are all made that come by."""
        if isinstance(dim, int):
            return [dim]
        if self.is_seq(dim):
            return [self.seq]
        parts = [p.strip(" ()") for p in str(dim).split("*")]
        numbers = [int(p) for p in parts if p.isdigit()]
        if self.batch is None or sorted(p for p in parts if not p.isdigit()) != [self.batch]:
            raise Miss(node, f"it has the dimension {dim}")
        return [self.batch, *numbers]

    def varies(self, dim: Dim) -> bool:
        return not isinstance(dim, int)

    def shape(self, node: ir.Node, value: ir.Value | None) -> Dims:
        found = dims(value)
        if found is None:
            raise Miss(node, f"the shape of {value and value.name} is unknown")
        for dim in found:
            self.factors(node, dim)
        return found

    def layout(self, node: ir.Node, shape: Dims) -> list[Dim]:
        """batch, seq and the products of the numbers between them, in order: equal for two shapes whose elements lie alike."""
        out: list[Dim] = []
        for factor in (f for dim in shape for f in self.factors(node, dim)):
            if isinstance(factor, int) and out and isinstance(out[-1], int):
                out[-1] *= factor
            elif factor != 1:
                out.append(factor)
        return out

    def beyond(self, value: ir.Value | None, axis: int) -> float | None:
        """What the value is beyond the caller's part along an axis, which is negative; of a constant its only number."""
        if value is None:
            return None
        shape = dims(value) or ()
        return self.fact(value).beyond.get(len(shape) + axis) if -axis <= len(shape) and self.is_seq(shape[axis]) else scalar(value)

    # --- concluding ---

    def admit(self, value: ir.Value, reader: ir.Node) -> None:
        """An input of the graph: zeros are added to it."""
        shape = dims(value) or ()
        if any(d in shape[axis + 1 :] + shape[:axis] for axis, d in enumerate((self.batch, self.seq)) if d is not None):
            raise Miss(reader, f"the input {value.name} has the shape {list(shape)}")
        self.facts[value] = Fact({1: 0.0} if self.seq in shape else {})

    def conclude(self, node: ir.Node, beyond: Callable[[int], float | None] = lambda axis: None) -> None:
        """The claim holds for the node's outputs; ``beyond`` says what they are beyond along a negative axis."""
        for out in node.outputs:
            if not out.uses() and not out.is_graph_output():
                continue
            shape = self.shape(node, out)
            known = {axis: beyond(axis - len(shape)) for axis, d in enumerate(shape) if self.is_seq(d)}
            self.facts[out] = Fact({axis: what for axis, what in known.items() if what is not None})

    def visit(self, node: ir.Node) -> None:
        inputs = [v for v in node.inputs if v is not None]
        if node.op_type == "Shape" and node.domain == "":
            self.facts[node.outputs[0]] = Fact(size=True)
            return
        sizes = [self.is_size(v) for v in inputs]
        if any(sizes) and all(s or constant(v) is not None for s, v in zip(sizes, inputs, strict=True)) and not any(
                (shape := dims(v)) is None or any(self.varies(d) for d in shape) for v in node.outputs):
            self.facts.update((v, Fact(size=True)) for v in node.outputs)
            return
        rule = RULES.get((node.domain, node.op_type))
        if not inputs and rule is None and not node.attributes.keys() & {"body", "then_branch"}:
            return
        if rule is None:
            raise Miss(node, f"{node.domain or 'ONNX'} {node.op_type} may mix positions")
        first = _SHAPES.get(node.op_type, len(node.inputs)) if node.domain == "" else len(node.inputs)
        if any(self.is_size(v) for v in node.inputs[:first]):
            raise Miss(node, "it computes with a size")
        for value in node.inputs[:first]:
            if value is not None:
                self.shape(node, value)
        rule(self, node)

    def release(self, value: ir.Value) -> None:
        """An output of the graph: [batch, seq, ...], where either may be a number."""
        node = value.producer()
        shape = dims(value)
        if node is None or shape is None:
            raise Miss(node or ir.node("Identity", [value]), f"the output {value.name} is not computed")
        fits = all(d == self.batch if axis == 0 else d == self.seq and axis == 1 for axis, d in enumerate(shape) if self.varies(d))
        if not fits or self.is_size(value):
            raise Miss(node, f"the output {value.name} has the shape {list(shape)}")


# --- rules ------------------------------------------------------------------------------------------------------------------


def _elementwise(p: Prover, node: ir.Node) -> None:
    for out in node.outputs:
        shape = p.shape(node, out)
        for value in node.inputs:
            given = dims(value) or ()
            if any(d not in (1, w) and not (p.is_seq(d) and p.is_seq(w)) for d, w in zip(given[::-1], shape[::-1], strict=False)):
                raise Miss(node, f"{value and value.name} of shape {list(given)} does not align with {list(shape)}")
    dtype = node.outputs[0].dtype
    p.conclude(node, lambda axis: _held(_value(node.op_type, [p.beyond(v, axis) for v in node.inputs]), dtype))


def _held(value: float | None, dtype: ir.DataType | None) -> float | None:
    """The number in an element of the type."""
    if value is None or dtype is None:
        return None
    if dtype == ir.DataType.BOOL:
        return float(value != 0)
    return float(np.trunc(value)) if dtype.is_integer() else value


def _value(op_type: str, x: Sequence[float | None]) -> float | None:
    """What an elementwise operator makes of these numbers, None being any; None if that is not one number."""
    if op_type in ("Identity", "Cast", "CastLike"):
        return x[0]
    if op_type == "Where":
        return None if x[0] is None else x[1] if x[0] else x[2]
    if op_type in _ABSORBING and _ABSORBING[op_type] in x:
        return float(_ABSORBING[op_type])
    if op_type in ("Add", "Sum") and any(v is not None and v <= MASKED for v in x):
        return min(v for v in x if v is not None)  # a bias does not make up for a mask
    found = [v for v in x if v is not None]
    if len(found) != len(x) or op_type not in _COMPUTED:
        return None
    with np.errstate(all="ignore"):
        return float(_COMPUTED[op_type](*found))


_ABSORBING = {"Mul": 0.0, "And": 0.0, "Or": 1.0}
_COMPUTED: dict[str, Callable[..., float | bool]] = {
    "Not": lambda a: not a,
    "Neg": lambda a: -a,
    "And": lambda a, b: bool(a) and bool(b),
    "Or": lambda a, b: bool(a) or bool(b),
    "Add": lambda a, b: a + b,
    "Sub": lambda a, b: a - b,
    "Mul": lambda a, b: a * b,
    "Equal": lambda a, b: a == b,
    "Greater": lambda a, b: a > b,
    "GreaterOrEqual": lambda a, b: a >= b,
    "Less": lambda a, b: a < b,
    "LessOrEqual": lambda a, b: a <= b,
}


def _norm(p: Prover, node: ir.Node) -> None:
    shape = p.shape(node, node.inputs[0])
    along = shape[attribute(node, "axis", -1) % len(shape) :]
    if any(p.varies(d) for d in along):
        raise Miss(node, f"it is along {list(along)}")
    p.conclude(node)


def _softmax(p: Prover, node: ir.Node) -> None:
    """Along seq where what is beyond is masked: it becomes zero."""
    shape = p.shape(node, node.inputs[0])
    along = attribute(node, "axis", -1) % len(shape) - len(shape)
    what = p.beyond(node.inputs[0], along)
    if p.varies(shape[along]) and not (p.is_seq(shape[along]) and what is not None and what <= MASKED):
        raise Miss(node, f"it is along {shape[along]}")
    p.conclude(node, lambda axis: 0.0 if axis == along and node.op_type == "Softmax" else None)


def _rows(p: Prover, node: ir.Node) -> None:
    """Each row by itself, whose elements do not vary."""
    if p.varies(p.shape(node, node.inputs[0])[-1]):
        raise Miss(node, "it is along batch or seq")
    p.conclude(node)


def _product(p: Prover, node: ir.Node) -> None:
    """A matrix product; along seq only where what is beyond is zero."""
    a, b = p.shape(node, node.inputs[0]), p.shape(node, node.inputs[1])
    inner = (a[-1], b[-2] if len(b) > 1 else b[0])
    if any(p.varies(d) for d in inner):
        zero = 0.0 in (p.beyond(node.inputs[0], -1), p.beyond(node.inputs[1], -2 if len(b) > 1 else -1))
        if not zero or not all(p.is_seq(d) for d in inner):
            raise Miss(node, f"it adds along {inner[0]}")
    p.conclude(node)


def _gather(p: Prover, node: ir.Node) -> None:
    data = p.shape(node, node.inputs[0])
    axis = attribute(node, "axis", 0) % len(data)
    if p.varies(data[axis]) and ints(at(node, 1)) != [0]:
        raise Miss(node, f"positions of {data[axis]} other than 0 are selected")
    p.conclude(node)


def _gather_elements(p: Prover, node: ir.Node) -> None:
    data, indices = p.shape(node, node.inputs[0]), p.shape(node, node.inputs[1])
    axis = attribute(node, "axis", 0) % len(data)
    others = [(d, i) for n, (d, i) in enumerate(zip(data, indices, strict=True)) if n != axis]
    if p.varies(data[axis]) or any(d != i for d, i in others if p.varies(d) or p.varies(i)):
        raise Miss(node, f"elements of {list(data)} are looked up")
    p.conclude(node)


def _slice(p: Prover, node: ir.Node) -> None:
    data, out = p.shape(node, node.inputs[0]), p.shape(node, node.outputs[0])
    axes = list(range(len(data))) if at(node, 3) is None else ints(at(node, 3))
    starts, steps = ints(at(node, 1)), [1] * len(data) if at(node, 4) is None else ints(at(node, 4))
    if axes is None or starts is None or steps is None:
        raise Miss(node, "where it begins is not constant")
    ends = ints(at(node, 2))
    for i, axis in enumerate(axes):
        inside = not p.varies(data[axis]) and not p.varies(out[axis]) and ends is not None
        from_start = starts[i] == 0 and steps[i] == 1 and (out[axis] == 1 or p.is_seq(out[axis]) or out[axis] == data[axis])
        if not inside and not from_start:
            raise Miss(node, f"positions of {data[axis]} are cut from {starts[i]} in steps of {steps[i]}")
    same = {axis - len(data) for axis in range(len(data)) if p.is_seq(data[axis]) and p.is_seq(out[axis])}
    p.conclude(node, lambda axis: p.beyond(node.inputs[0], axis) if axis in same else None)


def _along_axis(p: Prover, node: ir.Node) -> None:
    """Split, Concat and others along an axis of constant size."""
    count = len(node.inputs) if node.op_type == "Concat" else 1
    shapes = [p.shape(node, v) for v in node.inputs[:count]]
    axis = attribute(node, "axis", 0) % len(shapes[0])
    if any(p.varies(shape[axis]) for shape in shapes):
        raise Miss(node, f"it is along {shapes[0][axis]}")
    found = [{axis: p.beyond(v, axis) for axis in range(-len(shapes[0]), 0)} for v in node.inputs[:count]]
    p.conclude(node, lambda axis: found[0][axis] if all(f[axis] == found[0][axis] for f in found) else None)


def _transpose(p: Prover, node: ir.Node) -> None:
    x = node.inputs[0]
    rank = len(p.shape(node, x))
    perm = list(attribute(node, "perm") or reversed(range(rank)))
    p.conclude(node, lambda axis: p.beyond(x, perm[axis] - rank))


def _layout(p: Prover, node: ir.Node) -> None:
    """Reshape, Squeeze and Unsqueeze: the elements lie as they did."""
    x, shape, out = node.inputs[0], p.shape(node, node.inputs[0]), p.shape(node, node.outputs[0])
    if p.layout(node, shape) != p.layout(node, out):
        raise Miss(node, f"it takes {list(shape)} to {list(out)}")
    before, after = ([axis - len(s) for axis, d in enumerate(s) if p.is_seq(d)] for s in (shape, out))
    origin = dict(zip(after, before, strict=True))
    p.conclude(node, lambda axis: p.beyond(x, origin[axis]))


def _repeated(p: Prover, node: ir.Node) -> None:
    """Expand and Tile: along an axis the elements stay, or come again in whole."""
    x, shape, out = node.inputs[0], p.shape(node, node.inputs[0]), p.shape(node, node.outputs[0])
    for d, w in zip(shape[::-1], out[::-1], strict=False):
        if p.varies(d) and d != w:
            raise Miss(node, f"it takes {list(shape)} to {list(out)}")
    p.conclude(node, lambda axis: p.beyond(x, axis))


def _reduce(p: Prover, node: ir.Node) -> None:
    shape, axes = p.shape(node, node.inputs[0]), reduced_axes(node)
    if axes is None:
        raise Miss(node, "its axes are not constant")
    for axis in (a for a in axes if p.varies(shape[a])):
        what = p.beyond(node.inputs[0], axis - len(shape))
        if not p.is_seq(shape[axis]) or what is None or not (what == 0 if node.op_type in _SUMS else
                                                             node.op_type == "ReduceMax" and what <= MASKED):
            raise Miss(node, f"it reduces over {shape[axis]}")
    p.conclude(node)


_SUMS = ("ReduceSum", "ReduceL1", "ReduceL2", "ReduceSumSquare")


def _running(p: Prover, node: ir.Node) -> None:
    """CumSum: forwards what is beyond comes later; backwards it must be zero."""
    shape, axis = p.shape(node, node.inputs[0]), ints(at(node, 1))
    if axis is None:
        raise Miss(node, "its axis is not constant")
    along = axis[0] % len(shape)
    backwards = bool(attribute(node, "reverse", 0))
    if p.varies(shape[along]) and backwards and p.beyond(node.inputs[0], along - len(shape)) != 0:
        raise Miss(node, f"it sums backwards along {shape[along]}")
    p.conclude(node)


def _range(p: Prover, node: ir.Node) -> None:
    """Positions."""
    if scalar(at(node, 0)) is None or scalar(at(node, 2)) is None or not p.is_seq(p.shape(node, node.outputs[0])[0]):
        raise Miss(node, "it is no range of positions")
    p.conclude(node)


def _filled(p: Prover, node: ir.Node) -> None:
    """ConstantOfShape."""
    value = node.attributes.get("value")
    filled = 0.0 if value is None else float(value.as_tensor().numpy().reshape(-1)[0])
    p.conclude(node, lambda axis: filled)


def _attention(p: Prover, node: ir.Node) -> None:
    queries, keys, mask = p.shape(node, node.inputs[0]), p.shape(node, node.inputs[1]), at(node, 3)
    if any(at(node, i) is not None for i in range(4, len(node.inputs))) or any(v.uses() for v in node.outputs[1:]):
        raise Miss(node, "attention with a past, or whose scores are read")
    what = p.beyond(mask, -1) if mask is not None else None
    hidden = mask is not None and what is not None and (what == 0 if mask.dtype == ir.DataType.BOOL else what <= MASKED)
    causal = bool(attribute(node, "is_causal", 0)) and queries[-2] == keys[-2]
    if p.varies(keys[-2]) and not causal and not hidden:
        raise Miss(node, f"its mask {mask and mask.name} is not known to hide padding")
    p.conclude(node)


def _masked(p: Prover, node: ir.Node) -> None:
    """PaddedAttention and SegmentPool, whose last input is a mask [batch, seq]."""
    mask = node.inputs[-1]
    if p.beyond(mask, -1) != 0:
        raise Miss(node, f"its mask {mask and mask.name} is not known to hide padding")
    p.conclude(node)


def _tables(p: Prover, node: ir.Node) -> None:
    """EmbeddingSum."""
    if any(p.varies(d) for table in node.inputs[1::2] for d in dims(table) or (None,)):
        raise Miss(node, "it looks up in what varies")
    p.conclude(node)


def _rotary(p: Prover, node: ir.Node) -> None:
    if at(node, 3) is not None and any(p.varies(d) for v in node.inputs[1:3] for d in dims(v) or (None,)):
        raise Miss(node, "it looks up angles in what varies")
    p.conclude(node)


def _scaled(p: Prover, node: ir.Node) -> None:
    """QuantizeLinear, DequantizeLinear and DequantizeBlocks: position by position, with constant scales."""
    if any(constant(v) is None for v in node.inputs[1:] if v is not None):
        raise Miss(node, "its scale is computed")
    p.conclude(node)


# operators of which inputs from this one on are sizes, which the shapes of the outputs tell
_SHAPES = {"Reshape": 1, "Squeeze": 1, "Unsqueeze": 1, "Expand": 1, "Tile": 1, "Slice": 1, "Range": 0, "ConstantOfShape": 0,
           "Split": 1}
RULES: dict[tuple[str, str], Rule] = {
    **{("", op): _elementwise for op in ELEMENTWISE},
    **{("", op): _norm for op in ("LayerNormalization", "RMSNormalization")},
    **{("", op): _softmax for op in ("Softmax", "LogSoftmax")},
    **{("", op): _layout for op in ("Reshape", "Squeeze", "Unsqueeze")},
    **{("", op): _repeated for op in ("Expand", "Tile")},
    **{("", op): _reduce for op in (*_SUMS, "ReduceMax", "ReduceMin", "ReduceMean", "ReduceProd")},
    **{("", op): _along_axis for op in ("Split", "Concat")},
    **{("", op): _scaled for op in ("QuantizeLinear", "DequantizeLinear")},
    ("", "MatMul"): _product,
    ("", "Gather"): _gather,
    ("", "GatherElements"): _gather_elements,
    ("", "Slice"): _slice,
    ("", "Transpose"): _transpose,
    ("", "CumSum"): _running,
    ("", "Range"): _range,
    ("", "ConstantOfShape"): _filled,
    ("", "Attention"): _attention,
    ("", "RotaryEmbedding"): _rotary,
    (DOMAIN, "Linear"): _product,
    (DOMAIN, "AddNorm"): _rows,
    (DOMAIN, "L2Normalize"): _rows,
    (DOMAIN, "QuantizeRows"): _rows,
    (DOMAIN, "DequantizeRows"): _rows,
    (DOMAIN, "DequantizeBlocks"): _scaled,
    (DOMAIN, "PaddedAttention"): _masked,
    (DOMAIN, "SegmentPool"): _masked,
    (DOMAIN, "EmbeddingSum"): _tables,
}
