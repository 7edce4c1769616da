"""Graphs through the whole target and the runtime, against ONNX Runtime."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings

from infc.plugins.cpu import TECHNIQUES, schedule, tactics
from tests.plugins.cpu.graphs import Case, cases, parse
from tests.plugins.cpu.harness import compile_model, native_isas, run


@contextmanager
def divided(min_rows: int = 0) -> Iterator[None]:
    """Even the smallest step is worth a thread; programs take schedule 0 from ``min_rows`` rows a thread on."""
    with mock.patch.object(schedule, "MIN_STEP", 0.0), mock.patch.object(schedule, "MIN_PROGRAM", 0.0), \
            mock.patch.object(tactics, "MIN_ROWS", min_rows):
        yield


def expected(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    return dict(zip([o.name for o in session.get_outputs()], session.run(None, feeds), strict=True))


def agree(model: onnx.ModelProto, feeds: dict[str, np.ndarray], artifact: bytes, threads: int, isa: str) -> None:
    got = run(artifact, feeds, threads, isa)
    for name, want in expected(model, feeds).items():
        np.testing.assert_allclose(got[name], want, rtol=1e-4, atol=1e-4, err_msg=name)


def ops(model: onnx.ModelProto) -> list[str]:
    return [layer.op for layer in next(iter(compile_model(model)[1].layers.values()))]


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


ATTENTION = parse("""g (float[2, 5, 64] x) => (float[2, 5, 64] y) {
    qkv = MatMul(x, w)
    q, k, v = Split<axis = -1>(qkv, sizes)
    q4 = Reshape(q, heads)   k4 = Reshape(k, heads)   v4 = Reshape(v, heads)
    qt = Transpose<perm = [0, 2, 1, 3]>(q4)
    kt = Transpose<perm = [0, 2, 1, 3]>(k4)
    vt = Transpose<perm = [0, 2, 1, 3]>(v4)
    a = Attention(qt, kt, vt)
    at = Transpose<perm = [0, 2, 1, 3]>(a)
    y = Reshape(at, flat)
}""", w=draw(64, 192), sizes=np.array([64, 64, 64]), heads=np.array([0, 0, 4, 16]), flat=np.array([0, 0, 64]))

JOIN = parse("""g (float[6, 16] x) => (float[6, 96] y) {
    a = MatMul(x, w)   b = MatMul(x, v)
    j = Concat<axis = 1>(a, b)
    y = Relu(j)
}""", w=draw(16, 32), v=draw(16, 64, seed=1))

GRAPHS = {
    "attention": ATTENTION,
    "join": JOIN,
    "outputs": parse("""g (float[4, 6] x) => (float[4, 6] same, float[6, 4] turned, float[4, 6] y, float[4, 6] z) {
        same = Identity(x)
        turned = Transpose<perm = [1, 0]>(x)
        y = Relu(x)
        z = Identity(y)
    }"""),
    "broadcast": parse("""g (float[3, 1, 5] x, float[4, 1] y) => (float[5, 4, 3] z) {
        s = Add(x, y)
        t = Transpose<perm = [2, 1, 0]>(s)
        z = Mul(t, c)
    }""", c=draw(5, 1, 3)),
    "products": parse("""g (float[2, 3, 4, 5] a, float[3, 6, 5] b) => (float[2, 3, 4, 6] y, float[2, 3, 4, 7] z) {
        t = Transpose<perm = [0, 2, 1]>(b)
        y = MatMul(a, t)
        z = MatMul(a, c)
    }""", c=draw(3, 5, 7)),
    "gemm": parse("""g (float[5, 4] a, float[6, 5] b, float[4, 6] c) => (float[4, 6] y, float[4, 3] z) {
        y = Gemm<transA = 1, transB = 1, alpha = 0.5, beta = 2.0>(a, b, c)
        z = Gemm<transA = 1, alpha = 0.5>(a, w, bias)
    }""", w=draw(5, 3), bias=draw(3)),
    "turned": parse("""g (float[6, 8, 8] x) => (float[6, 8, 8] y) {
        a = Mul(x, c)
        t = Transpose<perm = [0, 2, 1]>(a)
        b = Mul(t, c)
        y = Mul(b, c)
    }""", c=draw(6, 1, 1)),  # b may not lie on a, which is read in another order
    "pad": parse("""g (float[2, 3, 4] x) => (float[4, 3, 5] y, float[2, 3, 8] z) {
        y = Pad(x, pads, value)
        z = Tile(x, repeats)
    }""", pads=np.array([1, 0, 1, 1, 0, 0]), value=np.float32(7), repeats=np.array([1, 1, 2])),
    "select": parse("""g (float[3, 4] x, int64[5] i) => (float[3, 4] y, float[3, 5] z, float[5, 4] t) {
        zero = CastLike(nought, x)
        c = Greater(x, zero)
        y = Where(c, x, zero)
        z = Gather<axis = 1>(x, i)
        t = Gather(table, i)
    }""", nought=np.array(0), table=draw(9, 4)),
}


def feeds_of(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    return {v.name: np.array([0, 2, -1, 1, 1]) if v.type.tensor_type.elem_type == onnx.TensorProto.INT64
            else draw(*(d.dim_value for d in v.type.tensor_type.shape.dim), seed=n + 1) for n, v in enumerate(model.graph.input)}


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("disabled", [None, *TECHNIQUES])
@pytest.mark.parametrize("min_rows", [0, 1000])
def test_graphs(name: str, disabled: str | None, min_rows: int) -> None:
    model = GRAPHS[name]
    with divided(min_rows):
        artifact, _ = compile_model(model, native_isas(), disabled=[disabled] if disabled else [])
    for isa in native_isas():
        for threads in (1, 2):
            agree(model, feeds_of(model), artifact, threads, isa)


@pytest.mark.parametrize("bound", [1, 3])
def test_rows_known_at_run_time(bound: int) -> None:
    model = parse("""g (float[batch, 8] x) => (float[batch, 8] y, float[batch, 4] z) {
        a = Exp(x)
        y = Add(a, c)
        z = Slice(a, start, end, axis)
    }""", c=draw(8), start=np.array([2]), end=np.array([6]), axis=np.array([1]))
    artifact, _ = compile_model(model, native_isas(), {"batch": bound}, {"batch": bound})
    for rows in range(1, bound + 1):
        agree(model, {"x": draw(rows, 8)}, artifact, 2, native_isas()[-1])


def test_attention_moves_nothing() -> None:
    assert ops(ATTENTION) == ["gemm", "attention"]


def test_products_write_into_their_concatenation() -> None:
    assert ops(JOIN) == ["gemm", "gemm", "unary"]


def test_tiny_programs_wake_no_worker() -> None:
    for model in GRAPHS.values():
        _, compiled = compile_model(model)
        program = next(s for s in compiled.sections if s.kind == "PROGRAM")
        from infc.compiler.artifact.program import decode

        assert {step.split for step in decode(program.data).steps} == {(0, 0)}


@settings(max_examples=40, deadline=None)
@given(cases())
def test_random_graphs(case: Case) -> None:
    for min_rows in (0, 1000):
        with divided(min_rows):
            artifact, _ = compile_model(case.model, native_isas())
        for isa, threads in ((native_isas()[-1], 2), ("scalar", 3)):
            agree(case.model, case.feeds, artifact, threads, isa)
