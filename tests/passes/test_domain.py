"""The function bodies of domain ``infc`` against their definitions in NumPy, run by ONNX Runtime."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infc.passes import domain

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(7)


def run(op: str, inputs: list[Array | None], attributes: dict[str, Any], outputs: int = 1,
        types: tuple[ir.DataType, ...] = ()) -> list[Array]:
    """One node of the domain, alone in a model."""
    values = [
        None if a is None else ir.Value(name=f"in{i}", type=ir.TensorType(ir.DataType.from_numpy(a.dtype)), shape=ir.Shape(a.shape))
        for i, a in enumerate(inputs)
    ]
    node = ir.node(op, values, attributes, domain=domain.DOMAIN, num_outputs=outputs, name="node")
    for i, value in enumerate(node.outputs):
        value.name = f"out{i}"
    graph = ir.Graph([v for v in values if v is not None], node.outputs, nodes=[node], opset_imports={"": 23}, name="g")
    model = ir.Model(graph, ir_version=10)
    domain.add_functions(model)
    for i, value in enumerate(node.outputs):
        value.type = ir.TensorType(types[i] if types else ir.DataType.INT32 if op == "PackTokens" else ir.DataType.FLOAT)
    session = ort.InferenceSession(ir.to_proto(model).SerializeToString(), providers=["CPUExecutionProvider"])
    found = session.run(None, {f"in{i}": a for i, a in enumerate(inputs) if a is not None})
    domain.strip_functions(model)
    assert not model.functions
    assert node.overload == ""
    return found


def normal(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


REFERENCE = {
    "": lambda x: x,
    "relu": lambda x: np.maximum(x, 0),
    "tanh": np.tanh,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "quick_gelu": lambda x: x / (1 + np.exp(-1.702 * x)),
    "gelu_erf": lambda x: x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2))),
    "gelu_tanh": lambda x: x * 0.5 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "hard_swish": lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
    "relu6": lambda x: np.clip(x, 0, 6),
}


def test_every_activation_is_tested() -> None:
    assert set(REFERENCE) == set(domain.ACTIVATIONS)


@pytest.mark.parametrize("activation", REFERENCE)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("residual", [True, False])
def test_linear(activation: str, bias: bool, residual: bool) -> None:
    x, w, b, r = normal(2, 3, 4), normal(4, 5), normal(5), normal(2, 3, 5)
    (found,) = run("Linear", [x, w, b if bias else None, r if residual else None], {"activation": activation})
    expected = REFERENCE[activation](x @ w + (b if bias else 0)) + (r if residual else 0)
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("kind", ["layer", "rms"])
@pytest.mark.parametrize("beta", [True, False])
def test_add_norm(kind: str, beta: bool) -> None:
    x, r, gamma, b = normal(2, 3, 8), normal(2, 3, 8), normal(8), normal(8)
    y, total = run("AddNorm", [x, r, gamma, b if beta else None], {"kind": kind, "epsilon": 1e-3}, outputs=2)
    s = x + r
    centred = s - s.mean(-1, keepdims=True) if kind == "layer" else s
    expected = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-3) * gamma + (b if beta else 0)
    np.testing.assert_allclose(y, expected, atol=1e-5)
    np.testing.assert_allclose(total, s, atol=1e-6)


def test_l2_normalize() -> None:
    x = normal(3, 5)
    x[1] = 0
    (found,) = run("L2Normalize", [x], {"epsilon": 1e-12})
    np.testing.assert_allclose(found, x / np.maximum(np.sqrt((x**2).sum(-1, keepdims=True)), 1e-12), atol=1e-6)


@pytest.mark.parametrize("pairs", [2, 3, 4])
def test_embedding_sum(pairs: int) -> None:
    tables = [normal(6 + i, 4) for i in range(pairs)]
    ids: list[Array] = [RNG.integers(0, 6, (1, 3) if i == 1 else (2, 3)) for i in range(pairs)]
    (found,) = run("EmbeddingSum", [a for pair in zip(ids, tables, strict=True) for a in pair], {})
    np.testing.assert_allclose(found, sum(t[i] for i, t in zip(ids, tables, strict=True)), atol=1e-6)


def attention(q: Array, k: Array, v: Array, mask: Array, heads: int, kv_heads: int, scale: float) -> Array:
    """Textbook attention; a sequence without keys gives zeros."""
    batch, seq, _ = q.shape

    def split(x: Array, n: int) -> Array:
        return np.repeat(x.reshape(batch, seq, n, -1).transpose(0, 2, 1, 3), heads // n, 1)

    scores = np.where(mask[:, None, None, :] != 0, split(q, heads) @ split(k, kv_heads).transpose(0, 1, 3, 2) * scale, -np.inf)
    with np.errstate(invalid="ignore"):
        p = np.exp(scores - scores.max(-1, keepdims=True))
        p = np.nan_to_num(p / p.sum(-1, keepdims=True))
    y: Array = (p @ split(v, kv_heads)).transpose(0, 2, 1, 3).reshape(batch, seq, -1)
    return y


@pytest.mark.parametrize("dtype", [np.int64, np.bool_])
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_padded_attention(kv_heads: int, dtype: type) -> None:
    q, k, v = normal(2, 5, 4 * 3), normal(2, 5, kv_heads * 3), normal(2, 5, kv_heads * 2)
    mask = np.array([[1, 1, 0, 1, 0], [0, 0, 0, 0, 0]]).astype(dtype)
    (found,) = run("PaddedAttention", [q, k, v, mask], {"num_heads": 4, "kv_num_heads": kv_heads, "scale": 0.3})
    np.testing.assert_allclose(found, attention(q, k, v, mask, 4, kv_heads, 0.3), atol=1e-5)


@pytest.mark.parametrize("kind", ["mean", "sum", "max"])
def test_segment_pool(kind: str) -> None:
    x, mask = normal(3, 4, 5), np.array([[1, 1, 0, 1], [0, 1, 0, 0], [0, 0, 0, 0]])
    (found,) = run("SegmentPool", [x, mask], {"kind": kind, "epsilon": 1e-9})
    np.testing.assert_allclose(found, [pooled(x[b][mask[b] != 0], kind, 5) for b in range(3)], atol=1e-6)


def pooled(rows: Array, kind: str, width: int) -> Array:
    return np.zeros(width, np.float32) if len(rows) == 0 else getattr(rows, kind)(0)


masks = st.integers(1, 4).flatmap(
    lambda b: st.integers(1, 6).flatmap(
        lambda s: st.lists(st.lists(st.integers(0, 1), min_size=s, max_size=s), min_size=b, max_size=b)
    )
)


@settings(max_examples=25, deadline=None)
@given(masks, st.booleans())
def test_packed_operators_agree_with_the_rectangle(rows: list[list[int]], keep_first: bool) -> None:
    mask = np.array(rows)
    batch, seq = mask.shape
    index, column, offsets, key_start = run("PackTokens", [mask], {"keep_first": int(keep_first)}, outputs=4)
    keep = mask != 0
    if keep_first:
        keep = keep.copy()
        keep[:, 0] = True
    assert index.tolist() == np.flatnonzero(keep).tolist()
    assert column.tolist() == (np.flatnonzero(keep) % seq).tolist()
    assert offsets.tolist() == [0, *np.cumsum(keep.sum(1)).tolist()]
    assert (key_start - offsets[:-1]).tolist() == [int(keep_first and not row[0]) for row in rows]

    x = normal(batch, seq, 6)
    (packed,) = run("PackRows", [x, index], {})
    np.testing.assert_array_equal(packed, x.reshape(-1, 6)[index])
    (unpacked,) = run("UnpackRows", [packed, index, mask], {})
    np.testing.assert_array_equal(unpacked, np.where(keep[..., None], x, 0))
    if len(index) == 0:
        return
    (attended,) = run(
        "VarlenAttention", [packed, packed, packed, offsets, key_start], {"num_heads": 2, "kv_num_heads": 2, "scale": 0.5}
    )
    np.testing.assert_allclose(attended, attention(x, x, x, mask, 2, 2, 0.5).reshape(-1, 6)[index], atol=1e-5)
    for kind in ("mean", "sum", "max"):
        (reduced,) = run("SegmentReduce", [packed, offsets, key_start], {"kind": kind, "epsilon": 1e-9})
        np.testing.assert_allclose(reduced, [pooled(x[b][mask[b] != 0], kind, 6) for b in range(batch)], atol=1e-5)
    (first,) = run("SegmentReduce", [packed, offsets, key_start], {"kind": "first", "epsilon": 0.0})
    np.testing.assert_array_equal(first, [x[b][keep[b]][0] if keep[b].any() else np.zeros(6) for b in range(batch)])


def quantized(x: Array, group: int, symmetric: bool) -> tuple[Array, Array, Array | None]:
    """q, scale and zero by the definition, in float32."""
    one = np.float32(1)
    grouped = x.reshape(*x.shape[:-1], -1, group or x.shape[-1])
    low, high = np.minimum(grouped.min(-1), 0), np.maximum(grouped.max(-1), 0)
    scale = np.maximum(high, -low) / np.float32(127) if symmetric else (high - low) / np.float32(255)
    scale = np.where(scale < np.float32(2.0**-126), one, scale)
    inverse = (one / scale)[..., None]
    zero = None if symmetric else np.rint(-low * inverse[..., 0])
    q = np.rint(grouped * inverse) + (0 if zero is None else zero[..., None])
    q = np.clip(q, -127, 127).astype(np.int8) if zero is None else np.clip(q, 0, 255).astype(np.uint8)
    return q.reshape(x.shape), scale, None if zero is None else zero.astype(np.uint8)


@pytest.mark.parametrize("group", [0, 4])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("shape", [(2, 3, 8), (5, 8), (8,)])
def test_quantize_rows(group: int, symmetric: bool, shape: tuple[int, ...]) -> None:
    x = normal(*shape)
    x[..., :4] = np.abs(x[..., :4])
    if len(shape) > 1:
        x[0], x[1] = 0, 1e-42
    types = (ir.DataType.INT8, ir.DataType.FLOAT) if symmetric else (ir.DataType.UINT8, ir.DataType.FLOAT, ir.DataType.UINT8)
    found = run("QuantizeRows", [x], {"group": group, "symmetric": int(symmetric)}, len(types), types)
    expected = [e for e in quantized(x, group, symmetric) if e is not None]
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a, b)
    (back,) = run("DequantizeRows", found, {"group": group})
    step = np.repeat(expected[1], group or shape[-1], -1)
    assert (np.abs(back - x) <= step * 0.501).all()


def int8_weight(k: int, n: int, block: int) -> tuple[Array, Array, Array]:
    w = RNG.integers(-128, 128, (k, n)).astype(np.int8)
    scale = RNG.uniform(0.01, 0.02, (k // block, n) if block else n).astype(np.float32)
    return w, scale, w.astype(np.float32) * (np.repeat(scale, block, 0) if block else scale)


@pytest.mark.parametrize("group", [None, 0, 4])
@pytest.mark.parametrize("block", [0, 16])
@pytest.mark.parametrize("first", [0, 1])
def test_quantized_linear(group: int | None, block: int, first: int) -> None:
    x, bias, residual = normal(2, 3, 32), normal(5), normal(2, 3, 5)
    w, w_scale, real = int8_weight(32, 5, block)
    if group is None:
        scale, zero = np.array(0.05, np.float32), np.array(77, np.uint8)
        q: Array = np.clip(np.rint(x / scale) + 77, 0, 255).astype(np.uint8)
        a = (q.astype(np.float32) - 77) * scale
    else:
        q, scale, point = quantized(x, group, False)
        assert point is not None
        zero, size = point, group or 32
        a = (q.astype(np.float32) - np.repeat(zero, size, -1)) * np.repeat(scale, size, -1)
    (found,) = run("QuantizedLinear", [q, scale, zero, w, w_scale, None, bias, residual],
                   {"activation": "relu", "residual_first": first, "group": group or 0, "block": block})
    p = a @ real + bias
    expected = np.maximum(p + residual, 0) if first else np.maximum(p, 0) + residual
    np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.mark.parametrize("zero", [None, np.array(3, np.int8)])
def test_quantized_linear_of_a_16_bit_type_with_a_quantised_result(zero: Array | None) -> None:
    x, w = normal(4, 8).astype(np.float16), normal(8, 5).astype(np.float16)
    step = np.array(0.1, np.float32)
    (found,) = run("QuantizedLinear", [x, None, None, w, None, None, None, None, step, zero], {"activation": "relu"},
                   types=(ir.DataType.UINT8 if zero is None else ir.DataType.INT8,))
    exact = np.maximum(x.astype(np.float32) @ w.astype(np.float32), 0) / step + (0 if zero is None else 3)
    assert np.abs(found.astype(np.float32) - np.clip(exact, 0, 255 if zero is None else 127)).max() < 0.51
