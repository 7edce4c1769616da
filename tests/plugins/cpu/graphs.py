"""Graphs for tests: from text, and random ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

HEADER = '<ir_version: 10, opset_import: ["" : 23, "infc" : 1]>\n'


def parse(text: str, **constants: np.ndarray) -> onnx.ModelProto:
    """A model from ONNX's text form of a graph; ``constants`` become initializers."""
    model = onnx.parser.parse_model(HEADER + text)
    for name, array in constants.items():
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    for number, node in enumerate(model.graph.node):
        node.name = node.name or f"{node.op_type}_{number}"
    return model


class Builder:
    """Adds nodes over values of known shape."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.shapes: dict[str, tuple[int, ...]] = {}

    def constant(self, array: np.ndarray) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def weights(self, *shape: int) -> str:
        return self.constant((self.rng.standard_normal(shape) / 3).astype(np.float32))

    def add(self, op: str, inputs: list[str], shape: tuple[int, ...], **attributes: Any) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], name=f"{op}_{name}", **attributes))
        self.shapes[name] = shape
        return name


def _apply(b: Builder, kind: str, x: str, others: list[str], draw: Any) -> str:
    shape = b.shapes[x]
    if kind in ("Relu", "Tanh", "Sigmoid", "Neg", "Gelu"):
        return b.add(kind, [x], shape)
    if kind in ("Add", "Mul", "Max"):
        same = [o for o in others if b.shapes[o] == shape]
        return b.add(kind, [x, draw(st.sampled_from(same))], shape)
    if kind == "row":
        return b.add("Add", [x, b.weights(shape[-1])], shape)
    if kind == "MatMul":
        n = draw(st.sampled_from([shape[-1], 8, 40]))
        return b.add("MatMul", [x, b.weights(shape[-1], n)], (*shape[:-1], n))
    if kind == "Softmax":
        return b.add("Softmax", [x], shape, axis=draw(st.integers(0, len(shape) - 1)))
    if kind == "LayerNormalization":
        return b.add(kind, [x, b.weights(shape[-1]), b.weights(shape[-1])], shape)
    if kind == "Transpose":
        order = draw(st.permutations(range(len(shape))))
        return b.add(kind, [x], tuple(shape[i] for i in order), perm=order)
    if kind == "Reshape":
        new = (shape[0] * shape[1], shape[2]) if len(shape) == 3 else (2, shape[0] // 2, shape[1])
        return b.add(kind, [x, b.constant(np.array(new, np.int64))], new)
    if kind == "Slice":
        axis = draw(st.integers(0, len(shape) - 1))
        start, step = draw(st.sampled_from([(0, 1), (1, 1), (0, 2), (-1, -1)] if shape[axis] > 1 else [(0, 1), (-1, -1)]))
        end = shape[axis] if step > 0 else -shape[axis] - 1
        size = len(range(*slice(start, None if step < 0 else end, step).indices(shape[axis])))
        parts = [b.constant(np.array([v], np.int64)) for v in (start, end, axis, step)]
        return b.add(kind, [x, *parts], tuple(size if i == axis else d for i, d in enumerate(shape)))
    if kind == "Concat":
        axis = draw(st.integers(0, len(shape) - 1))
        return b.add(kind, [x, x], tuple(2 * d if i == axis else d for i, d in enumerate(shape)), axis=axis)
    assert kind == "ReduceMean"
    axis = draw(st.integers(0, len(shape) - 1))
    axes = b.constant(np.array([axis], np.int64))
    return b.add(kind, [x, axes], tuple(1 if i == axis else d for i, d in enumerate(shape)), keepdims=1)


KINDS = ("Relu", "Tanh", "Sigmoid", "Neg", "Gelu", "Add", "Mul", "Max", "row", "MatMul", "MatMul", "Softmax", "LayerNormalization",
         "Transpose", "Reshape", "Slice", "Concat", "ReduceMean")


class Case:
    """A graph and inputs for it."""

    def __init__(self, model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> None:
        self.model = model
        self.feeds = feeds

    def __repr__(self) -> str:
        return onnx.printer.to_text(self.model.graph)


@st.composite
def cases(draw: Any) -> Case:
    """A random graph over f32 tensors."""
    rng = np.random.default_rng(draw(st.integers(0, 1000)))
    b = Builder(rng)
    b.shapes = {"x0": (2, 6, 16), "x1": (2, 6, 16)}
    feeds = {n: rng.standard_normal(s).astype(np.float32) for n, s in b.shapes.items()}
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in b.shapes.items()]
    for _ in range(draw(st.integers(1, 12))):
        known = [v for v, s in b.shapes.items() if int(np.prod(s)) <= 4096]
        x = draw(st.sampled_from(known[-4:]))
        kinds = [k for k in KINDS if k != "Reshape" or (len(b.shapes[x]) == 3 or b.shapes[x][0] % 2 == 0)]
        _apply(b, draw(st.sampled_from(kinds)), x, known, draw)
    made = [v for v in b.shapes if v not in feeds]
    unused = set(made) - {i for n in b.nodes for i in n.input}
    outputs = [v for v in made if v in unused or draw(st.booleans())]
    results = [helper.make_tensor_value_info(v, TensorProto.FLOAT, b.shapes[v]) for v in outputs]
    graph = helper.make_graph(b.nodes, "g", inputs, results, b.constants)
    return Case(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10), feeds)
