"""Operators of the infc domain against their ONNX-function bodies: packed rows of many lengths, and static graphs."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from infc.compiler.errors import UnsupportedError
from infc.passes.domain import add_functions
from tests.plugins.cpu.graphs import parse
from tests.plugins.cpu.harness import compile_model, native_isas, run
from tests.plugins.cpu.test_graphs import divided, draw, expected

N = 32
WEIGHTS = {
    "words": draw(11, N), "places": draw(7, N), "gamma": 1 + draw(N) / 4, "beta": draw(N, seed=1), "w": draw(N, 3 * N) / 4,
    "b": draw(3 * N), "o": draw(N, N) / 4, "up": draw(N, 48) / 4, "down": draw(48, N) / 4,
}
BODY = """
    e = infc.EmbeddingSum(i, words, column, places)
    n = LayerNormalization(e, gamma, beta)
    qkv = infc.Linear(n, w, b)
    q, k, v = Split<axis = -1, num_outputs = 3>(qkv)
    a = infc.VarlenAttention<num_heads = 4, kv_num_heads = 4, scale = 0.35>(q, k, v, offsets, key_start)
    r = infc.Linear(a, o, , n)
    m, s = infc.AddNorm<kind = "rms", epsilon = 0.001>(r, n, gamma)
    u = infc.Linear<activation = "gelu_erf">(m, up)
    d = infc.Linear(u, down)
    h = Add(d, s)
    hidden = infc.UnpackRows(h, index, mask)
"""


def packed(kind: str) -> onnx.ModelProto:
    return parse(f"""g (int64[batch, seq] ids, int64[batch, seq] mask) => (float[batch, seq, 32] hidden, float[batch, 32] pooled) {{
        index, column, offsets, key_start = infc.PackTokens<keep_first = {int(kind == 'first')}>(mask)
        i = infc.PackRows(ids, index)
        {BODY}
        p = infc.SegmentReduce<kind = "{kind}", epsilon = 1.0>(h, offsets, key_start)
        pooled = infc.L2Normalize<epsilon = 0.00001>(p)
    }}""", **WEIGHTS)


def reference(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    whole = ir.from_proto(model)
    add_functions(whole)
    return expected(ir.to_proto(whole), feeds)


def feeds_of(lengths: list[int], seq: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(sum(lengths))
    mask = (np.arange(seq) < np.array(lengths)[:, None]).astype(np.int64)
    return {"ids": rng.integers(0, 11, mask.shape), "mask": mask}


@pytest.mark.parametrize("kind", ["mean", "sum", "max", "first"])
@pytest.mark.parametrize("min_rows", [0, 1000])
def test_packed_rows(kind: str, min_rows: int) -> None:
    model = packed(kind)
    with divided(min_rows):
        artifact, _ = compile_model(model, native_isas(), {"batch": 3, "seq": 7}, {"batch": 3, "seq": 7, "tokens": 21})
    for lengths, seq in (([7, 7, 7], 7), ([3], 5), ([1, 6, 2], 6), ([2, 4], 7), ([1], 1)):
        feeds = feeds_of(lengths, seq)
        want = reference(model, feeds)
        for isa in native_isas():
            for threads in (1, 2):
                got = run(artifact, feeds, threads, isa)
                for name in want:
                    np.testing.assert_allclose(got[name], want[name], rtol=1e-4, atol=1e-4)


def test_rows_of_a_batch_equal_rows_alone() -> None:
    artifact, _ = compile_model(packed("mean"), native_isas()[-1:], {"batch": 3, "seq": 7}, {"batch": 3, "seq": 7, "tokens": 21})
    lengths = [5, 1, 7]
    feeds = feeds_of(lengths, 7)
    batch = run(artifact, feeds, 2)
    for row, length in enumerate(lengths):
        alone = run(artifact, {n: np.ascontiguousarray(a[row : row + 1, :length]) for n, a in feeds.items()})
        np.testing.assert_allclose(batch["pooled"][row], alone["pooled"][0], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(batch["hidden"][row, :length], alone["hidden"][0], rtol=1e-5, atol=1e-6)
        assert not batch["hidden"][row, length:].any()


STATIC = """g (float[2, 5, 32] x, int64[2, 5] mask) => (float[2, 5, 32] y, float[2, 32] mean, float[2, 32] sum, float[2, 32] max) {
    q = infc.Linear<activation = "silu">(x, o)
    y = infc.PaddedAttention<num_heads = 4, kv_num_heads = 4, scale = 0.5>(q, x, x, mask)
    mean = infc.SegmentPool<kind = "mean", epsilon = 1.0>(x, mask)
    sum = infc.SegmentPool<kind = "sum">(x, mask)
    max = infc.SegmentPool<kind = "max">(x, mask)
}"""


def test_static_graphs() -> None:
    model = parse(STATIC, o=WEIGHTS["o"])
    with divided():
        artifact, _ = compile_model(model, native_isas())
    for lengths in ([5, 5], [3, 1]):
        feeds = {"x": draw(2, 5, 32), "mask": (np.arange(5) < np.array(lengths)[:, None]).astype(np.int64)}
        want = reference(model, feeds)
        for isa in native_isas():
            got = run(artifact, feeds, 2, isa)
            for name in want:
                np.testing.assert_allclose(got[name], want[name], rtol=1e-4, atol=1e-4, err_msg=name)


@pytest.mark.parametrize("node", ["y = ReduceSum(x, axes)", "y = Transpose<perm = [1, 0]>(x)", "y = Softmax<axis = 0>(x)",
                                  "y = Concat<axis = 0>(x, x)", "y = MatMul(c, x)"])
def test_rows_that_vary_stay_rows(node: str) -> None:
    model = parse(f"g (float[batch, 4] x) => (float[a, b] y) {{ {node} }}", axes=np.array([0]), c=draw(3, 2))
    with pytest.raises(UnsupportedError):
        compile_model(model, sizes={"batch": 2}, bounds={"batch": 2})


def test_a_row_symbol_alone() -> None:
    """Row-wise operators over a batch that varies, without packing."""
    model = parse("""g (float[batch, 40] x) => (float[batch, 8] y) {
        a = Gemm(x, w)   s = Softmax(a)   t = Mul(s, scale)   r = Reshape(t, shape)
        n = ReduceMean<keepdims = 0>(r, axes)   y = Tanh(n)
    }""", w=draw(40, 24), scale=draw(24), shape=np.array([-1, 3, 8]), axes=np.array([1]))
    for min_rows in (0, 1000):
        with divided(min_rows):
            artifact, _ = compile_model(model, native_isas(), {"batch": 9}, {"batch": 9})
        for batch in (1, 4, 9):
            feeds = {"x": draw(batch, 40)}
            for isa in native_isas():
                np.testing.assert_allclose(run(artifact, feeds, 2, isa)["y"], expected(model, feeds)["y"], rtol=1e-4, atol=1e-5)
