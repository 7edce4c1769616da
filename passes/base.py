"""What a pass is, and the manager that runs, verifies, times, dumps and switches passes.

A pass changes an onnx_ir model in place and says what it did. It never prints, dumps or measures: the manager does.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import onnx_ir as ir

from infc.compiler.errors import InternalError, UsageError
from infc.passes.graph import Dims, dims

Check = Callable[[ir.Model, ir.Model, str], None]
_DUMPED_BYTES = 4096  # dumps keep tensors up to this size


@dataclass(frozen=True)
class NearMiss:
    """A place that a pass began to match. ``node`` is the node's name, ``reason`` why the rest did not fit."""

    node: str
    reason: str


@dataclass
class PassResult:
    """``matches`` names the node that each match left behind or removed."""

    modified: bool
    matches: list[str] = field(default_factory=list)
    near_misses: list[NearMiss] = field(default_factory=list)


@dataclass(frozen=True)
class PassRecord:
    """One run of a pass: wall ``seconds`` of the pass alone, and the graph's node counts around it."""

    name: str
    seconds: float
    matches: list[str]
    nodes_before: int
    nodes_after: int
    near_misses: list[NearMiss]


class Pass(ABC):
    """A step that rewrites ``model.graph`` in place. ``name`` is what ``--disable`` and ``--only`` take."""

    name: ClassVar[str]

    @abstractmethod
    def run(self, model: ir.Model) -> PassResult:
        """Rewrites the model."""


class Miss(Exception):
    """Raised by a NodePass that began to match; becomes a NearMiss of ``node``."""

    def __init__(self, node: ir.Node, reason: str) -> None:
        super().__init__(reason)
        self.node = node
        self.reason = reason


class NodePass(Pass):
    """A pass that tries one root node after another, in graph order."""

    roots: ClassVar[frozenset[str]]  # operator types at which a match may begin

    @abstractmethod
    def rewrite(self, node: ir.Node) -> str | None:
        """Rewrites around ``node`` and names the match; None where nothing matches. Raises Miss before it changes anything."""

    def run(self, model: ir.Model) -> PassResult:
        result = PassResult(False)
        for node in model.graph:
            if node.op_type not in self.roots:
                continue
            try:
                match = self.rewrite(node)
            except Miss as miss:
                result.near_misses.append(NearMiss(miss.node.name or "", miss.reason))
                continue
            if match is not None:
                result.matches.append(match)
        result.modified = bool(result.matches)
        return result


class PassManager:
    """Runs passes in order.

    ``disabled`` and ``only`` are names of passes; an unknown one raises UsageError. ``dump`` receives a numbered ONNX file,
    without large weights, for the input and for each pass that changed something. ``check`` compares the models before and
    after such a pass.
    """

    def __init__(
        self,
        passes: Iterable[type[Pass]],
        disabled: Iterable[str] = (),
        only: Iterable[str] | None = None,
        dump: Callable[[str, bytes], object] | None = None,
        check: Check | None = None,
    ) -> None:
        every = list(passes)
        known = list(dict.fromkeys(p.name for p in every))
        off, wanted = set(disabled), set(known if only is None else only)
        for name in sorted((off | wanted) - set(known)):
            raise UsageError("E0011", f"no pass is named '{name}'", where="--disable, --only", hint=f"one of: {', '.join(known)}")
        self._passes = [p() for p in every if p.name in wanted and p.name not in off]
        self._write = dump
        self._check = check

    def run(self, model: ir.Model) -> list[PassRecord]:
        """Runs every pass on the model, in place. Raises InternalError when a pass leaves an invalid graph."""
        signature = _signature(model.graph)
        self._dump(model, 0, "input")
        records: list[PassRecord] = []
        unproven: list[str] = []  # passes since the last look, which say that they changed nothing
        for number, step in enumerate(self._passes, 1):
            before = model.clone() if self._check else None
            nodes = model.graph.num_nodes()
            start = time.perf_counter()
            result = step.run(model)
            seconds = time.perf_counter() - start
            records.append(PassRecord(step.name, seconds, result.matches, nodes, model.graph.num_nodes(), result.near_misses))
            unproven.append(step.name)
            if result.modified:
                verify(model.graph, ",".join(unproven), signature)
                unproven = []
                self._dump(model, number, step.name)
                if self._check and before is not None:
                    self._check(before, model, step.name)
        if unproven:
            verify(model.graph, ",".join(unproven), signature)
        return records

    def _dump(self, model: ir.Model, number: int, name: str) -> None:
        if self._write is None:
            return
        light = model.clone()
        for value in light.graph.initializers.values():
            tensor = value.const_value
            if tensor is not None and tensor.nbytes > _DUMPED_BYTES:
                value.const_value = ir.ExternalTensor(
                    "omitted",
                    0,
                    tensor.nbytes,
                    tensor.dtype,
                    name=value.name or "",
                    shape=ir.Shape(tensor.shape.numpy()),
                    base_dir="",
                )
        self._write(f"{number:02d}_{name}.onnx", ir.to_proto(light).SerializeToString())


Signature = list[tuple[str | None, ir.DataType | None, Dims | None]]


def _signature(graph: ir.Graph) -> Signature:
    """Names, types and shapes of inputs and outputs. An output's symbol that no input has was made up by an exporter: unknown."""
    symbols = {d for v in graph.inputs for d in dims(v) or ()}
    made_up = [(v, tuple(d if isinstance(d, int) or d in symbols else None for d in dims(v) or ())) for v in graph.outputs]
    return [
        *((v.name, v.dtype, dims(v)) for v in graph.inputs),
        *((v.name, v.dtype, None if v.shape is None else shape) for v, shape in made_up),
    ]


def verify(graph: ir.Graph, pass_name: str, signature: Signature | None = None) -> None:
    """Raises InternalError unless the graph is in SSA order, every used value is defined, names are present and unique, and its
    inputs and outputs are as in ``signature``, where what that leaves unknown may have become known."""
    names: set[str] = set()

    def fail(what: str, where: str) -> None:
        raise InternalError(
            "E0901",
            f"pass {pass_name} left an invalid graph: {what}",
            where=where,
            hint=f"report this, and go on with --disable {pass_name}",
        )

    def define(value: ir.Value) -> None:
        if not value.name or value.name in names:
            fail(f"value name {value.name!r} is missing or used twice", value.name or "?")
        names.add(value.name or "")

    def walk(scope: ir.Graph, outer: Sequence[set[ir.Value]]) -> None:
        defined = {*scope.inputs, *scope.initializers.values()}
        for value in defined:
            define(value)
        for name, value in scope.initializers.items():
            if value.const_value is None or value.name != name:
                fail(f"initializer {name} has no data or another name", name)
        scopes = [*outer, defined]
        node_names: set[str] = set()
        for node in scope:
            if not node.name or node.name in node_names:
                fail(f"node name {node.name!r} is missing or used twice", node.name or node.op_type)
            node_names.add(node.name or "")
            for read in node.inputs:
                if read is not None and read not in defined and not any(read in s for s in outer):
                    fail(f"{node.op_type} {node.name} reads {read.name}, which is not defined before it", node.name or "")
            for attribute in node.attributes.values():
                if attribute.type == ir.AttributeType.GRAPH:
                    walk(attribute.as_graph(), scopes)
            for value in node.outputs:
                if value.name != "":  # an omitted optional output
                    define(value)
                defined.add(value)
        for value in scope.outputs:
            if not any(value in s for s in scopes):
                fail(f"output {value.name} is not defined", value.name or "")

    walk(graph, ())
    if signature is not None and not _compatible(signature, _signature(graph)):
        fail("inputs or outputs changed", f"{signature} became {_signature(graph)}")


def _compatible(before: Signature, after: Signature) -> bool:
    """Whether names agree, and types and shapes wherever they were known."""
    if len(before) != len(after):
        return False
    for (name, dtype, shape), (new_name, new_dtype, new_shape) in zip(before, after, strict=True):
        if name != new_name or dtype not in (None, new_dtype):
            return False
        if shape is not None and (
            new_shape is None
            or len(shape) != len(new_shape)
            or any(a not in (None, b) for a, b in zip(shape, new_shape, strict=True))
        ):
            return False
    return True
