"""The road of an .onnx source."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import NodeProto, TensorProto, helper, numpy_helper

from infc.compiler.driver import build
from infc.compiler.errors import InfcError, UsageError
from infc.compiler.export import export
from infc.compiler.onnx_file import load
from infc.compiler.source import resolve
from infc.passes import domain
from infc.runtime import Engine, Error

TABLE = np.random.default_rng(0).standard_normal((50, 4)).astype(np.float32)


def write(path: Path, dims: tuple[str | int | None, ...] = ("batch", "seq"), opset: int = 17,
          table: TensorProto | None = None) -> Path:
    """Embedding of token ids through a Cast, times the mask, summed over the sequence."""
    nodes = [helper.make_node("Cast", ["input_ids"], ["ids"], to=TensorProto.INT64),
             helper.make_node("Gather", ["table", "ids"], ["rows"]),
             helper.make_node("Cast", ["attention_mask"], ["m"], to=TensorProto.FLOAT),
             helper.make_node("Unsqueeze", ["m", "axis"], ["m3"]), helper.make_node("Mul", ["rows", "m3"], ["kept"]),
             helper.make_node("ReduceSum", ["kept", "one"], ["pooled"], keepdims=0)]
    values = [table or numpy_helper.from_array(TABLE, "table"), numpy_helper.from_array(np.array([2]), "axis"),
              numpy_helper.from_array(np.array([1]), "one")]
    inputs = [helper.make_tensor_value_info(n, TensorProto.INT32, dims) for n in ("input_ids", "attention_mask")]
    outputs = [helper.make_tensor_value_info("pooled", TensorProto.FLOAT, ("batch", 4))]
    graph = helper.make_graph(nodes, "g", inputs, outputs, values)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    path.write_bytes(model.SerializeToString())
    return path


def external(location: str) -> TensorProto:
    tensor = TensorProto(name="table", data_type=TensorProto.FLOAT, dims=TABLE.shape, data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value=location)
    tensor.external_data.add(key="length", value=str(TABLE.nbytes))
    return tensor


def save(path: Path, nodes: list[NodeProto], names: tuple[str, ...] = ("y",), shape: tuple[int, ...] = (4,),
         **options: Any) -> Path:
    """A model of ``nodes`` over x, with outputs ``names``, all of one shape."""
    x, *outputs = (helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n in ("x", *names))
    values = [numpy_helper.from_array(np.full(shape, 0.5, np.float32), "half")]
    inputs = [x, *options.pop("inputs", [])]
    domains = [helper.make_opsetid(d, v) for d, v in options.pop("domains", {"": 17}).items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, values)
    path.write_bytes(helper.make_model(graph, opset_imports=domains, **options).SerializeToString())
    return path


def run(path: Path, **options: Any) -> dict[str, np.ndarray]:
    """What the built model makes of 1, -2, 3, -4."""
    shape = load(path)[0].graph.inputs[0].shape
    x = np.resize(np.array([1, -2, 3, -4], np.float32), shape.numpy() if shape is not None else ())
    return Engine(build(path, path.with_suffix(".infc"), tune=False, **options).path).run({"x": x})


def code(path: Path) -> str:
    with pytest.raises(UsageError) as caught:
        load(path)
    assert caught.value.hint
    return caught.value.code


def test_opset_24_is_taken_as_it_is(tmp_path: Path) -> None:
    """Only it has TensorScatter, by which a cache is written in place."""
    text = ("g (float[1,2,8,4] past, float[1,2,1,4] new, int64[1] at) => (float[1,2,8,4] y) "
            "{ y = TensorScatter<axis=2>(past, new, at) }")
    imports = [helper.make_opsetid("", 24)]
    onnx.save(helper.make_model(onnx.parser.parse_graph(text), opset_imports=imports, ir_version=11), tmp_path / "m.onnx")
    assert load(tmp_path / "m.onnx")[0].opset_imports[""] == 24


def test_interface_ranges_and_opset(tmp_path: Path) -> None:
    exported = export(resolve(write(tmp_path / "small.onnx")))
    assert {t.name: (t.dims, t.range, t.fill) for t in exported.interface.inputs} == {
        "input_ids": (("batch", "seq"), (-50, 49), None), "attention_mask": (("batch", "seq"), (0, 1), 1)}
    assert (exported.interface.mask, exported.engine) == ("attention_mask", "onnxruntime")
    ids, mask = np.array([[3, 7]], np.int32), np.array([[1, 0]], np.int32)
    np.testing.assert_allclose(exported.reference({"input_ids": ids, "attention_mask": mask})["pooled"], TABLE[[3]])


def test_name_and_hash_do_not_depend_on_the_place(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    one, two = resolve(write(tmp_path / "small.onnx")), resolve(write(tmp_path / "other" / "small.onnx"))
    assert (one.name, one.hash) == (two.name, two.hash)


def test_hash_covers_external_weights(tmp_path: Path) -> None:
    path = write(tmp_path / "small.onnx", table=external("w.bin"))
    (tmp_path / "w.bin").write_bytes(TABLE.tobytes())
    before = resolve(path).hash
    (tmp_path / "w.bin").write_bytes((TABLE + 1).tobytes())
    assert resolve(path).hash != before


@pytest.mark.parametrize("dim", [None, -1])
def test_dimensions_without_a_name_are_named_by_their_input(tmp_path: Path, dim: int | None) -> None:
    interface = load(write(tmp_path / "a.onnx", dims=(dim, 8)))[1]
    assert [t.dims for t in interface.inputs] == [("input_ids_0", 8), ("attention_mask_0", 8)]


@pytest.mark.parametrize(("name", "word"), [
    ("batch size", "batch_size"), ("0", "dim_0"), ("N*2", "N_2"), ("n + 1", "n_1"), ("a=b", "a_b"), ("a,b", "a_b"), ("(n)", "n"),
    ("max(a,b)", "max_a_b"), ("-", "dim")])
def test_names_of_dimensions_that_are_no_words(tmp_path: Path, name: str, word: str) -> None:
    path = write(tmp_path / "a.onnx", dims=(name, 8))
    assert [t.dims for t in load(path)[1].inputs] == [(word, 8), (word, 8)]
    engine = Engine(build(path, tmp_path / "a.infc", tune=False, profiles=f"{word}=3").path)
    assert engine.run({"input_ids": np.ones((3, 8), np.int32)})["pooled"].shape == (3, 4)


@pytest.mark.parametrize("name", ["DynamicDimension.0", "größe", "unk__0", "tokens"])
def test_names_of_dimensions(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / "a.onnx", dims=(name, 8))
    engine = Engine(build(path, tmp_path / "a.infc", tune=False, profiles=f"{name}=3").path)
    assert engine.run({"input_ids": np.ones((3, 8), np.int32)})["pooled"].shape == (3, 4)


@pytest.mark.parametrize("location", ["../weights.bin", "/etc/passwd", "missing.bin"])
def test_external_weights_stay_in_the_directory(tmp_path: Path, location: str) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "weights.bin").write_bytes(TABLE.tobytes())
    assert code(write(tmp_path / "in" / "a.onnx", table=external(location))) == "INFC-E0113"


def test_external_weights_load(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(TABLE.tobytes())
    model, _ = load(write(tmp_path / "a.onnx", table=external("w.bin")))
    table = model.graph.initializers["table"].const_value
    assert table is not None
    np.testing.assert_array_equal(table.numpy(), TABLE)


@pytest.mark.parametrize(("dims", "profiles"), [(("batch", "seq"), ["batch=3,seq=6"]), ((3, 6), [])])
def test_builds_without_torch(tmp_path: Path, dims: tuple[str | int | None, ...], profiles: list[str]) -> None:
    path = write(tmp_path / "small.onnx", dims)
    code = ("import sys, infc; infc.build(sys.argv[1], sys.argv[2], profiles=sys.argv[3:], tune=False); "
            "assert not {'torch', 'transformers'} & set(sys.modules)")
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    subprocess.run([sys.executable, "-c", code, str(path), str(tmp_path / "a.infc"), *profiles], env=environment, check=True)
    rng = np.random.default_rng(0)
    ids, mask = rng.integers(0, 50, (3, 6)).astype(np.int32), rng.integers(0, 2, (3, 6)).astype(np.int32)
    found = Engine(tmp_path / "a.infc").run({"input_ids": ids, "attention_mask": mask})["pooled"]
    np.testing.assert_allclose(found, (TABLE[ids] * mask[..., None]).sum(1), atol=1e-5)


def test_external_weights_are_compared_with_the_file_itself(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(TABLE.tobytes())
    path = write(tmp_path / "a.onnx", (1, 2), table=external("w.bin"))
    engine = Engine(build(path, tmp_path / "a.infc", tune=False).path)
    found = engine.run({"input_ids": np.array([[3, 7]], np.int32)})["pooled"]
    np.testing.assert_allclose(found, TABLE[[3]] + TABLE[[7]], atol=1e-6)
    (tmp_path / "w.bin").write_bytes(TABLE.tobytes()[:99])
    with pytest.raises(UsageError, match="'table' end beyond"):
        resolve(path)


def test_initializers_among_the_inputs_are_no_inputs(tmp_path: Path) -> None:
    half = helper.make_tensor_value_info("half", TensorProto.FLOAT, [4])
    path = save(tmp_path / "a.onnx", [helper.make_node("Mul", ["x", "half"], ["y"])], inputs=[half])
    np.testing.assert_allclose(run(path)["y"], [0.5, -1, 1.5, -2])


def test_nodes_in_any_order_and_without_names(tmp_path: Path) -> None:
    nodes = [helper.make_node("Mul", ["a", "half"], ["y"]), helper.make_node("Relu", ["x"], ["a"])]
    for only in (None, "fuse_linear"):
        np.testing.assert_allclose(run(save(tmp_path / "a.onnx", nodes), only=only)["y"], [0.5, 0, 1.5, 0])


def test_a_scalar(tmp_path: Path) -> None:
    np.testing.assert_allclose(run(save(tmp_path / "a.onnx", [helper.make_node("Neg", ["x"], ["y"])], shape=()))["y"], -1)


def test_functions_of_the_model(tmp_path: Path) -> None:
    double = helper.make_function("own", "Double", ["a"], ["b"], [helper.make_node("Add", ["a", "a"], ["b"])],
                                  [helper.make_opsetid("", 17)])
    path = save(tmp_path / "a.onnx", [helper.make_node("Double", ["x"], ["y"], domain="own")], domains={"": 17, "own": 1},
                functions=[double])
    np.testing.assert_allclose(run(path)["y"], [2, -4, 6, -8])


@pytest.mark.parametrize(("node", "expected"), [
    (helper.make_node("Mine", ["x"], ["y"], domain="own"), ("INFC-E0401", 3)),
    (helper.make_node("Mine", ["x"], ["y"]), ("INFC-E0401", 3)),
    (helper.make_node("Add", ["x", "none"], ["y"]), ("INFC-E0112", 2)),
    (helper.make_node("Add", ["x", "y"], ["y"]), ("INFC-E0112", 2)),
    (helper.make_node("Det", ["x"], ["y"]), ("INFC-E0117", 2)),
    (helper.make_node("CumSum", ["x", "x"], ["y"]), ("INFC-E0117", 2))])
def test_graphs_that_cannot_be(tmp_path: Path, node: NodeProto, expected: tuple[str, int]) -> None:
    path = save(tmp_path / "a.onnx", [node], domains={"": 17, "own": 1})
    with pytest.raises(InfcError) as caught:
        build(path, tmp_path / "a.infc", tune=False)
    assert (caught.value.code, caught.value.exit_code) == expected
    assert caught.value.hint


def test_an_output_of_another_type_than_its_operator_s(tmp_path: Path) -> None:
    path = save(tmp_path / "a.onnx", [helper.make_node("GroupNormalization", ["x", "s", "b"], ["y"], num_groups=2)])
    proto = onnx.load(path)
    proto.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.BOOL, None))
    onnx.save(proto, path)
    assert code(path) == "INFC-E0112"


def test_an_operator_that_lacks_its_inputs(tmp_path: Path) -> None:
    for nodes in ([helper.make_node("DequantizeLinear", ["x"], ["y"])], [helper.make_node("Identity", [], ["y"])]):
        with pytest.raises(InfcError) as caught:
            build(save(tmp_path / "a.onnx", nodes), tmp_path / "a.infc", tune=False)
        assert caught.value.exit_code in (2, 3)


def test_a_format_newer_than_is_known_is_refused(tmp_path: Path) -> None:
    path = save(tmp_path / "a.onnx", [helper.make_node("Relu", ["x"], ["y"])])
    proto = onnx.load(path)
    proto.ir_version = onnx.IR_VERSION
    onnx.save(proto, path)
    load(path)
    for version in (onnx.IR_VERSION + 1, 1 << 16):
        proto.ir_version = version
        onnx.save(proto, path)
        assert code(path) == "INFC-E0112"


def test_no_outputs(tmp_path: Path) -> None:
    assert code(save(tmp_path / "a.onnx", [], names=())) == "INFC-E0112"
    (tmp_path / "a.onnx").write_bytes(b"")
    assert code(tmp_path / "a.onnx") == "INFC-E0112"


def test_not_a_model(tmp_path: Path) -> None:
    (tmp_path / "a.onnx").write_bytes(b"no model at all")
    assert code(tmp_path / "a.onnx") == "INFC-E0112"


def test_notes_of_passes_in_a_file_are_not_believed(tmp_path: Path) -> None:
    path = save(tmp_path / "a.onnx", [helper.make_node("Neg", ["x"], ["y"])])
    model = onnx.load(path)
    helper.set_model_props(model, {"infc.packed": "no JSON"})
    onnx.save(model, path)
    np.testing.assert_allclose(run(path)["y"], [-1, 2, -3, 4])


@pytest.mark.parametrize("shape", [(5,), (4, 1), (2,)])
def test_outputs_declared_with_another_shape(tmp_path: Path, shape: tuple[int, ...]) -> None:
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", (4,)), ("y", shape)))
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "g", [x], [y])
    path = tmp_path / "m.onnx"
    path.write_bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]).SerializeToString())
    with pytest.raises(UsageError, match=r"E0124|E0117"):
        build(path, tmp_path / "m.infc", tune=False)
    assert not (tmp_path / "m.infc").exists()


def test_sizes_that_are_exact_are_tuned_too(tmp_path: Path) -> None:
    """Steps that are worth timing are timed on the artifact's own interface, whose dimensions the graph has lost by then."""
    random = np.random.default_rng(0)
    weights = [numpy_helper.from_array(random.standard_normal(s).astype(np.float32) * 0.05, n)
               for n, s in (("w1", (256, 512)), ("w2", (512, 16)))]
    nodes = [helper.make_node("MatMul", ["x", "w1"], ["a"]), helper.make_node("Relu", ["a"], ["b"]),
             helper.make_node("MatMul", ["b", "w2"], ["y"])]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["batch", k]) for n, k in (("x", 256), ("y", 16)))
    path = tmp_path / "m.onnx"
    graph = helper.make_graph(nodes, "g", [x], [y], weights)
    path.write_bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10).SerializeToString())
    cache = tmp_path / "timing.json"
    build(path, tmp_path / "m.infc", profiles=["batch=4", "batch=200"], threads=2, timing_cache=str(cache))
    assert cache.exists(), "nothing was worth timing: the test does not test"
    assert Engine(tmp_path / "m.infc").run({"x": np.ones((200, 256), np.float32)})["y"].shape == (200, 16)


def test_a_profile_beyond_the_memory(tmp_path: Path) -> None:
    nodes = [helper.make_node("Exp", ["x"], ["a"]), helper.make_node("MatMul", ["a", "w"], ["y"])]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["batch", k]) for n, k in (("x", 1 << 16), ("y", 1)))
    weight = numpy_helper.from_array(np.ones((1 << 16, 1), np.float32), "w")
    path = tmp_path / "m.onnx"
    graph = helper.make_graph(nodes, "g", [x], [y], [weight])
    path.write_bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10).SerializeToString())
    with pytest.raises(UsageError, match="E0209"):
        build(path, tmp_path / "m.infc", profiles=["batch=1", "batch=1000000"], tune=False)


def test_sparse_weights(tmp_path: Path) -> None:
    sparse = helper.make_sparse_tensor(helper.make_tensor("s", TensorProto.FLOAT, [2], [1.0, 2.0]),
                                       helper.make_tensor("i", TensorProto.INT64, [2], [0, 3]), [4])
    path = save(tmp_path / "a.onnx", [helper.make_node("Constant", [], ["c"], sparse_value=sparse),
                                      helper.make_node("Add", ["x", "c"], ["a"]), helper.make_node("Mul", ["a", "s"], ["y"])])
    model = onnx.load(path)
    model.graph.sparse_initializer.append(sparse)
    onnx.save(model, path)
    np.testing.assert_array_equal(run(path)["y"], [2, 0, 0, -4])


def test_outputs_of_every_kind(tmp_path: Path) -> None:
    """An input, an initializer, what others read too; and the same output twice."""
    nodes = [helper.make_node("Neg", ["x"], ["a"]), helper.make_node("Relu", ["a"], ["b"])]
    path = save(tmp_path / "a.onnx", nodes, ("x", "half", "a", "b"))
    found = run(path)
    np.testing.assert_array_equal(found["x"], [1, -2, 3, -4])
    np.testing.assert_array_equal(found["half"], [0.5] * 4)
    np.testing.assert_array_equal(found["a"], [-1, 2, -3, 4])
    np.testing.assert_array_equal(found["b"], [0, 2, 0, 4])
    model = onnx.load(path)
    model.graph.output.append(model.graph.output[2])
    onnx.save(model, path)
    assert [t.name for t in load(path)[1].outputs] == ["x", "half", "a", "b"]


def test_inputs_that_nothing_reads(tmp_path: Path) -> None:
    more = helper.make_tensor_value_info("more", TensorProto.INT64, ("n", 2))
    path = save(tmp_path / "a.onnx", [helper.make_node("Neg", ["x"], ["y"])], inputs=[more])
    engine = Engine(build(path, tmp_path / "a.infc", tune=False, profiles="n=3").path)
    found = engine.run({"x": np.ones(4, np.float32), "more": np.zeros((3, 2), np.int64)})
    np.testing.assert_array_equal(found["y"], [-1] * 4)


def test_nodes_of_one_name(tmp_path: Path) -> None:
    nodes = [helper.make_node("Neg", ["x"], ["a"], name="n"), helper.make_node("Relu", ["a"], ["y"], name="n")]
    path = save(tmp_path / "a.onnx", nodes)
    assert [n.name for n in load(path)[0].graph] == ["n", "n_2"]
    np.testing.assert_array_equal(run(path)["y"], [0, 2, 0, 4])


@pytest.mark.parametrize("value", [
    {"value_float": 2.0}, {"value_floats": [2.0]}, {"value": numpy_helper.from_array(np.float32(2))}])
def test_constants_of_every_form(tmp_path: Path, value: dict[str, Any]) -> None:
    nodes = [helper.make_node("Constant", [], ["c"], **value), helper.make_node("Mul", ["x", "c"], ["y"])]
    np.testing.assert_array_equal(run(save(tmp_path / "a.onnx", nodes))["y"], [2, -4, 6, -8])


def test_tensors_without_elements(tmp_path: Path) -> None:
    more = helper.make_tensor_value_info("more", TensorProto.FLOAT, (0,))
    nodes = [helper.make_node("Concat", ["x", "more"], ["a"], axis=0), helper.make_node("Neg", ["a"], ["y"])]
    engine = Engine(build(save(tmp_path / "a.onnx", nodes, inputs=[more]), tmp_path / "a.infc", tune=False).path)
    found = engine.run({"x": np.ones(4, np.float32), "more": np.zeros(0, np.float32)})
    np.testing.assert_array_equal(found["y"], [-1] * 4)


def test_outputs_without_a_shape_or_type(tmp_path: Path) -> None:
    path = save(tmp_path / "a.onnx", [helper.make_node("Neg", ["x"], ["y"])])
    model = onnx.load(path)
    model.graph.output[0].ClearField("type")
    onnx.save(model, path)
    np.testing.assert_array_equal(run(path)["y"], [-1, 2, -3, 4])


def test_an_output_whose_size_is_no_inputs(tmp_path: Path) -> None:
    """n // 2 + 1 elements: a dimension of its own where profiles differ in it, a constant where they do not."""
    nodes = [helper.make_node("Slice", ["x", "zero", "end", "zero", "two"], ["y"])]
    ints = [numpy_helper.from_array(np.array([v]), n) for n, v in (("zero", 0), ("end", 1 << 40), ("two", 2))]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [d]) for n, d in (("x", "n"), ("y", "m")))
    path = tmp_path / "m.onnx"
    graph = helper.make_graph(nodes, "g", [x], [y], ints)
    path.write_bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10).SerializeToString())
    one = Engine(build(path, tmp_path / "one.infc", tune=False, profiles="n=5").path)
    assert one.outputs[0].shape == (3,)
    several = Engine(build(path, tmp_path / "several.infc", tune=False, profiles=["n=5", "n=8"]).path)
    assert several.outputs[0].shape == ("dim_y.0",)
    for n in (5, 8):
        data = np.arange(n, dtype=np.float32)
        np.testing.assert_array_equal(several.run({"x": data})["y"], data[::2])


@pytest.mark.parametrize("damage", [
    lambda m: m.graph.initializer[0].ClearField("raw_data"),
    lambda m: m.graph.initializer[0].dims.__setitem__(0, 1 << 40),
    lambda m: m.graph.initializer[0].dims.__setitem__(0, -4),
    lambda m: setattr(m.graph.initializer[0], "data_type", 99),
    lambda m: m.graph.node.append(helper.make_node("Abs", ["x"], ["y"])),
    lambda m: m.graph.input.append(m.graph.input[0]),
    lambda m: m.graph.input[0].type.tensor_type.ClearField("shape"),
    lambda m: m.graph.input[0].ClearField("type"),
    lambda m: m.graph.output.append(helper.make_tensor_value_info("none", TensorProto.FLOAT, [4])),
    lambda m: m.graph.node[0].attribute.append(helper.make_attribute("value", TensorProto(data_type=1, dims=[3], raw_data=b"12")))])
def test_damaged_models(tmp_path: Path, damage: Callable[[onnx.ModelProto], Any]) -> None:
    path = save(tmp_path / "a.onnx", [helper.make_node("Mul", ["x", "half"], ["y"])])
    model = onnx.load(path)
    damage(model)
    path.write_bytes(model.SerializeToString())
    assert code(path) == "INFC-E0112"


def test_a_name_that_is_no_text(tmp_path: Path) -> None:
    path = save(tmp_path / "a.onnx", [helper.make_node("Neg", ["xxxx"], ["y"])])
    path.write_bytes(path.read_bytes().replace(b"xxxx", b"\xff\xfe\xfd\xfc"))
    assert code(path) == "INFC-E0112"


@pytest.mark.parametrize("key", ["offset", "length"])
@pytest.mark.parametrize("value", ["-1", "1000000", "18446744073709551616"])
def test_external_weights_beyond_their_file(tmp_path: Path, key: str, value: str) -> None:
    (tmp_path / "w.bin").write_bytes(TABLE.tobytes())
    table = external("w.bin")
    del table.external_data[1:]
    table.external_data.add(key=key, value=value)
    assert code(write(tmp_path / "a.onnx", table=table)) in ("INFC-E0113", "INFC-E0112")


def test_external_weights_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "weights.bin").write_bytes(TABLE.tobytes())
    (tmp_path / "in" / "w.bin").symlink_to(tmp_path / "weights.bin")
    assert code(write(tmp_path / "in" / "a.onnx", table=external("w.bin"))) == "INFC-E0113"
    (tmp_path / "in" / "self.bin").symlink_to("self.bin")
    assert code(write(tmp_path / "in" / "a.onnx", table=external("self.bin"))) == "INFC-E0113"
    for name in ("w\0", "a" * 5000):
        assert code(write(tmp_path / "in" / "a.onnx", table=external(name))) == "INFC-E0113"


def test_a_profile_is_suggested(tmp_path: Path) -> None:
    path = write(tmp_path / "a.onnx", dims=("batch", "seq_len"))
    with pytest.raises(UsageError) as caught:
        build(path, tmp_path / "a.infc", tune=False)
    assert caught.value.code == "INFC-E0206"
    assert "seq_len (input_ids axis 1, attention_mask axis 1)" in caught.value.message
    assert caught.value.hint == "--profile batch=1,seq_len=128"
    with pytest.raises(UsageError) as caught:
        build(path, tmp_path / "a.infc", tune=False, profiles="batch=1,seq_length=4")
    assert caught.value.hint.startswith("did you mean seq_len?")


@pytest.mark.parametrize(("body", "wanted"), [
    ("t = MatMul(x, w) y = Gather<axis=1>(t, i)", (-5, 4)),
    ("j = Add(i, two) y = Gather<axis=1>(x, j)", (-7, 2)),
    ("j = Sub(i, two) y = Gather<axis=1>(x, j)", (-3, 6)),
    ("j = Mul(i, two) y = Gather<axis=1>(x, j)", (-2, 2)),
    ("j = Cast<to=6>(i) k = Add(j, j) y = Gather<axis=1>(x, k)", None),
    ("j = Sub(two, i) y = Gather<axis=1>(x, j)", None),
    ("j = Cast<to=1>(i) k = Mul(j, half) l = Cast<to=7>(k) y = Gather<axis=1>(x, l)", None),
    ("t = Gather<axis=1>(x, i) u = Gather<axis=2>(x, i) y = Concat<axis=0>(t, t)", (-3, 2)),
    ("y = Gather<axis=0>(x, i)", None),
    ("y = If(c) <then_branch = t () => (float[n, 2, 3] o) { o = Gather<axis=1>(x, i) }, "
     "else_branch = e () => (float[n, 5, 3] p) { p = Identity(x) }>", None),
])
def test_an_index_into_what_is_computed_has_a_range(tmp_path: Path, body: str, wanted: tuple[int, int] | None) -> None:
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": 17]>
    g (float[n, 5, 3] x, int64[2] i, bool c) => (float[a, b, d] y)
    <float[3, 3] w = {{1, 0, 0, 0, 1, 0, 0, 0, 1}}, int64 two = {{2}}, float half = {{0.5}}> {{ {body} }}""")
    onnx.save(model, tmp_path / "m.onnx")
    assert load(tmp_path / "m.onnx")[1].input("i").range == wanted


@pytest.mark.parametrize(("body", "shape", "wanted"), [
    ("y = GatherElements<axis=1>(x, i)", "4, 2, 3", (-5, 4)),
    ("y = GatherND(x, i)", "2, 2", None),
    ("y = GatherND(x, i)", "2, 1", (-4, 3)),
    ("y = GatherND<batch_dims=1>(x, i)", "4, 1", (-5, 4)),
    ("u = GatherElements<axis=2>(x, i) y = ScatterElements<axis=2>(x, i, u)", "4, 5, 2", (-3, 2)),
    ("a, b, c = LSTM<hidden_size=1>(x, w, r, , i) y = Identity(a)", "5", (0, 4)),
])
def test_indices_of_other_operators_have_ranges(tmp_path: Path, body: str, shape: str, wanted: tuple[int, int] | None) -> None:
    kind = "int32" if "LSTM" in body else "int64"
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": 17]> g (float[4, 5, 3] x, {kind}[{shape}] i) => (float y)
    <float[1, 4, 3] w = {{1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}}, float[1, 4, 1] r = {{1, 1, 1, 1}}> {{ {body} }}""")
    model.graph.output[0].type.tensor_type.ClearField("shape")
    onnx.save(model, tmp_path / "m.onnx")
    assert load(tmp_path / "m.onnx")[1].input("i").range == wanted


def test_indices_from_the_end(tmp_path: Path) -> None:
    nodes = [helper.make_node("Gather", ["table", "i"], ["y"])]
    table = numpy_helper.from_array(np.arange(12, dtype=np.float32).reshape(4, 3), "table")
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("i", TensorProto.INT64, (2,))],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, (2, 3))], [table])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "m.onnx")
    build(tmp_path / "m.onnx", tmp_path / "m.infc", tune=False)
    engine = Engine(tmp_path / "m.infc")
    np.testing.assert_array_equal(engine.run({"i": np.array([-1, -4])})["y"], [[9, 10, 11], [0, 1, 2]])
    with pytest.raises(Error, match="outside -4 to 3"):
        engine.run({"i": np.array([0, -5])})


def test_indices_along_a_dimension_that_varies_are_drawn_so_that_the_model_runs(tmp_path: Path) -> None:
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
    g (float[n, 3] x, int64[2] i) => (float[2, 3] y) { t = Neg(x) y = Gather(t, i) }""")
    onnx.save(model, tmp_path / "m.onnx")
    build(tmp_path / "m.onnx", tmp_path / "m.infc", tune=False, profiles=["n=4"])
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    got = Engine(tmp_path / "m.infc").run({"x": x, "i": np.array([3, -2])})["y"]
    np.testing.assert_array_equal(got, -x[[3, 2]])


def test_a_model_that_runs_with_no_integers_says_how_to_set_them(tmp_path: Path) -> None:
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
    g (float[2, 3] x, int64[1] i) => (float[a, 3] y) <int64[1] five = {5}>
    { j = Add(i, five) k = Add(j, i) y = Gather<axis=0>(x, k) }""")
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(UsageError, match="E0208") as caught:
        build(tmp_path / "m.onnx", tmp_path / "m.infc", tune=False)
    assert "--set i=VALUE" in caught.value.hint


@pytest.mark.parametrize("body", [
    "y = GroupNormalization<num_groups=2>(x, one, one)",
    "a = Gelu(x) y = GroupNormalization<num_groups=2>(a, one, one)",
    "y = Loop(three, , x) <body = b (int64 k, bool c, float[n, 4, 3] s) => (bool d, float t) { d = Identity(c) t = Mul(s, s) }>",
    "y = Loop(three, , x) <body = b (int64 k, bool c, float s) => (bool d, float t) { d = Identity(c) t = Concat<axis=1>(s, x) }>",
])
def test_shapes_that_onnx_does_not_infer(tmp_path: Path, body: str) -> None:
    model = onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["": 21]> g (float[n, 4, 3] x) => (float y)
    <float[4] one = {{1, 1, 1, 1}}, int64 three = {{3}}> {{ {body} }}""")
    model.graph.output[0].type.tensor_type.ClearField("shape")
    for node in model.graph.node:
        for attribute in node.attribute:
            for value in (*attribute.g.input[2:], *attribute.g.output[1:]):
                if not value.type.tensor_type.shape.dim:
                    value.type.tensor_type.ClearField("shape")
    onnx.save(model, tmp_path / "m.onnx")
    shape = load(tmp_path / "m.onnx")[1].outputs[0].dims
    assert shape == ("n", 16 if "Concat" in body else 4, 3)


def test_ids_of_an_embedding_of_onnx_runtime_have_ranges(tmp_path: Path) -> None:
    tables = {"words": (50, 4), "places": (9, 4), "kinds": (2, 4), "gamma": (4,), "beta": (4,)}
    rng = np.random.default_rng(0)
    node = helper.make_node("EmbedLayerNormalization", ["ids", "segments", *tables], ["y", "lengths"], domain="com.microsoft")
    inputs = [helper.make_tensor_value_info(n, TensorProto.INT32, ("batch", "seq")) for n in ("ids", "segments")]
    graph = helper.make_graph([node], "g", inputs, [helper.make_tensor_value_info("y", TensorProto.FLOAT, ("batch", "seq", 4))],
                              [numpy_helper.from_array(rng.standard_normal(s).astype(np.float32), n) for n, s in tables.items()])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)],
                                ir_version=8), tmp_path / "m.onnx")
    _, found = load(tmp_path / "m.onnx")
    assert [t.range for t in found.inputs] == [(0, 49), (0, 1)]


def test_ids_of_a_graph_that_was_exported_after_its_passes_have_ranges(tmp_path: Path) -> None:
    text = """<ir_version: 10, opset_import: ["": 23, "infc": 1]> g (int64[batch, seq] ids, int64[batch, seq] kinds)
    => (float[batch, seq, 4] y) { y = infc.EmbeddingSum(ids, words, kinds, two) }"""
    model = onnx.parser.parse_model(text)
    for name, rows in (("words", 50), ("two", 2)):
        model.graph.initializer.append(numpy_helper.from_array(np.ones((rows, 4), np.float32), name))
    ours = ir.from_proto(model)
    domain.add_functions(ours)
    onnx.save(ir.to_proto(ours), tmp_path / "m.onnx")
    _, found = load(tmp_path / "m.onnx")
    assert [t.range for t in found.inputs] == [(0, 49), (0, 1)]


def test_a_layer_norm_that_is_older_than_onnx_s(tmp_path: Path) -> None:
    """As ONNX Runtime's optimizer writes it."""
    text = """<ir_version: 8, opset_import: ["": 14]> g (float[n, 8] x, float[8] s, float[8] b) => (float[n, 8] y)
    { y = LayerNormalization <axis = -1> (x, s, b) }"""
    (tmp_path / "m.onnx").write_bytes(onnx.parser.parse_model(text).SerializeToString())
    assert build(tmp_path / "m.onnx", tmp_path / "a.infc", tune=False, isa=["scalar"], profiles="n=3").path.exists()


@pytest.mark.parametrize(("operator", "x", "y"), [
    ("Pow", "int32", "int32"), ("Pow", "int32", "float"), ("Pow", "int64", "int64"), ("Pow", "float", "int64"),
    ("Div", "int32", "int32"), ("Mod", "int64", "int64")])
def test_integers_that_are_drawn_give_numbers(operator: str, x: str, y: str, tmp_path: Path) -> None:
    """A power that overflows, a quotient by zero are anybody's: no engine could be held against them."""
    text = f"""<ir_version: 9, opset_import: ["": 18]>
    g ({x}[4,5] x, {y}[4,5] y) => ({x}[4,5] z) {{ z = {operator} (x, y) }}"""
    (tmp_path / "m.onnx").write_bytes(onnx.parser.parse_model(text).SerializeToString())
    build(tmp_path / "m.onnx", tmp_path / "a.infc", tune=False, isa=["scalar"])
