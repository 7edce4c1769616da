"""Failing graphs cut down to the smallest part that fails alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from onnx_ir.passes import common

from infc.compiler import onnx_file, reduce, target
from infc.compiler.errors import InfcError, UnsupportedError, UsageError
from infc.compiler.export import Exported
from infc.compiler.options import BuildOptions
from tests.compiler.fake_gpu import NAME, FakeGpu

STEPS = 15
UNKNOWN = "ai.onnx.ml::Normalizer"


def chain(planted: dict[int, str], dims: tuple[Any, ...] = (4, 4)) -> ir.Model:
    """Steps of Add and Tanh over ``dims``; after step i the operator ``planted[i]``, whose output is added."""
    nodes, last = [], "x"
    for i in range(STEPS):
        nodes += [helper.make_node("Add", [last, "w"], [f"a{i}"], name=f"add{i}"),
                  helper.make_node("Tanh", [f"a{i}"], [f"t{i}"], name=f"tanh{i}")]
        last = f"t{i}"
        if i in planted:
            domain, _, op_type = planted[i].rpartition("::")
            nodes += [helper.make_node(op_type, [last], [f"p{i}"], name=f"planted{i}", domain=domain),
                      helper.make_node("Add", [last, f"p{i}"], [f"s{i}"], name=f"sum{i}")]
            last = f"s{i}"
    nodes.append(helper.make_node("Neg", [last], ["y"], name="last"))
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, dims) for name in "xy")
    weight = numpy_helper.from_array(np.random.default_rng(0).standard_normal(4).astype(np.float32), "w")
    known = [helper.make_tensor_value_info(f"p{i}", TensorProto.FLOAT, dims) for i in planted]  # ONNX does not infer all of them
    return ir.from_proto(helper.make_model(helper.make_graph(nodes, "g", [x], [y], [weight], value_info=known),
                                           opset_imports=[helper.make_opsetid("", 23), helper.make_opsetid("ai.onnx.ml", 5)],
                                           ir_version=10))


def exported(model: ir.Model) -> Exported:
    return Exported(model, onnx_file.interface(model, Path("m")), lambda inputs: {}, "")


def cut(model: ir.Model, seconds: float = 60, **options: Any) -> reduce.Reduced:
    return reduce.reduce(exported(model), BuildOptions.of({"tune": False, **options}), seconds)


@pytest.mark.parametrize("at", [0, 7, STEPS - 1])
def test_an_operator_that_the_cpu_does_not_know(at: int) -> None:
    found = cut(chain({at: UNKNOWN}, (4, 4)))
    assert [n.name for n in found.model.graph] == [f"planted{at}"]
    assert (found.error.code, found.complete) == ("INFC-E0401", True)
    assert [(v.name, v.dtype, tuple(v.shape or ())) for v in found.model.graph.inputs] == [(f"t{at}", ir.DataType.FLOAT, (4, 4))]
    assert not found.model.graph.initializers


def test_the_part_stands_alone(tmp_path: Path) -> None:
    """Saved and loaded again it is a valid model that fails in the same way."""
    found = cut(chain({3: UNKNOWN}))
    ir.save(found.model, tmp_path / "small.onnx")
    onnx.checker.check_model(tmp_path / "small.onnx", full_check=True)
    model, interface = onnx_file.load(tmp_path / "small.onnx")
    error = reduce.attempt(BuildOptions())(model)
    assert error
    assert reduce.same(error, found.error)
    assert interface.symbols == ()


def test_sizes_become_those_of_a_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    plugin, find = FakeGpu(refuse="Elu"), target.find
    monkeypatch.setattr(target, "find", lambda name: plugin if name == NAME else find(name))
    found = cut(chain({5: "Elu"}, ("batch", 4)), target=NAME, profiles=["batch=3", "batch=7"])
    assert [n.name for n in found.model.graph] == ["planted5"]
    assert [tuple(v.shape or ()) for v in (*found.model.graph.inputs, *found.model.graph.outputs)] == [(3, 4), (3, 4)]
    assert found.error.message == "the parser refuses Elu 'planted5': no such operator"


@settings(max_examples=15, deadline=None)
@given(st.sets(st.integers(0, STEPS - 1), min_size=1, max_size=3), st.integers(2, 4))
def test_what_needs_several_nodes_keeps_them(at: set[int], least: int) -> None:
    """A failure that takes ``least`` Tanh, wherever they are: as many are left, and nothing else."""
    model = chain(dict.fromkeys(at, "Abs"))

    def fails(part: ir.Model) -> InfcError | None:
        count = sum(n.op_type == "Tanh" for n in part.graph)
        return UnsupportedError("E0741", f"too much: {count} of 'x'") if count >= least else None

    search = reduce._Search(model, UnsupportedError("E0741", "too much: 9 of 'y'"), fails, float("inf"))
    search.shrink(list(search.best))
    assert sorted(model.graph[i].op_type for i in search.best) == ["Tanh"] * least


def test_parts_are_valid_whatever_is_chosen() -> None:
    model = chain({2: "Abs"})
    common.ShapeInferencePass()(model)
    rng = np.random.default_rng(0)
    for _ in range(20):
        chosen = sorted(rng.choice(model.graph.num_nodes(), 7, replace=False))
        onnx.checker.check_model(ir.to_proto(reduce.part(model, [int(i) for i in chosen])), full_check=True)


def test_time_is_bounded() -> None:
    found = cut(chain({3: UNKNOWN, 9: UNKNOWN}), seconds=1e-9)
    assert not found.complete
    assert found.model.graph.num_nodes() > 3


def test_a_model_that_compiles() -> None:
    with pytest.raises(UsageError) as caught:
        cut(chain({}))
    assert caught.value.code == "INFC-E0771"


def test_a_failure_of_dimensions_that_vary(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(options: BuildOptions) -> Any:
        return lambda model: UnsupportedError("E0401", "varies") if any(
            isinstance(d, ir.SymbolicDim) for v in model.graph.inputs for d in v.shape) else None

    monkeypatch.setattr(reduce, "attempt", fails)
    with pytest.raises(UnsupportedError) as caught:
        cut(chain({}, ("batch", 4)), profiles="batch=2")
    assert caught.value.code == "INFC-E0772"
    assert "varies" in caught.value.where


@pytest.mark.parametrize(("a", "b", "alike"), [
    ("Det: no such operator", "Det: no such operator", True), ("Det: no such operator", "Elu: no such operator", False),
    ("the parser of X refuses 2 nodes\n  - Det 'a' in m: unknown\n  - Elu 'b': unknown 3",
     "the parser of X refuses Elu 'c': unknown 4", True),
    ("the builder of X refuses the graph: none for {ForeignNode[a...b]}", "the builder of X refuses the graph: none for {c}", True),
    ("the builder of X refuses the graph: none for {a}", "the builder of X refuses the graph: no memory", False)])
def test_errors_are_alike_by_their_cause(a: str, b: str, alike: bool) -> None:
    first, second = UnsupportedError("E0740", a), UnsupportedError("E0740", b)
    assert reduce.same(first, second) is alike
    assert not reduce.same(first, UnsupportedError("E0741", a))
