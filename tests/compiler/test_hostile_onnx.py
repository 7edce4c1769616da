"""ONNX files that no exporter writes: each is refused by a clear error, or built if it is a model after all."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import infc
from infc.compiler import export, onnx_file, source
from infc.compiler.errors import InfcError
from infc.compiler.lowering import optimise
from infc.compiler.options import BuildOptions
from tests import bounded

BRANCHES = """<ir_version: 9, opset_import: ["": 18]>
g (float[4] x, bool c) => (float[4] z)
{
  z = If (c) <then_branch = yes () => (float[4] y) { y = Neg (x) }, else_branch = no () => (float[4] y) { y = Abs (x) }>
}"""
PLAIN = """<ir_version: 9, opset_import: ["": 18]>
g (float[2, n] x) => (float[2, m] z) <int64[1] axes = {1}, float one = {1.0}>
{
  y = Add (x, one)
  z = Softmax <axis = 1> (y)
}"""


def saved(folder: Path, text: str, change: Callable[[onnx.ModelProto], object] = lambda model: None) -> Path:
    model = onnx.parser.parse_model(text)
    change(model)
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    return folder / "model.onnx"


def test_branches_that_name_their_values_alike(tmp_path: Path) -> None:
    infc.build(saved(tmp_path, BRANCHES), tmp_path / "o.infc", tune=False, isa=["scalar"])
    engine = infc.Engine(str(tmp_path / "o.infc"))
    x = np.float32([1, -2, 3, -4])
    for condition, wanted in ((True, -x), (False, abs(x))):
        np.testing.assert_array_equal(engine.run({"x": x, "c": np.array(condition)})["z"], wanted)


def softmax(model: onnx.ModelProto) -> onnx.NodeProto:
    return model.graph.node[1]


def _retype(model: onnx.ModelProto) -> None:
    softmax(model).attribute[0].CopyFrom(helper.make_attribute("axis", "one"))


def _undefine(model: onnx.ModelProto) -> None:
    model.graph.initializer[1].data_type = TensorProto.UNDEFINED


def _twin(model: onnx.ModelProto) -> None:
    model.graph.node.append(model.graph.node[0])


def _circle(model: onnx.ModelProto) -> None:
    model.graph.node[0].input[1] = "z"


def _opset(model: onnx.ModelProto) -> None:
    model.opset_import[0].version = 1 << 40


def _beyond_numbers(model: onnx.ModelProto) -> None:
    model.opset_import[0].version = (1 << 63) - 1


def _large(model: onnx.ModelProto) -> None:
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1 << 40


def _overflow(model: onnx.ModelProto) -> None:
    for dim in model.graph.input[0].type.tensor_type.shape.dim:
        dim.dim_value = 1 << 62


def _lying_weights(model: onnx.ModelProto) -> None:
    model.graph.initializer[1].dims.extend((1 << 40, 1 << 40))


def _endless_nothing(model: onnx.ModelProto) -> None:
    model.graph.input.append(helper.make_tensor_value_info("nothing", TensorProto.INT8, (0, (1 << 63) - 1)))


def _undefined_constant(model: onnx.ModelProto) -> None:
    constant = TensorProto(name="k", data_type=TensorProto.UNDEFINED, dims=(1,))
    model.graph.node.append(helper.make_node("Constant", [], ["k"], value=constant))


def _constant_of_no_type(model: onnx.ModelProto) -> None:
    _undefined_constant(model)
    model.graph.node[-1].attribute[0].t.data_type = 1 << 30


def _older_than_its_operator(model: onnx.ModelProto) -> None:
    model.graph.node.append(helper.make_node("Attention", ["x", "x", "x"], ["a"], q_num_heads=1, kv_num_heads=1))


def _fewer_parts_than_outputs(model: onnx.ModelProto) -> None:
    model.graph.node.append(helper.make_node("Split", ["x"], ["p", "q"], num_outputs=1))


def _far_axis(model: onnx.ModelProto) -> None:
    softmax(model).attribute[0].i = 1 << 40  # of which ONNX Runtime reads 0


def _far_step(model: onnx.ModelProto) -> None:
    pool = helper.make_node("MaxPool", ["x4"], ["pooled"], kernel_shape=(1, 1), strides=(1 << 31, 1))
    model.graph.input.append(helper.make_tensor_value_info("x4", TensorProto.FLOAT, (1, 1, 2, 2)))
    model.graph.node.append(pool)


def _half_true(model: onnx.ModelProto) -> None:
    model.graph.node.append(helper.make_node("ReduceSum", ["x"], ["total"], keepdims=255))  # is it 1, or is it not 0?


def _two_types(model: onnx.ModelProto) -> None:
    kind = helper.make_optional_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, (4,)))
    model.graph.input.append(helper.make_value_info("maybe", kind))
    model.graph.output.append(helper.make_tensor_value_info("maybe", TensorProto.BOOL, ()))


def _other_type(model: onnx.ModelProto) -> None:
    model.graph.output.append(helper.make_tensor_value_info("one", TensorProto.BOOL, ()))


@pytest.mark.parametrize(("change", "code"), [
    (_retype, "E0112"), (_undefine, "E0112"), (_twin, "E0112"), (_circle, "E0112"), (_opset, "E0119"), (_beyond_numbers, "E01"),
    (_large, "E0209"),
    (_overflow, "E0209"), (_lying_weights, "E0112"), (_other_type, "E01"), (_endless_nothing, "E0209"),
    (_undefined_constant, "E0112"), (_constant_of_no_type, "E0112"), (_older_than_its_operator, "E0112"),
    (_fewer_parts_than_outputs, "E0112"), (_far_axis, "E0112"), (_far_step, "E0112"), (_half_true, "E0112"), (_two_types, "E0112"),
])
def test_refused(change: Callable[[onnx.ModelProto], None], code: str, tmp_path: Path) -> None:
    result = bounded.run("build", saved(tmp_path, PLAIN, change), "-o", tmp_path / "o.infc", "--no-tune", "--isa", "scalar",
                         *(() if change is _overflow else ("--profile", "n=3")))
    assert (result.exit_code, result.code[:5 + len(code)]) == (2, f"INFC-{code}"), result
    assert result.grown < bounded.MEMORY


@pytest.mark.parametrize("old", [b"Softmax", b"one"])
def test_names_that_are_not_utf8(old: bytes, tmp_path: Path) -> None:
    path = saved(tmp_path, PLAIN)
    path.write_bytes(path.read_bytes().replace(old, b"\xff" * len(old)))
    with pytest.raises(InfcError, match="UTF-8") as caught:
        onnx_file.load(path)
    assert caught.value.code == "INFC-E0112"


@pytest.mark.parametrize("name", ["", "n)", "n n", "-1", "9**9**9**9", "9" * 5000, "n^n^n", "1/0", "x" * 5000, "2*n", "n"])
def test_formulas_of_dimensions(name: str, tmp_path: Path) -> None:
    """What a file says of the sizes of what nodes make is no more than a hint."""
    def call(model: onnx.ModelProto) -> None:
        model.graph.output[0].type.tensor_type.shape.dim[1].dim_param = name
        model.graph.value_info.append(helper.make_tensor_value_info("y", TensorProto.FLOAT, (2, name)))

    result = bounded.run("build", saved(tmp_path, PLAIN, call), "-o", tmp_path / "o.infc", "--no-tune", "--isa", "scalar",
                         "--profile", "n=3")
    assert result.exit_code == 0, result


@pytest.mark.parametrize("shape", [(2, 7), (5, 4), (8,), (1 << 40, 1 << 40)])
def test_sizes_within_are_inferred(shape: tuple[int, ...], tmp_path: Path) -> None:
    """Those that the file states may be wrong; ONNX Runtime does not mind either."""
    def state(model: onnx.ModelProto) -> None:
        model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 4
        model.graph.value_info.append(helper.make_tensor_value_info("y", TensorProto.FLOAT, shape))

    exported = export.export(source.resolve(saved(tmp_path, PLAIN, state)))
    y = exported.model.graph.node(0).outputs[0]
    optimise(exported, BuildOptions(only=()))
    assert y.shape == (2, 4)


def test_a_hundred_thousand_nodes_of_one_name(tmp_path: Path) -> None:
    nodes = [helper.make_node("Neg", ["x"], [f"y{i}"], name="same") for i in range(100_000)]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1,))],
                              [helper.make_tensor_value_info("y0", TensorProto.FLOAT, (1,))])
    onnx.save(helper.make_model(graph), tmp_path / "model.onnx")
    start = time.process_time()
    model, _ = onnx_file.load(tmp_path / "model.onnx")
    assert time.process_time() - start < bounded.SECONDS
    assert len({n.name for n in model.graph}) == len(nodes)


def test_an_output_that_the_model_does_not_give(tmp_path: Path) -> None:
    text = """<ir_version: 11, opset_import: ["": 23]> g (float[1,1,2,4] x) => (float[1,1,2,4] y, float[1,1,2,2] p)
    { y, k, v, p = Attention <qk_matmul_output_mode = 9223372036854775807> (x, x, x) }"""
    result = bounded.run("build", saved(tmp_path, text), "-o", tmp_path / "o.infc", "--no-tune", "--isa", "scalar")
    assert (result.exit_code, result.code[:7]) == (2, "INFC-E0"), result
