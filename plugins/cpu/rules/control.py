"""Control flow that depends on data: bodies become regions of steps that run once, not at all, or again and again.

What a body computes for the steps after it, or for its next iteration, is held in buffers that both know.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from infc.compiler.errors import UnsupportedError
from infc.plugins.cpu.lower import Lowering, lower_nodes, rule
from infc.plugins.cpu.regions import MAX_NESTING, Region, regions
from infc.plugins.cpu.rules.elementwise import binary
from infc.plugins.cpu.values import Step, Tensor, product


@contextmanager
def _region(lo: Lowering) -> Iterator[None]:
    """Copies that are made in a region are none outside of it."""
    known = len(lo.made)
    lo.depth += 1
    yield
    lo.depth -= 1
    while len(lo.made) > known:
        lo.made.popitem()  # the last one


def _body(lo: Lowering, graph: ir.Graph, inputs: Sequence[Tensor]) -> list[Tensor]:
    """Appends a body's steps; what it returns."""
    for value, tensor in zip(graph.inputs, inputs, strict=True):
        lo.values[value] = tensor
    node, read = lo.node, lo.read
    lower_nodes(lo, graph)
    lo.node, lo.read = node, read
    return [lo.tensor(v) for v in graph.outputs]


def _graph(lo: Lowering, name: str) -> ir.Graph:
    assert lo.node is not None
    lo.read.add(name)
    return lo.node.attributes[name].as_graph()


def _control(lo: Lowering, op: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor], words: Sequence[int]) -> Step:
    """A control step, whose number of steps is not known yet."""
    if lo.depth == MAX_NESTING:
        raise lo.unsupported(f"control flow nested more than {MAX_NESTING} deep")
    lo.emit(op, [t.ref((1,)) for t in inputs], [t.ref((1,)) for t in outputs], words, 1)
    return lo.steps[-1]


def _count(lo: Lowering, control: Step, counts: Sequence[int]) -> None:
    """Sets the numbers of steps in a control step's parts; without any there is nothing to decide."""
    control.words = (*counts, *control.words[len(counts):])
    if not any(counts):
        lo.drop_last()


def _hold(lo: Lowering, made: Tensor, held: Tensor, start: int, found: Sequence[Region]) -> None:
    """Leaves what steps from ``start`` on made in ``held``: they write it there, or it is copied. ``found`` are their regions."""
    if made.buffer is held.buffer and made == held:
        return
    if not _write_there(lo, made, held, start, found):
        lo.copy_into(made, held)


def _write_there(lo: Lowering, made: Tensor, held: Tensor, start: int, found: Sequence[Region]) -> bool:
    """Has the steps that make a whole buffer write into another one, if that is read only before."""
    users = lo.uses.get(made.buffer, [])
    first = min(users, default=len(lo.steps))
    if not (made.is_whole and held.is_whole and made.buffer.space == "ARENA") or first < start:
        return False
    for loop in found:
        if loop.repeated(first - start):  # what stands before it in a loop comes again after it
            first = start + loop.control
    if max(lo.uses.get(held.buffer, ()), default=-1) >= first:
        return False
    for step in (lo.steps[i] for i in users):
        for refs in (step.inputs, step.outputs):
            refs[:] = [replace(r, buffer=held.buffer) if r.buffer is made.buffer else r for r in refs]
    lo.uses.setdefault(held.buffer, []).extend(users)
    lo.uses.pop(made.buffer, None)
    return True


def _hold_all(lo: Lowering, made: Sequence[Tensor], held: Sequence[Tensor], start: int) -> None:
    """As ``_hold``, all at once: what lies in a buffer that changes is moved out of it first, as is what is wanted twice."""
    changing = {t.buffer for m, t in zip(made, held, strict=True) if m != t}
    wanted: set[object] = set()
    moved = []
    for tensor, target in zip(made, held, strict=True):
        if tensor != target and (tensor.buffer in changing or tensor.buffer in wanted):
            aside = lo.like(tensor)
            lo.copy_into(tensor, aside)
            tensor = aside
        wanted.add(tensor.buffer)
        moved.append(tensor)
    found = regions([(s.op, s.words) for s in lo.steps[start:]])
    for tensor, target in zip(moved, held, strict=True):
        _hold(lo, tensor, target, start, found)


def _same(lo: Lowering, a: Tensor, b: Tensor, what: str) -> None:
    if (a.dims, a.dtype) != (b.dims, b.dtype):
        raise _data_dependent(lo, f"{what} {a.dtype}{list(a.dims)} and {b.dtype}{list(b.dims)}")
    if any(a.symbols) or any(b.symbols):
        raise lo.unsupported(f"{what} a size that varies at run time")


def _data_dependent(lo: Lowering, why: str) -> UnsupportedError:
    error = lo.unsupported(f"{why}: infc does not take data-dependent output shapes",
                           "cut the model before this operator and do the rest outside")
    error.code = "INFC-E0414"
    return error


def _one(lo: Lowering, tensor: Tensor, dtype: str) -> Tensor:
    """A scalar as an operand."""
    if lo.want(tensor, dtype).size != 1 or any(tensor.symbols):
        raise lo.unsupported(f"a tensor of {list(tensor.dims)} where one element is wanted")
    return lo.dense(tensor)


@rule("If")
def _if(lo: Lowering, node: ir.Node) -> list[Tensor]:
    branches = [_graph(lo, name) for name in ("then_branch", "else_branch")]
    condition = lo.input(0)
    if condition.constant is not None:
        return _body(lo, branches[0 if condition.constant.reshape(-1)[0] else 1], ())
    control = _control(lo, "branch", [_one(lo, condition, "bool")], [], (0, 0))
    held: list[Tensor] = []
    counts = []
    for graph in branches:
        start = len(lo.steps)
        with _region(lo):
            made = _body(lo, graph, ())
            held = held or [lo.like(t) for t in made]
            for mine, other in zip(made, held, strict=True):
                _same(lo, mine, other, "branches that return")
            _hold_all(lo, made, held, start)
        counts.append(len(lo.steps) - start)
    _count(lo, control, counts)
    return held


class _Loop:
    """A repeated region: ``carried`` holds the values that iterations hand on, ``iteration`` their number. With ``asks`` the first
    of the carried ones is the condition for another iteration."""

    def __init__(self, lo: Lowering, initial: Sequence[Tensor], trips: Tensor | None, asks: bool = False) -> None:
        self.lo = lo
        self.carried = [lo.like(t) for t in initial]
        for tensor, target in zip(initial, self.carried, strict=True):
            lo.copy_into(tensor, target)
        self.iteration = lo.new("i64", ())
        inputs = [_one(lo, trips, "i64")] if trips is not None else []
        inputs += [_one(lo, self.carried[0], "bool")] if asks else []
        self.control = _control(lo, "repeat", inputs, [self.iteration], (0, int(trips is not None), int(asks), 1))
        self.start = len(lo.steps)

    def end(self, made: Sequence[Tensor]) -> None:
        """Hands on what an iteration made."""
        for old, new in zip(self.carried, made, strict=True):
            _same(self.lo, old, new, "iterations that hand on")
        _hold_all(self.lo, made, self.carried, self.start)
        _count(self.lo, self.control, [len(self.lo.steps) - self.start])

    def collect(self, made: Tensor, count: int, axis: int = 0, backwards: bool = False) -> Tensor:
        """The results of all iterations side by side along ``axis``."""
        lo = self.lo
        axis %= len(made.dims) + 1
        rows, inner = product(made.dims[:axis]), product(made.dims[axis:])
        y = lo.new(made.dtype, (*made.dims[:axis], count, *made.dims[axis:]))
        source = lo.dense(made)
        lo.emit("place", [source.ref((rows, inner)), self._index(count, backwards).ref((1,))], [y.ref((rows, count * inner))],
                (count, inner), rows)
        return y

    def take(self, x: Tensor, axis: int, backwards: bool) -> Tensor:
        """The iteration's slice of x."""
        lo = self.lo
        data = lo.dense(x)
        rows, count, inner = product(x.dims[:axis]), x.dims[axis], product(x.dims[axis + 1 :])
        y = lo.new(x.dtype, (*x.dims[:axis], *x.dims[axis + 1 :]))
        lo.emit("gather", [data.ref((rows, count, inner)), self._index(count, backwards).ref((1,))], [y.ref((rows, 1, inner))],
                (count, inner), rows)
        return y

    def _index(self, count: int, backwards: bool) -> Tensor:
        if not backwards:
            return self.iteration
        return binary(self.lo, self.lo.constant(np.array(count - 1)), self.iteration, "sub")


def _goes_on(body: ir.Graph) -> bool:
    """Whether a Loop's body never ends it: it returns the condition it was given, or True."""
    value = body.outputs[0]
    while (node := value.producer()) is not None and node.op_type == "Identity" and node.inputs[0] is not None:
        value = node.inputs[0]
    tensor = value.const_value
    return value is body.inputs[1] or (tensor is not None and bool(tensor.numpy().all()))


@rule("Loop")
def _loop(lo: Lowering, node: ir.Node) -> list[Tensor | None]:
    body = _graph(lo, "body")
    trips, condition = lo.optional(0), lo.optional(1) or lo.constant(np.array(True))
    initial = [lo.input(i) for i in range(2, len(node.inputs))]
    known = None if trips is None or trips.constant is None else int(trips.constant.reshape(-1)[0])
    if condition.constant is not None and not condition.constant.all():
        known = 0
    used = [v.uses() or v.is_graph_output() for v in node.outputs[len(initial) :]]
    if known is not None and known <= 0:
        if any(used):
            raise lo.unsupported("a loop without iterations, whose collected outputs have no elements")
        return list(initial)
    asks = condition.constant is None or not _goes_on(body)
    if any(used) and (asks or known is None):
        raise _data_dependent(lo, "as many results as iterations, whose number the data decide")
    if trips is None and not asks:
        raise lo.unsupported("a loop that nothing ends")
    loop = _Loop(lo, [condition, *initial] if asks else initial, trips, asks)
    with _region(lo):
        made = _body(lo, body, [loop.iteration, *loop.carried] if asks else [loop.iteration, condition, *loop.carried])
        rows = zip(made[1 + len(initial) :], used, strict=True)
        collected = [loop.collect(t, known or 0) if wanted else None for t, wanted in rows]
        loop.end(made[0 if asks else 1 : 1 + len(initial)])
    return [*loop.carried[int(asks) :], *collected]


@rule("Scan")
def _scan(lo: Lowering, node: ir.Node) -> list[Tensor]:
    body = _graph(lo, "body")
    scanned = lo.attribute("num_scan_inputs")
    states = [lo.input(i) for i in range(len(node.inputs) - scanned)]
    xs = [lo.dense(lo.input(i)) for i in range(len(states), len(node.inputs))]
    results = len(node.outputs) - len(states)
    axes = [a % len(x.dims) for a, x in zip(lo.attribute("scan_input_axes") or [0] * scanned, xs, strict=True)]
    backwards = lo.attribute("scan_input_directions") or [0] * scanned
    out_axes, out_backwards = (lo.attribute(f"scan_output_{n}") or [0] * results for n in ("axes", "directions"))
    count = xs[0].dims[axes[0]]
    lo.rectangle(*xs)
    if any(x.dims[a] != count for x, a in zip(xs, axes, strict=True)) or any(x.symbols[a] for x, a in zip(xs, axes, strict=True)):
        raise lo.unsupported(f"sequences of different lengths, or of one that varies at run time: {[list(x.dims) for x in xs]}")
    loop = _Loop(lo, states, lo.constant(np.array(count)))
    with _region(lo):
        slices = [loop.take(x, a, bool(b)) for x, a, b in zip(xs, axes, backwards, strict=True)]
        made = _body(lo, body, [*loop.carried, *slices])
        rows = zip(made[len(states) :], out_axes, out_backwards, strict=True)
        collected = [loop.collect(t, count, a, bool(b)) for t, a, b in rows]
        loop.end(made[: len(states)])
    return [*loop.carried, *collected]
