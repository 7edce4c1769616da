"""Weights in files beside a model."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest

from infc.compiler import onnx_file, onnx_reader
from infc.compiler.errors import UsageError

WEIGHTS = np.arange(12, dtype=np.float32).reshape(3, 4)


def _external(**places: str) -> onnx.TensorProto:
    tensor = onnx.TensorProto(name="w", data_type=onnx.TensorProto.FLOAT, dims=WEIGHTS.shape,
                              data_location=onnx.TensorProto.EXTERNAL)
    for key, value in places.items():
        tensor.external_data.add(key=key, value=value)
    return tensor


def _save(path: Path, tensor: onnx.TensorProto, constant: bool = False) -> Path:
    model = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["": 18]>
    m (float[3, 4] x) => (float[3, 4] y) { y = Add (x, w) }""")
    if constant:
        model.graph.node.insert(0, onnx.helper.make_node("Constant", [], ["w"], value=tensor))
    else:
        model.graph.initializer.append(tensor)
    path.write_bytes(model.SerializeToString())
    return path


@pytest.mark.parametrize("constant", [True, False])
def test_a_file_of_weights_may_have_several_names(constant: bool, tmp_path: Path) -> None:
    (tmp_path / "cache").write_bytes(WEIGHTS.tobytes())
    (tmp_path / "model").mkdir()
    os.link(tmp_path / "cache", tmp_path / "model" / "w.bin")
    path = _save(tmp_path / "model" / "m.onnx", _external(location="w.bin"), constant)
    model, interface = onnx_file.load(path)
    x = np.ones((3, 4), np.float32)
    np.testing.assert_array_equal(onnx_file.reference(path, model).run({"x": x})["y"], x + WEIGHTS)
    held = model.graph.node(0).attributes["value"].as_tensor() if constant else model.graph.initializers["w"].const_value
    assert held is not None
    np.testing.assert_array_equal(held.numpy(), WEIGHTS)
    assert [t.name for t in interface.inputs] == ["x"]


@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize("places", [{"offset": "-4"}, {"length": "abc"}, {"offset": ""}, {"length": "9" * 5000},
                                    {"offset": "9223372036854775808"}, {"length": "16"}])
def test_places_that_are_none_are_told(places: dict[str, str], constant: bool, tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(WEIGHTS.tobytes())
    with pytest.raises(UsageError, match=r"weights of 'w'") as caught:
        onnx_reader.read(_save(tmp_path / "m.onnx", _external(location="w.bin", **places), constant))
    assert caught.value.code == "INFC-E0113"
    assert len(caught.value.message) < 200
    assert "lambda" not in caught.value.message


@pytest.mark.parametrize(("body", "said"), [
    ("y = MatMul (x, x)", "Incompatible dimensions"), ("y = Concat <axis = 5> (x, x)", "axis")])
def test_a_graph_that_inference_finds_wrong_says_so(body: str, said: str, tmp_path: Path,
                                                    capfd: pytest.CaptureFixture[str]) -> None:
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": 18]> m (float[3, 4] x) => (float y) {{ {body} }}')
    model.graph.output[0].type.tensor_type.ClearField("shape")
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(UsageError, match=said) as caught:
        onnx_file.load(tmp_path / "m.onnx")
    assert caught.value.code == "INFC-E0112"
    assert "make_dynamic_shape_fixed" not in caught.value.hint
    assert capfd.readouterr().err == ""


def test_only_the_shape_of_an_input_can_be_set(tmp_path: Path) -> None:
    model = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["": 18]>
    m (float[3, 4] x, int64[n] axes) => (float y) { y = ReduceSum <keepdims = 0> (x, axes) }""")
    model.graph.output[0].type.tensor_type.ClearField("shape")
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(UsageError, match="dimensions of output 'y' is not known") as caught:
        onnx_file.load(tmp_path / "m.onnx")
    assert caught.value.hint == "export the model with shapes"
    model.graph.input[0].type.tensor_type.ClearField("shape")
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(UsageError, match="dimensions of input 'x' is not known") as caught:
        onnx_file.load(tmp_path / "m.onnx")
    assert "--input_name 'x'" in caught.value.hint
