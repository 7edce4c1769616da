"""Random graphs with control flow: vectors of three floats, branches and loops around and within each other."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import onnx
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

WIDTH, LENGTH = 3, 4
FLOAT, INT, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def _value(name: str, kind: int, shape: list[int] | None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


@dataclass
class Scope:
    """A graph in the making: ``vectors`` and ``flags`` are what nodes may read, those of the graphs around it too."""

    draw: st.DrawFn
    counter: list[int]
    vectors: list[str]
    flags: list[str]
    depth: int
    nodes: list[onnx.NodeProto] = field(default_factory=list)

    def name(self, prefix: str) -> str:
        self.counter[0] += 1
        return f"{prefix}{self.counter[0]}"

    def add(self, op: str, inputs: list[str], outputs: int = 1, **attributes: object) -> list[str]:
        names = [self.name("v") for _ in range(outputs)]
        self.nodes.append(helper.make_node(op, inputs, names, name=self.name(f"{op}_"), **attributes))
        return names

    def one(self, op: str, *inputs: str, **attributes: object) -> str:
        return self.add(op, list(inputs), **attributes)[0]

    def vector(self) -> str:
        return self.draw(st.sampled_from(self.vectors))

    def inner(self, vectors: list[str], flags: list[str]) -> Scope:
        return Scope(self.draw, self.counter, self.vectors + vectors, self.flags + flags, self.depth - 1)

    def grow(self) -> None:
        """A few statements."""
        for _ in range(self.draw(st.integers(1, 3))):
            kinds = ["arithmetic", "flag", *(["branch", "loop", "scan"] if self.depth else [])]
            getattr(self, self.draw(st.sampled_from(kinds)))()

    def arithmetic(self) -> None:
        op = self.draw(st.sampled_from(["Add", "Sub", "Mul"]))
        self.vectors.append(self.one("Tanh", self.one(op, self.vector(), self.vector())))

    def flag(self) -> None:
        total = self.one("ReduceSum", self.vector(), keepdims=0)
        self.flags.append(self.one("Greater", total, "zero"))

    def results(self, count: int) -> list[str]:
        """Values to return, by nodes of their own, as ONNX wants it."""
        return [self.one("Identity", self.vector()) for _ in range(count)]

    def graph(self, inputs: list[onnx.ValueInfoProto], outputs: list[tuple[str, int]]) -> onnx.GraphProto:
        values = [_value(n, k, [WIDTH] if k == FLOAT else []) for n, k in outputs]
        return helper.make_graph(self.nodes, self.name("g"), inputs, values)

    def branch(self) -> None:
        count = self.draw(st.integers(1, 2))
        bodies = []
        for _ in range(2):
            inner = self.inner([], [])
            inner.grow()
            bodies.append(inner.graph([], [(n, FLOAT) for n in inner.results(count)]))
        condition = self.draw(st.sampled_from(self.flags))
        self.vectors += self.add("If", [condition], count, then_branch=bodies[0], else_branch=bodies[1])

    def loop(self) -> None:
        """By a number of trips, by a condition, or by both; rows are collected where the number is known."""
        known, asks = self.draw(st.booleans()), self.draw(st.booleans())
        carried = self.draw(st.integers(1, 2))
        initial = [self.vector() for _ in range(carried)]
        number, goes_on = self.name("i"), self.name("goes")
        names = [self.name("carried") for _ in initial]
        inner = self.inner(names, [goes_on])
        inner.vectors.append(inner.one("Mul", inner.vector(), inner.one("Cast", number, to=FLOAT)))
        inner.grow()
        collected = int(known and not asks)
        made = inner.results(carried + collected)
        ends = inner.one("Identity", self.draw(st.sampled_from(inner.flags)) if asks else goes_on)
        body = inner.graph([_value(number, INT, []), _value(goes_on, BOOL, []), *(_value(n, FLOAT, [WIDTH]) for n in names)],
                           [(ends, BOOL), *((n, FLOAT) for n in made)])
        start = self.draw(st.sampled_from(self.flags)) if asks else "true"
        found = self.add("Loop", ["three" if known else "trips", start, *initial], carried + collected, body=body)
        self.vectors += found[:carried]
        self.vectors += [self.one("ReduceMean", f, "axis0", keepdims=0) for f in found[carried:]]

    def scan(self) -> None:
        names = [self.name("state"), self.name("row")]
        inner = self.inner(names, [])
        inner.grow()
        made = inner.results(2)
        body = inner.graph([_value(n, FLOAT, [WIDTH]) for n in names], [(n, FLOAT) for n in made])
        across, last, back, out_back = (self.draw(st.integers(0, 1)) for _ in range(4))
        found = self.add("Scan", [self.vector(), "turned" if across else "rows"], 2, body=body, num_scan_inputs=1,
                         scan_input_axes=[across], scan_input_directions=[back], scan_output_axes=[-last],
                         scan_output_directions=[out_back])
        self.vectors.append(found[0])
        first = self.one("Gather", found[1], "first", axis=last)  # not the mean alone: order counts
        self.vectors.append(self.one("Add", first, self.one("ReduceMean", found[1], f"axis{last}", keepdims=0)))


@st.composite
def programs(draw: st.DrawFn, depth: int = 2) -> onnx.ModelProto:
    scope = Scope(draw, [0], ["x", "y"], ["flag", "true"], depth)
    scope.grow()
    getattr(scope, draw(st.sampled_from(["branch", "loop", "scan"])))()
    outputs = scope.results(2)
    constants = {"zero": np.array(0, np.float32), "first": np.array(0), "true": np.array(True), "three": np.array(3),
                 "axis0": np.array([0]), "axis1": np.array([1])}
    inputs = [_value("x", FLOAT, [WIDTH]), _value("y", FLOAT, [WIDTH]), _value("rows", FLOAT, [LENGTH, WIDTH]),
              _value("turned", FLOAT, [WIDTH, LENGTH]), _value("flag", BOOL, []), _value("trips", INT, [])]
    graph = helper.make_graph(scope.nodes, "program", inputs, [_value(n, FLOAT, [WIDTH]) for n in outputs],
                              [numpy_helper.from_array(a, n) for n, a in constants.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)


def feeds(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Values for a program's inputs."""
    shapes = {"x": [WIDTH], "y": [WIDTH], "rows": [LENGTH, WIDTH], "turned": [WIDTH, LENGTH]}
    made: dict[str, np.ndarray] = {n: rng.normal(0, 1, s).astype(np.float32) for n, s in shapes.items()}
    return made | {"flag": np.array(bool(rng.integers(2))), "trips": np.array(rng.integers(0, 5))}
