"""From a specialised graph to steps over virtual memory.

Movement operators (Reshape, Transpose, Slice, Split, Expand …) become strided views; a copy appears where a kernel cannot read
the strides. ``rules`` holds one function an operator type, by family.
"""

from __future__ import annotations

import json
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from infc.compiler.artifact.layout import ARENA_ALIGN
from infc.compiler.artifact.narrow import in_16_bits
from infc.compiler.artifact.ops import NEST, OPS
from infc.compiler.errors import UnsupportedError
from infc.compiler.target import ProgramGraph
from infc.plugins.cpu.layout import memory_order, permuted
from infc.plugins.cpu.pack import Constants
from infc.plugins.cpu.regions import regions
from infc.plugins.cpu.types import CARRIERS, cast, keep, name_of, operand
from infc.plugins.cpu.values import NAMES, Buffer, Ref, Step, Tensor, dense_strides, itemsize, product

Rule = Callable[["Lowering", ir.Node], "Tensor | Sequence[Tensor | None]"]
RULES: dict[tuple[str, str], Rule] = {}
MIN_INNER = 32  # shorter innermost loops are merged with the next


def rule(*op_types: str, domain: str = "") -> Callable[[Rule], Rule]:
    """Registers the lowering of operator types."""

    def register(function: Rule) -> Rule:
        for op_type in op_types:
            RULES[domain, op_type] = function
        return function

    return register


def word(value: float) -> int:
    """The bits of a float as an attribute word."""
    bits: int = struct.unpack("<I", struct.pack("<f", value))[0]
    return bits


class Values(dict[ir.Value, Tensor]):
    """What values lie in; ``held`` counts those in each buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.held: Counter[Buffer] = Counter()

    def __setitem__(self, value: ir.Value, tensor: Tensor) -> None:
        if value in self:
            self.held[self[value].buffer] -= 1
        self.held[tensor.buffer] += 1
        super().__setitem__(value, tensor)


@dataclass
class Lowered:
    """The steps of one program in order; the first ``prologue`` of them set run-time scalars."""

    steps: list[Step]
    symbols: list[tuple[str, int]]
    prologue: int


@dataclass
class Lowering:
    """State of one lowering. ``views`` off: every movement operator copies. ``half_chains`` off: 16-bit floats are rounded
    after every operator. ``winograd`` off: no convolution by transforms. ``narrow_tables`` off: tables stay in f32."""

    graph: ProgramGraph
    symbols: list[tuple[str, int]]
    views: bool = True
    half_chains: bool = True
    winograd: bool = True
    narrow_tables: bool = True
    constants: Constants = field(default_factory=Constants)  # of this program and others
    steps: list[Step] = field(default_factory=list)
    uses: dict[Buffer, list[int]] = field(default_factory=dict)  # numbers of the steps that a buffer is an operand of
    values: Values = field(default_factory=Values)
    wide: dict[ir.Value, str] = field(default_factory=dict)  # values held in f32 and not yet rounded to this type
    depth: int = 0  # regions of control flow around the node
    node: ir.Node | None = None
    read: set[str] = field(default_factory=set)  # attributes of the node that its rule asked for
    made: dict[tuple[Any, ...], Tensor] = field(default_factory=dict)  # copies and conversions, by what they are of: made once

    # ---- Reading the graph

    def unsupported(self, message: str, hint: str = "") -> UnsupportedError:
        """An error that names the node at hand."""
        node = self.node
        if node is None:
            return UnsupportedError("E0402", message, where="the graph's outputs", hint=hint or "run this model on another target")
        module = node.metadata_props.get("infc.module") or node.metadata_props.get("namespace")
        kind = f"{node.domain}::{node.op_type}" if node.domain else node.op_type
        where = f"node '{node.name}' ({kind}){f' of {module}' if module else ''}"
        return UnsupportedError("E0402", f"{kind}: {message}", where=where, hint=hint or "run this model on another target",
                                node=node.name or "")

    def input(self, index: int) -> Tensor:
        """The node's input; UnsupportedError if it is absent."""
        found = self.optional(index)
        if found is None:
            raise self.unsupported(f"input {index} is missing")
        return found

    def optional(self, index: int) -> Tensor | None:
        assert self.node is not None
        value = self.node.inputs[index] if index < len(self.node.inputs) else None
        return None if value is None else operand(self, value)

    def held(self, value: ir.Value) -> Tensor:
        """What a value of the graph lies in; of a 16-bit float this may be f32: see ``wide``."""
        if value not in self.values and value.const_value is not None:
            self.values[value] = self.constant(value.const_value.numpy())
        return self.values[value]

    def tensor(self, value: ir.Value) -> Tensor:
        """A value of the graph in its own element type."""
        held = self.held(value)
        return cast(self, held, self.wide.get(value, held.dtype))

    def inputs(self) -> list[Tensor]:
        assert self.node is not None
        return [self.input(i) for i in range(len(self.node.inputs))]

    def const(self, index: int) -> np.ndarray | None:
        """The node's input as an array, None if absent; UnsupportedError if it is computed at run time."""
        tensor = self.optional(index)
        if tensor is None:
            return None
        if tensor.constant is None:
            raise self.unsupported(f"input {index} must be a constant")
        return tensor.constant

    def ints(self, index: int) -> list[int] | None:
        array = self.const(index)
        return None if array is None else [int(i) for i in array.reshape(-1)]

    def symbol_index(self, name: str | None) -> int:
        """Number of a run-time scalar in the program, -1 for None."""
        return -1 if name is None else [n for n, _ in self.symbols].index(name)

    def attribute(self, name: str, default: Any = None) -> Any:
        assert self.node is not None
        self.read.add(name)
        found = self.node.attributes.get(name)
        return default if found is None else found.value

    def rectangle(self, *tensors: Tensor) -> None:
        """Refuses tensors of which more than the first dimension varies at run time."""
        for tensor in tensors:
            varying = [s for s in tensor.symbols[1:] if s]
            if varying:
                raise self.unsupported(f"only the first dimension may vary at run time, not {', '.join(varying)}")

    def want(self, tensor: Tensor, *dtypes: str) -> Tensor:
        if tensor.dtype not in dtypes:
            read = [] if self.node is None else [name_of(v.dtype) for v in self.node.inputs if v is not None]
            own = next((n for n in read if n is not None and CARRIERS.get(n) == tensor.dtype), tensor.dtype)  # not widened
            raise self.unsupported(f"element type {own}, not one of {', '.join(dtypes)}")
        return tensor

    # ---- Making tensors

    def constant(self, array: np.ndarray, dtype: str | None = None, packing: str = "ROW_MAJOR") -> Tensor:
        """A tensor with known values."""
        shape = array.shape
        if array.dtype not in NAMES:
            raise self.unsupported(f"element type {array.dtype}")
        data = np.ascontiguousarray(array)
        buffer = Buffer("WEIGHTS", data.nbytes, data=data, packing=packing)
        return Tensor(buffer, dtype or NAMES[data.dtype], shape, dense_strides(shape))

    def table(self, tensor: Tensor) -> Tensor:
        """A matrix to take rows of, dense: known numbers in f32 that 16 bits hold, as most checkpoints have them, are stored so."""
        tensor = self.dense(tensor)
        key = ("table", tensor)
        if key not in self.made:
            known = tensor.constant if self.narrow_tables and tensor.dtype == "f32" else None
            narrow = None if known is None else in_16_bits(known)
            self.made[key] = tensor if narrow is None else self.constant(narrow)
        return self.made[key]

    def new(self, dtype: str, dims: Sequence[int], symbols: Sequence[str | None] = ()) -> Tensor:
        """A dense tensor in fresh memory."""
        dims = tuple(dims)
        if 0 in dims:
            raise self.unsupported(f"a tensor without elements: {list(dims)}")
        made = Tensor(Buffer("ARENA", product(dims) * itemsize(dtype)), dtype, dims, dense_strides(dims), 0, tuple(symbols))
        self.rectangle(made)
        return made

    def like(self, tensor: Tensor, dtype: str | None = None) -> Tensor:
        return self.new(dtype or tensor.dtype, tensor.dims, tensor.symbols)

    def emit(self, op: str, inputs: Sequence[Ref], outputs: Sequence[Ref], words: Sequence[int], rows: int,
             symbol: str | None = None, cols: int = 1) -> None:
        assert len(words) == len(OPS[op].words), op
        if any(0 in ref.dims for ref in (*inputs, *outputs)):
            raise self.unsupported("a tensor without elements")
        for buffer in dict.fromkeys(ref.buffer for ref in (*inputs, *outputs)):
            self.uses.setdefault(buffer, []).append(len(self.steps))
            self.constants.keep(buffer)
        node = self.node
        self.steps.append(Step(op, list(inputs), list(outputs), tuple(w & 0xFFFFFFFF for w in words), rows, symbol, cols,
                               (node.name or node.op_type) if node else "", _fused(node)))

    def drop_last(self) -> None:
        """Takes the last step back; nothing reads what it would have written."""
        step = self.steps.pop()
        for buffer in {ref.buffer for ref in (*step.inputs, *step.outputs)}:
            self.uses[buffer].pop()

    def dense(self, tensor: Tensor) -> Tensor:
        """The tensor itself if it is dense and an operand may start there, else a dense copy."""
        if tensor.is_dense and tensor.is_aligned:
            return tensor
        return self.copied(tensor)

    def copied(self, tensor: Tensor) -> Tensor:
        key = (tensor.buffer, tensor.dtype, tensor.dims, tensor.strides, tensor.offset)
        if key not in self.made:
            if tensor.constant is not None:
                self.made[key] = self.constant(tensor.constant, tensor.dtype)
            else:
                y = self.like(tensor)
                self.copy_into(tensor, y)
                self.made[key] = y
        return self.made[key]

    def copy_into(self, x: Tensor, y: Tensor) -> None:
        """y = x for two views of the same dimensions."""
        order = memory_order(y)
        x, y = permuted(x, order), permuted(y, order)
        dims, (sx, sy) = self.nest(x, [x, y])
        sources, offsets = [], []
        for tensor, strides in ((x, sx), (y, sy)):
            ref, start = self.nest_ref(tensor, dims, strides, movable=True)
            sources.append(ref)
            offsets.append(start)
        self.emit("copy", sources[:1], sources[1:], (*dims, *sx, *sy, *offsets), dims[0], x.symbol)

    # ---- Loop nests

    def nest(self, y: Tensor, operands: Sequence[Tensor]) -> tuple[list[int], list[list[int]]]:
        """Dimensions and each operand's strides for a nest over y's dimensions; operands are broadcast against them."""
        self.rectangle(y, *operands)
        levels: list[tuple[int, list[int]]] = []
        padded = [_broadcast_strides(t, y.dims) for t in operands]
        fixed = 1 if y.symbol else 0  # a leading run-time dimension stays by itself
        for axis, d in enumerate(y.dims):
            strides = [p[axis] for p in padded]
            if d == 1 and axis >= fixed:
                continue
            if len(levels) > fixed and all(p == d * s for p, s in zip(levels[-1][1], strides, strict=True)) and (
                    axis < len(y.dims) - 1 or d < MIN_INNER):
                levels[-1] = (levels[-1][0] * d, strides)
            else:
                levels.append((d, strides))
        if len(levels) == 1 and not fixed:
            levels = _divide(*levels[0])
        if len(levels) > NEST:
            raise self.unsupported(f"a loop nest of {len(levels)} dimensions, at most {NEST} are allowed")
        unit = (1, [0] * len(operands))
        levels = levels[:1] + [unit] * (NEST - max(len(levels), 1)) + levels[1:] if levels else [unit] * NEST
        return [d for d, _ in levels], [[s[i] for _, s in levels] for i in range(len(operands))]

    def nest_ref(self, tensor: Tensor, dims: Sequence[int], strides: Sequence[int], movable: bool) -> tuple[Ref, int]:
        """The operand that a nest reads with ``strides``, and the element of it where the nest starts.

        Rows lie in rows where the strides allow it, so that a split by rows is known to be local. ``movable``: the operator has a
        word for the start, so that the operand may begin before it.
        """
        reach = [(d - 1) * s for d, s in zip(dims, strides, strict=True)]
        low = sum(r for r in reach if r < 0)
        first = tensor.offset + low
        begin = first
        if movable:
            whole = tensor.buffer.space in ("INPUT", "OUTPUT")
            begin = 0 if whole else first - first % (ARENA_ALIGN // itemsize(tensor.dtype))
        start = tensor.offset - begin
        inner = sum(r for r in reach[1:] if r > 0) + start + 1
        if strides[0] > 0 and inner <= strides[0] and low == 0:
            symbol = tensor.symbol
            return Ref(tensor.buffer, tensor.dtype, (dims[0], inner), begin, strides[0], symbol), start
        if tensor.symbol and dims[0] > 1:
            raise self.unsupported("rows whose number is known at run time are read across each other")
        span = sum(r for r in reach if r > 0) + start + 1
        return Ref(tensor.buffer, tensor.dtype, (span,), begin, 1), start

    def readable(self, tensor: Tensor) -> Tensor:
        """The tensor, or a copy where `binary` and `select` cannot read it in place."""
        if not tensor.is_aligned or any(s < 0 for s in tensor.strides):
            return self.copied(tensor)
        return tensor

    def broadcast(self, tensors: Sequence[Tensor]) -> tuple[tuple[int, ...], tuple[str | None, ...]]:
        """Dimensions and symbols of the broadcast."""
        rank = max(len(t.dims) for t in tensors)
        dims, symbols = [1] * rank, [None] * rank  # type: list[int], list[str | None]
        for t in tensors:
            for axis, (d, s) in enumerate(zip(t.dims, t.symbols, strict=True), rank - len(t.dims)):
                if d != 1 or s:
                    if dims[axis] not in (1, d):
                        raise self.unsupported(f"dimensions {[list(t.dims) for t in tensors]} do not broadcast")
                    dims[axis], symbols[axis] = d, symbols[axis] or s
        return tuple(dims), tuple(symbols)

    def elementwise(self, op: str, y: Tensor, inputs: Sequence[Tensor], words: Sequence[int] = ()) -> Tensor:
        """Emits `binary` or `select` and returns y, which must be dense in some order of its dimensions."""
        order, rank = memory_order(y), len(y.dims)
        inputs = [permuted(_ranked(self.readable(t), rank), order) for t in inputs]
        dims, strides = self.nest(permuted(y, order), [*inputs, permuted(y, order)])
        refs = [self.nest_ref(t, dims, s, movable=False)[0] for t, s in zip(inputs, strides, strict=False)]
        out = Ref(y.buffer, y.dtype, (dims[0], product(dims[1:])), y.offset, product(dims[1:]), y.symbol)
        self.emit(op, refs, [out], (*words, *dims, *(s for group in strides[:-1] for s in group)), dims[0], y.symbol)
        return y

    # ---- Matrices of rows

    def matrix(self, tensor: Tensor, split: int | None = None, strided: bool = False) -> tuple[Ref, int, int]:
        """The tensor as an operand [rows, inner], rows and inner; ``split`` counts the leading dimensions that are rows.

        With ``strided`` rows may lie apart, else they are made dense.
        """
        self.rectangle(tensor)
        split = max(len(tensor.dims) - 1, 0) if split is None else split
        if tensor.symbol and product(tensor.dims[1:split]) != 1:
            raise self.unsupported("rows whose number is known at run time must be the only leading dimension")
        shape = tensor.rows(split)
        if shape is None or not tensor.is_aligned or (shape[2] != shape[1] and not strided):
            tensor = self.dense(tensor) if not tensor.is_dense or not tensor.is_aligned else tensor
            shape = tensor.rows(split)
            assert shape is not None
        rows, inner, stride = shape
        return tensor.ref((rows, inner), stride if rows > 1 else inner), rows, inner


def _ranked(tensor: Tensor, rank: int) -> Tensor:
    """With leading dimensions of 1."""
    missing = rank - len(tensor.dims)
    return tensor.view((1,) * missing + tensor.dims, (0,) * missing + tensor.strides, (None,) * missing + tensor.symbols)


def _divide(size: int, strides: list[int]) -> list[tuple[int, list[int]]]:
    """One long loop as rows of a sensible length."""
    for inner in (1024, 512, 256, 128, 64):
        if size % inner == 0 and size > inner:
            return [(size // inner, [s * inner for s in strides]), (inner, strides)]
    return [(1, [0] * len(strides)), (size, strides)]


def _broadcast_strides(tensor: Tensor, dims: Sequence[int]) -> list[int]:
    missing = len(dims) - len(tensor.dims)
    axes = zip(tensor.dims, tensor.strides, tensor.symbols, strict=True)
    return [0] * missing + [s if d != 1 or symbol else 0 for d, s, symbol in axes]


def _fused(node: ir.Node | None) -> list[str]:
    """Names of the source's nodes that this one stands for."""
    if node is None:
        return []
    text = node.metadata_props.get("infc.fused")
    if text is None:
        return [node.name] if node.name else []
    try:
        names = json.loads(text)
    except ValueError:
        names = text.split(",")
    return [str(n) for n in names]


def symbols_of(graph: ProgramGraph) -> list[tuple[str, int]]:
    """Run-time scalars of a program: those of the profile in its order, then the others."""
    sizes = graph.profile.as_dict()
    return [*sizes.items(), *((n, b) for n, b in graph.bounds.items() if n not in sizes)]


def lower(graph: ProgramGraph, views: bool = True, half_chains: bool = True, winograd: bool = True,
          narrow_tables: bool = True, constants: Constants | None = None) -> Lowered:
    """Steps of a graph, which share ``constants`` with others. Raises UnsupportedError E0401 for an operator and E0402 for a use of
    one that this target lacks."""
    lo = Lowering(graph, symbols_of(graph), views, half_chains, winograd, narrow_tables, constants or Constants())
    model = graph.model.graph
    for index, value in enumerate(model.inputs):
        if value in model.initializers.values():
            continue
        lo.values[value] = _input(graph, value, index)
    lower_nodes(lo, model)
    _bind_outputs(lo, model)
    return Lowered(lo.steps, lo.symbols, _hoist_prologue(lo))


def lower_nodes(lo: Lowering, nodes: Iterable[ir.Node]) -> None:
    """Appends the steps of nodes in order. Raises as ``lower`` does."""
    for node in nodes:
        lo.node, lo.read = node, set()
        found = RULES.get((node.domain if node.domain != "ai.onnx" else "", node.op_type))
        if found is None:
            raise _no_rule(lo, node)
        results = found(lo, node)
        _reject_unread(lo, node)
        outputs = [results] if isinstance(results, Tensor) else results
        for value, tensor in zip(node.outputs, outputs, strict=False):
            if tensor is not None:
                keep(lo, value, tensor)
        for value in node.outputs:
            if value not in lo.values and (value.uses() or value.is_graph_output()):
                raise lo.unsupported(f"output '{value.name}' is not computed by this target")


def _reject_unread(lo: Lowering, node: ir.Node) -> None:
    """An attribute that the rule does not know may change the result."""
    unread = sorted(set(node.attributes) - lo.read - {"stash_type", "training_mode", "qk_matmul_output_mode"})
    if unread:
        raise lo.unsupported(f"attribute '{unread[0]}' is not known to this target")


def _no_rule(lo: Lowering, node: ir.Node) -> UnsupportedError:
    error = lo.unsupported("the cpu target has no such operator", "see docs/cpu.md for how to add one")
    error.code = "INFC-E0401"
    return error


def _input(graph: ProgramGraph, value: ir.Value, index: int) -> Tensor:
    if value.shape is None or value.dtype is None:
        raise UnsupportedError("E0403", "an input without shape or element type", where=f"input '{value.name}'",
                               hint="export the model with typed inputs")
    dims, symbols = [], []  # type: list[int], list[str | None]
    for d in value.shape:
        name = None if isinstance(d, int) else str(d.value)
        if name is not None and name not in graph.bounds:
            raise UnsupportedError("E0403", f"dimension '{name}' has no bound", where=f"input '{value.name}'",
                                   hint="give it a size with --profile")
        dims.append(d if isinstance(d, int) else graph.bounds[str(name)])
        symbols.append(name)
    dtype = name_of(value.dtype)
    if dtype is None:
        raise UnsupportedError("E0403", f"element type {value.dtype}", where=f"input '{value.name}'",
                               hint="convert the model to float32")
    buffer = Buffer("INPUT", product(dims) * itemsize(dtype), index)
    return Tensor(buffer, dtype, tuple(dims), dense_strides(dims), 0, tuple(symbols))


def _bind_outputs(lo: Lowering, model: ir.Graph) -> None:
    """Has graph outputs computed where the caller wants them."""
    types: dict[Buffer, set[tuple[str, bool]]] = {}
    for ref in (ref for step in lo.steps for ref in step.refs):
        types.setdefault(ref.buffer, set()).add((ref.dtype, ref.offset == 0))
    lo.node = None
    for index, value in enumerate(model.outputs):
        tensor = lo.tensor(value)
        if 0 in tensor.dims:
            continue
        if tensor.buffer.space == "ARENA" and tensor.is_whole and types.get(tensor.buffer) == {(tensor.dtype, True)}:
            tensor.buffer.space, tensor.buffer.index = "OUTPUT", index
            continue
        buffer = Buffer("OUTPUT", tensor.size * itemsize(tensor.dtype), index)
        y = Tensor(buffer, tensor.dtype, tensor.dims, dense_strides(tensor.dims), 0, tensor.symbols)
        lo.copy_into(tensor, y)
        lo.steps[-1].name = f"output {value.name}"


def _hoist_prologue(lo: Lowering) -> int:
    """Moves the steps that set run-time scalars, and what they need, to the front; returns how many there are."""
    steps = lo.steps
    needed = {id(s) for s in steps if s.op == "pack_tokens"}
    wanted = {ref.buffer for s in steps if id(s) in needed for ref in s.inputs}
    for step in reversed(steps):
        if any(ref.buffer in wanted for ref in step.outputs):
            needed.add(id(step))
            wanted |= {ref.buffer for ref in step.inputs}
    for region in regions([(s.op, s.words) for s in steps]):
        if any(id(s) in needed for s in steps[region.control : region.end]):
            raise lo.unsupported("sequence lengths that control flow decides")
    steps.sort(key=lambda s: id(s) not in needed)
    return len(needed)
