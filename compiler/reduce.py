"""Cuts a graph that a target refuses down to the smallest part that it refuses for the same reason.

Delta debugging over nodes (Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input", 2002).
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import onnx_ir as ir
from onnx_ir.passes import common

from infc.compiler import driver, lowering, onnx_file
from infc.compiler.errors import InfcError, UnsupportedError, UsageError
from infc.compiler.export import Exported
from infc.compiler.options import BuildOptions
from infc.compiler.profiles import Profile

Attempt = Callable[[ir.Model], InfcError | None]
_NAMES = re.compile(r"\{.*?\}|\[.*?\]|\(.*?\)|'.*?'|\d+")  # what a message says of one graph and not of another
_REFUSES = re.compile(r"^.* refuses (the graph: |\d+ nodes$)?")


@dataclass
class Reduced:
    """``model`` is the part that is left, ``error`` why the target refuses it; ``complete``: no single node can be left out."""

    model: ir.Model
    error: InfcError
    attempts: int
    complete: bool


def reduce(exported: Exported, options: BuildOptions, seconds: float) -> Reduced:
    """The smallest part of a graph that fails to compile as the whole does, or the smallest found in the time given.

    Sizes become those of a profile, and stay; what a part reads from the rest becomes its inputs. Raises UsageError E0771 if the
    targets compile the graph, UnsupportedError E0772 if it fails with dimensions that vary alone.
    """
    wanted = driver.choose_profiles(exported.interface, options)
    error = attempt(options)(exported.model)
    if error is None:
        raise UsageError("E0771", f"{', '.join(options.targets)} compiles this model: there is nothing to reduce",
                         hint="give the options of the build that fails")
    fails = attempt(replace(options, profiles=()))
    search = _Search(_constant(exported.model, wanted, error, fails), error, fails, time.monotonic() + seconds)
    complete = True
    try:
        search.shrink(next((near for near in search.near() if search.fails_with(near)), list(search.best)))
        search.split()
    except _TimeUp:
        complete = False
    return Reduced(part(search.model, search.best), search.error, search.attempts, complete)


def attempt(options: BuildOptions) -> Attempt:
    """A function that compiles a graph as ``infc build`` does with an .onnx file, and gives the error; None if there is none."""
    plugins, isas, ranges = driver.prepare(options)

    def compile_graph(model: ir.Model) -> InfcError | None:
        copy = model.clone()
        try:
            exported = Exported(copy, onnx_file.interface(copy, Path("the graph")), lambda inputs: {}, "")
            wanted = driver.choose_profiles(exported.interface, options)
            lowered, wanted = lowering.settle(lowering.lower(exported, options, plugins), wanted)
            driver.compile_all(lowered, wanted, options, plugins, "reduced.onnx", isas=isas, ranges=ranges)
        except InfcError as error:
            error.__traceback__ = error.__cause__ = error.__context__ = None  # they would keep every graph that was tried
            return error
        return None

    return compile_graph


def _constant(model: ir.Model, wanted: Iterable[Profile], error: InfcError, fails: Attempt) -> ir.Model:
    """The graph with the sizes of the first profile in which it fails with ``error``."""
    for program in lowering.specialise(model, list(wanted)):
        common.ShapeInferencePass()(program.model)
        found = fails(program.model)
        if found and same(found, error):
            return program.model
    raise UnsupportedError("E0772", "with constant sizes the failure is another one, or none, so no part can be cut out",
                           where=f"{error.code}: {error.message}",
                           hint="build with --only or --disable to find the pass that matters")


def same(a: InfcError, b: InfcError) -> bool:
    """Whether two errors tell of one cause: their codes agree and a line of their texts does, names and numbers aside."""
    return a.code == b.code and bool(_lines(a) & _lines(b))


def _lines(error: InfcError) -> set[str]:
    lines = (_NAMES.sub("", _REFUSES.sub("", line)).strip(" -|") for line in error.message.splitlines())
    return {line for line in lines if line}


class _TimeUp(Exception):
    """The time given has passed."""


@dataclass
class _Search:
    """``best`` holds the numbers of the nodes of the smallest failing part so far, and ``error`` its error."""

    model: ir.Model
    error: InfcError
    fails: Attempt
    deadline: float
    attempts: int = 0
    best: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.best = list(range(self.model.graph.num_nodes()))
        self._nodes = list(self.model.graph)
        number = {node: i for i, node in enumerate(self._nodes)}
        self._inputs = [{number[p] for v in reads(node) if (p := v.producer()) in number} for node in self._nodes]

    def fails_with(self, chosen: Sequence[int]) -> bool:
        if time.monotonic() > self.deadline:
            raise _TimeUp
        self.attempts += 1
        found = self.fails(part(self.model, chosen))
        if found is None or not same(found, self.error):
            return False
        if len(chosen) <= len(self.best):
            self.best, self.error = list(chosen), found
        return True

    def near(self) -> Iterator[list[int]]:
        """The nodes that the error names, then with more and more of what they read: mostly a short way to the end."""
        words = set(re.split(r"[\s',;()]+", f"{self.error.message} {self.error.where}"))
        chosen = {i for i, node in enumerate(self._nodes) if node.name in words}
        while chosen and len(chosen) < len(self._nodes) / 2:
            yield sorted(chosen)
            wider = chosen.union(*(self._inputs[i] for i in chosen))
            if wider == chosen:
                return
            chosen = wider

    def shrink(self, items: list[int]) -> None:
        """ddmin: tries halves, then quarters and what is left without them, and so on."""
        count = 2
        while len(items) > 1:
            size = -(-len(items) // count)
            chunks = [items[at : at + size] for at in range(0, len(items), size)]
            rests = [[i for i in items if i not in chunk] for chunk in chunks] if len(chunks) > 2 else []
            smaller = next((c for c in [*chunks, *rests] if self.fails_with(c)), None)
            if smaller is not None:
                items, count = smaller, 2 if smaller in chunks else max(count - 1, 2)
            elif count >= len(items):
                return
            else:
                count = min(len(items), 2 * count)

    def split(self) -> None:
        """A part that falls apart into several: one of them, if it fails alone."""
        pieces: list[set[int]] = []
        for i in self.best:
            joined = {i}.union(*(p for p in pieces if p & self._inputs[i]))
            pieces = [p for p in pieces if not p & joined] + [joined]
        if len(pieces) > 1:
            next((p for p in sorted(pieces, key=len) if self.fails_with(sorted(p))), None)


def reads(node: ir.Node) -> Iterator[ir.Value]:
    """What a node reads, its bodies included."""
    yield from (v for v in node.inputs if v is not None)
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH:
            for inner in attribute.as_graph():
                yield from reads(inner)


def part(model: ir.Model, chosen: Iterable[int]) -> ir.Model:
    """A model of some nodes, by number. What they read of other nodes becomes an input, what others read of them an output."""
    copy = model.clone()
    graph = copy.graph
    nodes = list(graph)
    numbers = set(chosen)
    kept = {node for i, node in enumerate(nodes) if i in numbers}
    gone = set(nodes) - kept
    given = [v for v in dict.fromkeys(v for node in nodes if node in kept for v in reads(node))
             if v.is_graph_input() or v.producer() in gone]
    asked = set(graph.outputs) | {v for node in nodes if node not in kept for v in reads(node)}
    outputs = [v for node in nodes if node in kept for v in node.outputs if v in asked and v.name]
    idle = [node for node in nodes if node in kept and not any(v.uses() or v in asked for v in node.outputs)]
    outputs += [node.outputs[0] for node in idle]
    fresh = [v if v.is_graph_input() else ir.Value(name=v.name, type=v.type, shape=v.shape) for v in given]
    for old, new in zip(given, fresh, strict=True):
        if old is not new:
            ir.convenience.replace_all_uses_with(old, new)
    graph.outputs[:] = outputs
    graph.remove([node for node in reversed(nodes) if node not in kept], safe=True)
    graph.inputs[:] = [v for v in fresh if v.name not in graph.initializers]
    used = {v.name for node in graph for v in reads(node)}
    for name in [n for n, v in graph.initializers.items() if n not in used and not v.is_graph_output()]:
        del graph.initializers[name]
    return copy
