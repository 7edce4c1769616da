"""Graphs of many nodes: what a build takes grows with their number, not with its square; what is too much is refused."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from infc.compiler.driver import build
from infc.compiler.errors import UnsupportedError

FLOAT = TensorProto.FLOAT
GROWTH = 8  # of the time, at most, where nodes become four times as many


def _value(name: str, shape: list[int], kind: int = FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def _graph(nodes: list[onnx.NodeProto], outputs: list[onnx.ValueInfoProto], constants: dict[str, np.ndarray] | None = None,
           inputs: list[onnx.ValueInfoProto] | None = None) -> onnx.ModelProto:
    data = [numpy_helper.from_array(array, name) for name, array in (constants or {}).items()]
    graph = helper.make_graph(nodes, "g", inputs or [_value("x", [2, 8])], outputs, data)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)


def chain(count: int) -> onnx.ModelProto:
    nodes = [helper.make_node(("Relu", "Tanh", "Neg", "Abs")[i % 4], [f"v{i - 1}" if i else "x"], [f"v{i}"]) for i in range(count)]
    return _graph(nodes, [_value(f"v{count - 1}", [2, 8])])


def fan(count: int) -> onnx.ModelProto:
    """Half of the nodes read x, the others add up what they make, in pairs."""
    half = count // 2
    constants = {f"c{i}": np.array(i * 1e-6, np.float32) for i in range(half)}
    nodes = [helper.make_node("Mul", ["x", f"c{i}"], [f"m{i}"]) for i in range(half)]
    current = [f"m{i}" for i in range(half)]
    while len(current) > 1:
        pairs = list(zip(current[::2], current[1::2], strict=False))
        sums = [f"{a}_{len(current)}" for a, _ in pairs]
        nodes += [helper.make_node("Add", list(pair), [name]) for pair, name in zip(pairs, sums, strict=True)]
        current = sums + current[2 * len(pairs):]
    return _graph(nodes, [_value(current[0], [2, 8])], constants)


def skips(count: int) -> onnx.ModelProto:
    """The second half reads what the first made, last first: all of it lives at once."""
    half = count // 2
    nodes = [helper.make_node("Tanh" if i % 2 else "Neg", [f"v{i - 1}" if i else "x"], [f"v{i}"]) for i in range(half)]
    nodes += [helper.make_node("Add", [f"u{i + 1}" if i < half - 2 else f"v{half - 1}", f"v{i}"], [f"u{i}"])
              for i in reversed(range(half - 1))]
    return _graph(nodes, [_value("u0", [2, 8])])


def products(count: int) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    constants = {f"w{i}": np.eye(8, dtype=np.float32) + rng.normal(0, 1e-3, (8, 8)).astype(np.float32) for i in range(count)}
    nodes = [helper.make_node("MatMul", [f"v{i - 1}" if i else "x", f"w{i}"], [f"v{i}"]) for i in range(count)]
    return _graph(nodes, [_value(f"v{count - 1}", [2, 8])], constants)


def concat(count: int) -> onnx.ModelProto:
    """One node with half as many inputs."""
    half = count // 2
    nodes = [helper.make_node("Mul", ["x", f"c{i}"], [f"m{i}"]) for i in range(half)]
    nodes.append(helper.make_node("Concat", [f"m{i}" for i in range(half)], ["y"], axis=0))
    return _graph(nodes, [_value("y", [2 * half, 8])], {f"c{i}": np.array(i * 1e-6, np.float32) for i in range(half)})


def constants(count: int) -> onnx.ModelProto:
    """Constants that are added up at build time."""
    half = count // 2
    nodes = [helper.make_node("Constant", [], [f"k{i}"], value=numpy_helper.from_array(np.full((2, 8), 1e-6 * i, np.float32)))
             for i in range(half)]
    nodes += [helper.make_node("Add", [f"s{i - 1}" if i > 1 else "k0", f"k{i}"], [f"s{i}"]) for i in range(1, half)]
    nodes.append(helper.make_node("Add", ["x", f"s{half - 1}"], ["y"]))
    return _graph(nodes, [_value("y", [2, 8])])


def branches(count: int) -> onnx.ModelProto:
    """One If after another."""
    nodes, last = [], "x"
    for i in range(count // 3):
        bodies = {f"{part}_branch": helper.make_graph([helper.make_node(op, [last], [f"{part}{i}"])], f"{part}_{i}", [],
                                                      [_value(f"{part}{i}", [2, 8])])
                  for part, op in (("then", "Relu"), ("else", "Neg"))}
        last = f"v{i}"
        nodes.append(helper.make_node("If", ["flag"], [last], **bodies))
    inputs = [_value("x", [2, 8]), _value("flag", [], TensorProto.BOOL)]
    return _graph(nodes, [_value(last, [2, 8])], inputs=inputs)


SHAPES = [chain, fan, skips, products, concat, constants, branches]


def _seconds(model: onnx.ModelProto, folder: Path) -> float:
    """Processor time of a build, which other work on the machine changes little."""
    path = folder / "model.onnx"
    onnx.save(model, path)
    start = time.process_time()
    build(path, folder / "model.infc", tune=False)
    return time.process_time() - start


@pytest.mark.parametrize("shape", [chain, fan, skips], ids=lambda f: f.__name__)
def test_time_grows_with_the_number_of_nodes(shape: Callable[[int], onnx.ModelProto], tmp_path: Path) -> None:
    few, many = (min(_seconds(shape(count), tmp_path) for _ in range(tries)) for count, tries in ((1000, 2), (4000, 1)))
    assert many < GROWTH * few


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES, ids=lambda f: f.__name__)
def test_time_grows_with_the_number_of_many_nodes(shape: Callable[[int], onnx.ModelProto], tmp_path: Path) -> None:
    few, many = (_seconds(shape(count), tmp_path) for count in (4000, 16000))
    assert many < GROWTH * few


@pytest.mark.slow
@pytest.mark.parametrize("shape", [chain, fan], ids=lambda f: f.__name__)
def test_a_hundred_thousand_nodes(shape: Callable[[int], onnx.ModelProto], tmp_path: Path) -> None:
    assert _seconds(shape(100_000), tmp_path) < 300
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 4_000_000  # KB, of all tests that this process ran


def test_more_inputs_and_outputs_than_an_artifact_has_are_refused(tmp_path: Path) -> None:
    nodes = [helper.make_node("Add", ["x", f"c{i}"], [f"y{i}"]) for i in range(1024)]
    onnx.save(_graph(nodes, [_value(f"y{i}", [2, 8]) for i in range(1024)],
                     {f"c{i}": np.array(i, np.float32) for i in range(1024)}), tmp_path / "model.onnx")
    with pytest.raises(UnsupportedError, match="1 inputs and 1024 outputs") as error:
        build(tmp_path / "model.onnx", tmp_path / "model.infc", tune=False)
    assert error.value.code == "INFC-E0415"
    assert not (tmp_path / "model.infc").exists()


@pytest.mark.parametrize("depth", [12, 30])
def test_a_deep_nest_is_refused(depth: int, tmp_path: Path) -> None:
    """Protobuf reads graphs up to some 30 deep."""
    body = helper.make_graph([helper.make_node("Relu", ["x"], ["r0"])], "g0", [], [_value("r0", [2, 8])])
    for d in range(1, depth + 1):
        other = helper.make_graph([helper.make_node("Neg", ["x"], [f"e{d}"])], f"e{d}", [], [_value(f"e{d}", [2, 8])])
        node = helper.make_node("If", ["flag"], [f"r{d}"], then_branch=body, else_branch=other)
        body = helper.make_graph([node], f"g{d}", [], [_value(f"r{d}", [2, 8])])
    onnx.save(_graph(list(body.node), [_value(f"r{depth}", [2, 8])],
                     inputs=[_value("x", [2, 8]), _value("flag", [], TensorProto.BOOL)]), tmp_path / "model.onnx")
    with pytest.raises(UnsupportedError, match="nested more than 8 deep"):
        build(tmp_path / "model.onnx", tmp_path / "model.infc", tune=False)
