"""Attention over a cache: runs that follow each other, with caches that go from one to the next, against one run of everything."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infc.compiler.lowering import add_functions
from infc.plugins.tensorrt.legalise import Request, legalise
from infc.plugins.tensorrt.legalise.cache import LENGTH, NEW, closed
from tests.plugins.cpu.graphs import parse

HEADS, KV, SIZE, CAPACITY = 4, 2, 16, 24
Array = np.ndarray[Any, Any]


def model(tokens: int | str, window: int = 0, softcap: float = 0.0) -> ir.Model:
    """Two layers that read each other."""
    how = f"num_heads = {HEADS}, kv_num_heads = {KV}, scale = 0.25, softcap = {softcap}, window = {window}, interleaved = 0"
    wide, narrow = HEADS * SIZE, KV * SIZE
    return ir.from_proto(parse(f"""g (float[{tokens}, 1, {wide}] q, float[{tokens}, 1, {narrow}] k, float[{tokens}, 1, {narrow}] v)
            => (float[{tokens}, 1, {wide}] y) {{
        a = infc.CachedAttention<{how}, layer = 0>(q, k, v)
        y = infc.CachedAttention<{how}, layer = 1>(a, v, k)
    }}"""))


def session(graph: ir.Model) -> ort.InferenceSession:
    return ort.InferenceSession(ir.to_proto(graph).SerializeToString(), providers=["CPUExecutionProvider"])


def drawn(tokens: int) -> dict[str, Array]:
    rng = np.random.default_rng(tokens)
    return {n: rng.normal(0, 1, (tokens, 1, w * SIZE)).astype(np.float32) for n, w in (("q", HEADS), ("k", KV), ("v", KV))}


def whole(inputs: dict[str, Array], **how: Any) -> Array:
    """By the operator's own definition."""
    graph = model(len(inputs["q"]), **how)
    add_functions(graph)
    return np.asarray(session(graph).run(["y"], inputs)[0])


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=4), st.sampled_from([0, 1, 5]), st.sampled_from([0.0, 2.0]), st.booleans())
def test_runs_follow_each_other(runs: list[int], window: int, softcap: float, dynamic: bool) -> None:
    """A run writes as many tokens as its profile has, 6 here: those that are not in use are zeros, and nobody sees them."""
    inputs = drawn(sum(runs))
    legal = legalise(model("tokens" if dynamic else 6, window, softcap), Request(dynamic=dynamic, capacity=CAPACITY + 6))
    running = session(legal.model)
    names = [o.name for o in running.get_outputs()]
    caches = {i.name: np.zeros(i.shape, np.float32) for i in running.get_inputs() if i.name in legal.state and i.name != LENGTH}
    said, length = [], 0
    for count in runs:
        rows = {n: np.concatenate([a[length:length + count], np.zeros((6 - count, *a.shape[1:]), np.float32)])
                for n, a in inputs.items()}
        found = dict(zip(names, running.run(names, {**rows, LENGTH: np.array([length]), **caches}), strict=True))
        caches = {name: found[f"{name}{NEW}"] for name in caches}
        said.append(found["y"][:count])
        length += count
    np.testing.assert_allclose(np.concatenate(said), whole(inputs, window=window, softcap=softcap), atol=2e-5)


def test_closed_graphs_begin_a_sequence() -> None:
    legal = legalise(model(5), Request(capacity=CAPACITY))
    graph = closed(legal.model, legal.state)
    assert [v.name for v in graph.graph.inputs] == ["q", "k", "v"]
    assert [v.name for v in graph.graph.outputs] == ["y"]
    np.testing.assert_allclose(session(graph).run(["y"], drawn(5))[0], whole(drawn(5)), atol=2e-5)


@pytest.mark.parametrize(("precision", "dtype"), [("f32", ir.DataType.FLOAT), ("f16", ir.DataType.FLOAT16),
                                                  ("bf16", ir.DataType.BFLOAT16)])
def test_caches_have_the_type_of_the_engine(precision: str, dtype: ir.DataType) -> None:
    graph = legalise(model(3), Request(precision=precision, sms=(89,), capacity=CAPACITY)).model.graph
    caches = [v for v in (*graph.inputs, *graph.outputs) if str(v.name).startswith("cache.") and v.name != LENGTH]
    assert len(caches) == 8
    assert {v.dtype for v in caches} == {dtype}
    assert {v.dtype for v in graph.inputs if v not in caches and v.name != LENGTH} == {ir.DataType.FLOAT}
    for node in (n for n in graph if n.op_type == "TensorScatter"):
        assert node.inputs[0].is_graph_input()  # type: ignore[union-attr]
        assert node.outputs[0].is_graph_output()


def test_graphs_without_one_stay_as_they_are() -> None:
    graph = ir.from_proto(parse("g (float[3] x) => (float[3] y) { y = Tanh (x) }"))
    assert legalise(graph, Request()).state == ()
