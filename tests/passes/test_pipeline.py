"""The pipelines on models of different exporters: exact counts, and outputs compared in ONNX Runtime."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from infc.compiler.pipeline import FOLD, PIPELINES
from infc.passes import domain
from infc.passes.base import PassManager
from infc.passes.graph import FUSED, MODULE, dims
from tests.passes.support import Array, apply, feed, ops, session

LAYERS = 2
# Per layer: merged query, key and value; projection and residual; feed-forward in with GELU, and out with residual.
EXPECTED = {
    "PackTokens": 1,
    "PackRows": 2,
    "EmbeddingSum": 1,
    "LayerNormalization": 2 * LAYERS + 1,
    "Linear": 4 * LAYERS,
    "Split": LAYERS,
    "VarlenAttention": LAYERS,
    "UnpackRows": 1,
    "SegmentReduce": 1,
    "L2Normalize": 1,
}
SOURCES = ["dynamo", "dynamo_18", "torchscript", "written_out"]


@pytest.mark.parametrize("source", SOURCES)
def test_bert(exported: dict[str, ir.Model], source: str) -> None:
    model = exported[source].clone()
    records = apply(model, *PIPELINES["cpu"], padded=["last_hidden_state"])
    assert ops(model) == EXPECTED
    linears = [n for n in model.graph if n.op_type == "Linear"]
    assert sum(n.attributes["activation"].value == "gelu_erf" for n in linears) == LAYERS
    assert sum(len(n.inputs) == 4 for n in linears) == 2 * LAYERS
    assert all(n.inputs[2] is not None for n in linears)
    assert [m for r in records for m in r.near_misses] == []
    assert model.metadata_props["infc.packed"] == '{"tokens": ["batch", "seq"]}'
    for node in model.graph:
        for value in node.outputs:
            shape = dims(value)
            assert shape is not None
            assert None not in shape, f"{value.name} {shape}"
            assert value.dtype is not None


def test_without_packing(exported: dict[str, ir.Model]) -> None:
    model = exported["dynamo"].clone()
    PassManager(PIPELINES["cpu"], disabled=["pack_tokens"]).run(model)
    found = ops(model)
    assert (found["PaddedAttention"], found["SegmentPool"], found["PackTokens"]) == (LAYERS, 1, 0)


def test_padding_does_not_change_a_result(exported: dict[str, ir.Model]) -> None:
    model = exported["dynamo"].clone()
    PassManager(PIPELINES["cpu"]).run(model)
    running = session(model)
    data = feed(model)
    data["attention_mask"][:] = np.arange(7) < np.array([[7], [4], [2]])
    whole = running.run(["sentence_embedding"], data)[0]
    for row, length in enumerate((7, 4, 2)):
        alone = running.run(["sentence_embedding"], {k: v[row : row + 1, :length] for k, v in data.items()})[0]
        np.testing.assert_allclose(whole[row : row + 1], alone, atol=1e-6)


def test_provenance(exported: dict[str, ir.Model]) -> None:
    model = exported["dynamo"].clone()
    source = {n.name for n in model.graph}
    PassManager(PIPELINES["cpu"]).run(model)
    claimed = [name for n in model.graph for name in n.metadata_props.get(FUSED, "").split()]
    assert set(claimed) <= source
    for node in model.graph:
        if node.op_type == "Linear":
            assert "encoder.layer." in node.metadata_props[MODULE]
            assert len(node.metadata_props[FUSED].split()) >= 2
    assert not any(key.startswith("pkg.") for n in model.graph for key in n.metadata_props)


def test_names_do_not_depend_on_the_run(exported: dict[str, ir.Model]) -> None:
    first, second = exported["dynamo"].clone(), exported["dynamo"].clone()
    for model in (first, second):
        PassManager(PIPELINES["cpu"]).run(model)
    assert ir.to_proto(first).SerializeToString(deterministic=True) == ir.to_proto(second).SerializeToString(deterministic=True)


def test_a_second_run_changes_nothing(exported: dict[str, ir.Model]) -> None:
    model = exported["dynamo"].clone()
    PassManager(PIPELINES["cpu"]).run(model)
    before = ops(model)
    assert all(not r.matches for r in PassManager(PIPELINES["cpu"]).run(model))
    assert ops(model) == before


@pytest.mark.parametrize(
    ("pipeline", "disabled"),
    [(name, p.name) for name, passes in PIPELINES.items() for p in dict.fromkeys(passes) if p.name != "normalise"],
)
def test_any_pass_can_be_left_out(exported: dict[str, ir.Model], pipeline: str, disabled: str) -> None:
    model = exported["torchscript"].clone()
    data = feed(model)
    before = session(model).run(["sentence_embedding"], data)[0]
    PassManager(PIPELINES[pipeline], disabled=[disabled]).run(model)
    np.testing.assert_allclose(session(model).run(["sentence_embedding"], data)[0], before, atol=1e-5)


def test_folding_a_graph_of_constant_shapes(exported: dict[str, ir.Model]) -> None:
    """What the driver does with a graph that is not packed."""
    model = exported["dynamo"].clone()
    PassManager(PIPELINES["cpu"], disabled=["pack_tokens"]).run(model)
    sizes = {"batch": 3, "seq": 7}
    for value in [*model.graph.inputs, *(v for n in model.graph for v in n.outputs)]:
        assert value.shape is not None
        value.shape = ir.Shape([d if isinstance(d, int) else int(d.evaluate(sizes) or 0) for d in value.shape])
    apply(model, *FOLD)
    assert not {"Shape", "Slice", "Range"} & set(ops(model))


# --- for TensorRT --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", SOURCES)
def test_bert_for_tensorrt(exported: dict[str, ir.Model], source: str) -> None:
    """ONNX's own operators only; per layer one product for query, key and value, two of attention and three more."""
    model = exported[source].clone()
    records = apply(model, *PIPELINES["tensorrt"], padded=["last_hidden_state"])
    found = ops(model)
    assert {n.domain for n in model.graph} == {""}
    wanted = {"MatMul": 6, "Softmax": 1, "Split": 1, "LayerNormalization": 2, "Gelu": 1}
    assert {op: found[op] for op in (*wanted, "Attention", "Erf")} == {
        **{op: n * LAYERS + (op == "LayerNormalization") for op, n in wanted.items()},
        "Attention": 0,
        "Erf": 0,
    }
    assert [m for r in records for m in r.near_misses] == []
    readers = [n for n in model.graph if n.op_type == "Softmax"]
    masks = {n.inputs[0].producer().inputs[1] for n in readers}  # type: ignore[union-attr]
    assert [dims(m) for m in masks] == [("batch", 1, 1, "seq")]


def test_a_second_run_for_tensorrt_changes_nothing(exported: dict[str, ir.Model]) -> None:
    model = exported["torchscript"].clone()
    PassManager(PIPELINES["tensorrt"]).run(model)
    before = ops(model)
    assert all(not r.matches for r in PassManager(PIPELINES["tensorrt"]).run(model))
    assert ops(model) == before


# --- speed -------------------------------------------------------------------------------------------------------------------


def _lazy(name: str, *shape: int) -> ir.Value:
    """A weight that fails the test if a pass reads it."""

    def read() -> ir.TensorProtocol:
        raise AssertionError(f"a pass read {name}")

    tensor = ir.LazyTensor(read, dtype=ir.DataType.FLOAT, shape=ir.Shape(shape), name=name)
    return ir.Value(name=name, type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(shape), const_value=tensor)


def _small(name: str, data: Array) -> ir.Value:
    return ir.Value(
        name=name, type=ir.TensorType(ir.DataType.from_numpy(data.dtype)), shape=ir.Shape(data.shape), const_value=ir.tensor(data)
    )


def llama(layers: int, width: int = 2048, heads: int = 32, inner: int = 5632) -> ir.Model:
    """A decoder of Llama's size with norms, rotary embedding, repeated keys and values and attention written out."""
    f32, i64 = ir.TensorType(ir.DataType.FLOAT), ir.TensorType(ir.DataType.INT64)
    ids = ir.Value(name="input_ids", type=i64, shape=ir.Shape(["batch", "seq"]))
    bias = ir.Value(name="bias", type=f32, shape=ir.Shape(["batch", 1, "seq", "seq"]))
    head = width // heads
    angle = ir.Value(name="angle", type=f32, shape=ir.Shape(["batch", 1, "seq", head]))
    weights: list[ir.Value] = []
    nodes: list[ir.Node] = []

    def weight(*shape: int) -> ir.Value:
        weights.append(_lazy(f"w{len(weights)}", *shape))
        return weights[-1]

    def constant(data: Array) -> ir.Value:
        weights.append(_small(f"c{len(weights)}", data))
        return weights[-1]

    def op(op_type: str, *inputs: ir.Value, count: int = 1, **attributes: object) -> ir.Value:
        node = ir.node(op_type, inputs, attributes, name=f"node_{len(nodes)}", num_outputs=count)  # type: ignore[arg-type]
        for i, value in enumerate(node.outputs):
            value.name = f"v{len(nodes)}_{i}"
        nodes.append(node)
        return node.outputs[0]

    gamma = np.full(width, 1.5, np.float32)
    last, two, eps = constant(np.array([-1])), constant(np.float32(2)), constant(np.float32(1e-5))
    at = [constant(np.array([i])) for i in range(4)]
    half, end, size = constant(np.array([head // 2])), constant(np.array([1 << 62])), constant(np.array([heads]))
    whole, minus = constant(np.array([width])), constant(np.array([-1]))

    def norm(x: ir.Value) -> ir.Value:
        root = op("Sqrt", op("Add", op("ReduceMean", op("Pow", x, two), last), eps))
        return op("Mul", constant(gamma), op("Mul", x, op("Reciprocal", root)))

    def split(x: ir.Value, y: ir.Value) -> ir.Value:
        shape = op("Shape", x)
        target = op("Concat", op("Gather", shape, at[0]), op("Gather", shape, at[1]), size, minus, axis=0)
        return op("Transpose", op("Reshape", y, target), perm=[0, 2, 1, 3])

    def rotate(x: ir.Value) -> ir.Value:
        low, high = op("Slice", x, at[0], half, at[3]), op("Slice", x, half, end, at[3])
        return op("Add", op("Mul", x, op("Cos", angle)), op("Mul", op("Concat", op("Neg", high), low, axis=-1), op("Sin", angle)))

    x = op("Gather", weight(32000, width), ids)
    for _ in range(layers):
        h = norm(x)
        q, k, v = (split(x, op("MatMul", h, weight(width, width))) for _ in range(3))
        scores = op("MatMul", rotate(q), op("Transpose", rotate(k), perm=[0, 1, 3, 2]))
        p = op("Softmax", op("Add", op("Mul", scores, constant(np.float32(head**-0.5))), bias), axis=-1)
        y = op("Transpose", op("MatMul", p, v), perm=[0, 2, 1, 3])
        shape = op("Shape", x)
        y = op("Reshape", y, op("Concat", op("Gather", shape, at[0]), op("Gather", shape, at[1]), whole, axis=0))
        x = op("Add", x, op("MatMul", y, weight(width, width)))
        h = norm(x)
        gate = op("MatMul", h, weight(width, inner))
        x = op(
            "Add",
            x,
            op(
                "MatMul",
                op("Mul", op("Mul", gate, op("Sigmoid", gate)), op("MatMul", h, weight(width, inner))),
                weight(inner, width),
            ),
        )
    y = op("MatMul", norm(x), weight(width, 32000))
    y.type, y.shape = f32, ir.Shape(["batch", "seq", 32000])
    graph = ir.Graph([ids, bias, angle], [y], nodes=nodes, initializers=weights, opset_imports={"": 23}, name="llama")
    return ir.Model(graph, ir_version=10)


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_each_pass_takes_at_most_a_second_on_a_llama(monkeypatch: pytest.MonkeyPatch, pipeline: str) -> None:
    monkeypatch.setattr("infc.passes.base.time.perf_counter", time.process_time)  # the machine may be busy with something else
    model = llama(30)
    assert model.graph.num_nodes() > 1500
    records = PassManager(PIPELINES[pipeline]).run(model)
    for record in records:
        assert record.seconds < 1, f"{record.name} took {record.seconds:.2f} s"
    found = ops(model)
    if pipeline == "tensorrt":
        assert (found["RMSNormalization"], found["MatMul"], found["Softmax"]) == (61, 30 * 9 + 1, 30)
        return
    assert (found["RMSNormalization"], found["Linear"], found["Split"], found["Attention"]) == (61, 30 * 6 - 30 * 2 + 31, 30, 30)


def test_every_exporter_gives_the_same_engine(exported: dict[str, ir.Model], tmp_path: Path) -> None:
    from infc.compiler import driver

    def steps(source: str) -> list[str]:
        ir.save(exported[source].clone(), tmp_path / f"{source}.onnx")
        built = driver.build(
            tmp_path / f"{source}.onnx", tmp_path / "model.infc", profiles=["batch=2,seq=16"], tune=False, threads=1
        )
        return sorted(layer["op"] for layer in next(iter(built.report["layers"].values())))

    wanted = steps("dynamo")
    assert {source: steps(source) for source in SOURCES} == dict.fromkeys(SOURCES, wanted)


def test_functions_come_and_go(exported: dict[str, ir.Model]) -> None:
    model = exported["written_out"].clone()
    PassManager(PIPELINES["cpu"]).run(model)
    domain.add_functions(model)
    used = {(n.domain, n.op_type, n.overload) for n in model.graph if n.domain == "infc"}
    assert set(model.functions) == used
    domain.strip_functions(model)
    assert not model.functions
