"""ONNX's own test cases for every operator the target lowers, on every instruction set of this machine, with two threads."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from infc.compiler.errors import UnsupportedError
from infc.plugins.cpu.lower import RULES
from tests.plugins.cpu.harness import compile_model, native_isas, run

# Cases whose inputs this harness cannot pass: NumPy has no array for them, or an optional is a list.
SKIPPED = ("test_cast_FLOAT_to_DOUBLE", "test_cast_DOUBLE_to_FLOAT", "test_identity_opt")
FEWEST = 500


def cases() -> list[Any]:
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = collect_testcases(None)
    return [c for c in found if c.name not in SKIPPED and {(n.domain, n.op_type) for n in c.model.graph.node} <= RULES.keys()]


def freeze(model: onnx.ModelProto, arrays: list[np.ndarray]) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """The model with its integer parameters (axes, shapes, pads) as constants, and the other inputs."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    values = list(copy.graph.input)
    del copy.graph.input[:]
    feeds = {}
    for position, (value, array) in enumerate(zip(values, arrays, strict=False)):
        parameter = position > 0 and array.dtype.kind in "iu"
        if parameter or 0 in array.shape or model.graph.node[0].op_type in ("Range", "ConstantOfShape"):
            copy.graph.initializer.append(numpy_helper.from_array(array, value.name))
        else:
            copy.graph.input.append(value)
            feeds[value.name] = array
    return copy, feeds


def differences(case: Any) -> Iterator[str]:
    """What is wrong with a case; raises UnsupportedError if the target refuses it."""
    inputs, outputs = case.data_sets[0]
    model, feeds = freeze(case.model, [np.asarray(i) for i in inputs])
    artifact, _ = compile_model(model, native_isas())
    for isa in native_isas():
        got = run(artifact, feeds, 2, isa)
        for value, expected in zip(case.model.graph.output, outputs, strict=True):
            array, want = got[value.name], np.asarray(expected)
            if array.size != want.size:
                yield f"{case.name} {isa}: shape {array.shape}, not {want.shape}"
            elif not np.allclose(array, want.reshape(array.shape), rtol=case.rtol, atol=max(case.atol, 1e-6), equal_nan=True):
                yield f"{case.name} {isa}: values differ"


def test_onnx_node_cases() -> None:
    passed, wrong = 0, []
    for case in cases():
        try:
            found = list(differences(case))
        except (UnsupportedError, TypeError, ValueError) as error:
            if not isinstance(error, UnsupportedError) and "dtype" not in str(error):
                wrong.append(f"{case.name}: {error}")
            continue
        wrong += found
        passed += not found
    assert not wrong, "\n".join(wrong)
    assert passed >= FEWEST


def test_unsupported_names_the_node() -> None:
    node = onnx.helper.make_node("Det", ["x"], ["y"], name="the_node")
    graph = onnx.helper.make_graph([node], "g", [onnx.helper.make_tensor_value_info("x", 1, [2, 2])],
                                   [onnx.helper.make_tensor_value_info("y", 1, [])])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 23)])
    with pytest.raises(UnsupportedError) as caught:
        compile_model(model)
    assert caught.value.code == "INFC-E0401"
    assert "the_node" in caught.value.where
