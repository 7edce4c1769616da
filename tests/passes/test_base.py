from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import numpy as np
import onnx_ir as ir
import pytest

from infc.compiler.errors import CheckError, InternalError, UsageError
from infc.passes.base import Miss, NearMiss, NodePass, Pass, PassManager, PassResult, verify
from infc.passes.graph import emit, replace
from tests.passes.support import graph, normal, ops

X = "(float[batch,8] x) => (float[batch,8] y)"


class NegToAbs(NodePass):
    """Wrong on purpose."""

    name = "neg_to_abs"
    roots: ClassVar[frozenset[str]] = frozenset({"Neg", "Exp"})

    def rewrite(self, node: ir.Node) -> str | None:
        if node.op_type == "Exp":
            raise Miss(node, "an Exp is no Neg")
        fused = emit(node, "Abs", node.inputs, name=node.name or "", like=node.outputs)
        replace(node.outputs[0], fused.outputs[0])
        return fused.name


class Nothing(Pass):
    name = "nothing"

    def run(self, model: ir.Model) -> PassResult:
        return PassResult(False)


def small() -> ir.Model:
    return graph(f"{X} {{ a = Neg(x) b = Exp(a) y = Add(b, w) }}", {"w": normal(2000, 8)[:1]})


def test_records() -> None:
    model = small()
    first, second = PassManager([NegToAbs, Nothing]).run(model)
    assert (first.name, first.matches, first.nodes_before, first.nodes_after) == ("neg_to_abs", ["n_a"], 3, 3)
    assert first.near_misses == [NearMiss("n_b", "an Exp is no Neg")]
    assert 0 <= first.seconds < 1
    assert second.matches == []
    assert ops(model) == {"Abs": 1, "Exp": 1, "Add": 1}


def test_switches() -> None:
    assert [r.name for r in PassManager([NegToAbs, Nothing], disabled=["neg_to_abs"]).run(small())] == ["nothing"]
    assert [r.name for r in PassManager([NegToAbs, Nothing], only=["neg_to_abs"]).run(small())] == ["neg_to_abs"]
    assert PassManager([NegToAbs, Nothing], only=[]).run(small()) == []


@pytest.mark.parametrize("switch", ["disabled", "only"])
def test_an_unknown_name_lists_the_known(switch: str) -> None:
    with pytest.raises(UsageError, match=r"neg_to_abs, nothing") as error:
        PassManager([NegToAbs, Nothing], **{switch: ["neg_to_ab"]})  # type: ignore[arg-type]
    assert "neg_to_ab" in error.value.message


def test_dumps_are_numbered_and_light(tmp_path: Path) -> None:
    model = graph(f"{X} {{ a = Neg(x) y = MatMul(a, w) }}", {"w": normal(8, 8), "big": normal(400, 8)})
    PassManager([Nothing, NegToAbs], dump=lambda name, data: (tmp_path / name).write_bytes(data)).run(model)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["00_input.onnx", "02_neg_to_abs.onnx"]
    dumped = ir.load(tmp_path / "02_neg_to_abs.onnx")
    assert ops(dumped) == {"Abs": 1, "MatMul": 1}
    np.testing.assert_array_equal(dumped.graph.initializers["w"].const_value.numpy(), normal(8, 8))  # type: ignore[union-attr]
    assert isinstance(dumped.graph.initializers["big"].const_value, ir.ExternalTensor)
    assert isinstance(model.graph.initializers["big"].const_value, ir.TensorProtocol)


def test_the_check_sees_the_model_before_and_after_each_pass_that_did_something() -> None:
    seen = []

    def check(before: ir.Model, after: ir.Model, name: str) -> None:
        seen.append((ops(before)["Neg"], ops(after)["Neg"], name))
        raise CheckError("E0501", f"pass {name} changes the result")

    with pytest.raises(CheckError, match="neg_to_abs"):
        PassManager([Nothing, NegToAbs], check=check).run(small())
    assert seen == [(1, 0, "neg_to_abs")]


def broken(how: str) -> ir.Model:
    model = small()
    a, b, add = model.graph
    if how == "order":
        model.graph.remove(a)
        model.graph.append(a)
    elif how == "dangling":
        b.replace_input_with(0, ir.Value(name="nowhere"))
    elif how == "value name":
        b.outputs[0].name = "a"
    elif how == "node name":
        b.name = a.name
    elif how == "no node name":
        b.name = ""
    elif how == "data":
        model.graph.initializers["w"].const_value = None
    elif how == "output name":
        add.outputs[0].name = "z"
    elif how == "output type":
        add.outputs[0].dtype = ir.DataType.INT64
    elif how == "output shape":
        add.outputs[0].shape = ir.Shape(["batch", 9])
    elif how == "output rank":
        add.outputs[0].shape = ir.Shape(["batch"])
    elif how == "input":
        model.graph.inputs.append(ir.Value(name="more", shape=ir.Shape([1]), type=ir.TensorType(ir.DataType.FLOAT)))
    return model


@pytest.mark.parametrize("how", ["order", "dangling", "value name", "node name", "no node name", "data"])
def test_verify(how: str) -> None:
    verify(small().graph, "test")
    with pytest.raises(InternalError, match="pass test left an invalid graph"):
        verify(broken(how).graph, "test")


@pytest.mark.parametrize("how", ["output name", "output type", "output shape", "output rank", "input"])
def test_a_pass_keeps_inputs_and_outputs(how: str) -> None:
    class Breaks(Pass):
        name = "breaks"

        def run(self, model: ir.Model) -> PassResult:
            model.graph = broken(how).graph
            return PassResult(True)

    with pytest.raises(InternalError, match="inputs or outputs changed"):
        PassManager([Breaks]).run(small())
