"""What the parser and the builder refuse, said with the node and the module of the model it comes from."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from infc.compiler.errors import UnsupportedError
from infc.plugins.tensorrt.build import EngineRequest, build
from infc.plugins.tensorrt.flavour import RTX
from infc.plugins.tensorrt.messages import builder_error
from tests.plugins.tensorrt import graphs
from tests.plugins.tensorrt.graphs import node

pytest.importorskip(RTX.module, reason=f"{RTX.package} is not installed")


def refused(model: ir.Model) -> UnsupportedError:
    with pytest.raises(UnsupportedError) as caught:
        build(model, RTX, EngineRequest((89,)), lambda line: None)
    return caught.value


def test_every_node_that_the_parser_refuses() -> None:
    model = graphs.graph([node("MatMul", ["x", "w"], "p"), node("Foo", ["p"], "q", domain="other"),
                          node("Bar", ["q"], "y", domain="other")], {"w": graphs.WEIGHT})
    for each in model.graph:
        each.metadata_props["infc.module"] = f"encoder.{each.name}"
    error = refused(model)
    assert error.code == "INFC-E0740"
    assert "2 nodes" in error.message
    assert "Foo 'make_q' in encoder.make_q: creator && \"Plugin not found" in error.message
    assert "Bar 'make_y' in encoder.make_y: " in error.message
    assert error.where == "Foo 'make_q' in encoder.make_q"
    assert "the operator is not one of TensorRT-RTX's; infc debug reduce" in error.hint


def test_different_types_are_named_without_the_noise_of_a_missing_driver() -> None:
    error = refused(graphs.graph([node("MatMul", ["x", "w"], "y")], {"w": graphs.WEIGHT.astype(np.float16)}))
    assert "MatMul 'make_y': " in error.message
    assert "`A` is of type Float and `B` is of type Half" in error.message
    assert "cuda" not in error.message.lower()
    assert "/_src/" not in error.message


def test_a_shape_that_does_not_fit() -> None:
    error = refused(graphs.graph([node("Reshape", ["x", "shape"], "y")], {"shape": np.array([7, 9])}, y=(7, 9)))
    assert "reshape changes volume. Reshaping [8,64] to [7,9]" in error.message
    assert error.where == "Reshape 'make_y'"


def test_the_builders_own_refusal() -> None:
    error = refused(graphs.linear(x=("n", graphs.DEPTH), y=("n", graphs.WIDTH)))
    assert error.code == "INFC-E0741"
    assert "no optimization profile has been defined" in error.message


def test_nodes_that_the_builder_names() -> None:
    model = graphs.linear(np.float16)
    said = "Error Code 9: Could not find any implementation for node make_p. In f at /_src/x.cpp:1"
    error = builder_error(model, RTX, [said, said])
    assert error.message.count("Could not find") == 1
    assert error.where == "MatMul 'make_p'"
    assert "no reason" in builder_error(model, RTX, []).message
