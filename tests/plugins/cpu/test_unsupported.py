"""What the target lacks is said by name."""

from __future__ import annotations

import onnx
import onnx.parser
import pytest

from infc.compiler.errors import UnsupportedError
from tests.plugins.cpu.harness import compile_model


def test_unsupported_names_the_node() -> None:
    node = onnx.helper.make_node("Normalizer", ["x"], ["y"], name="the_node", domain="ai.onnx.ml")
    graph = onnx.helper.make_graph([node], "g", [onnx.helper.make_tensor_value_info("x", 1, [2, 2])],
                                   [onnx.helper.make_tensor_value_info("y", 1, [2, 2])])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("ai.onnx.ml", 5)])
    with pytest.raises(UnsupportedError) as caught:
        compile_model(model)
    assert caught.value.code == "INFC-E0401"
    assert "the_node" in caught.value.where


def test_an_element_type_is_named_as_the_graph_has_it() -> None:
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]> g (uint8[1, 2, 5, 6] x) => (uint8[1, 2, 10, 12] y)
    <float[4] scales = {1, 1, 2, 2}> { y = Resize<mode="linear">(x, , scales) }""")
    with pytest.raises(UnsupportedError, match="element type u8, not one of f32"):
        compile_model(model)
