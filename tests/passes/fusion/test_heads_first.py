"""Attention on joined heads, as ONNX's operator takes it too."""

from __future__ import annotations

import numpy as np
import pytest

from infc.passes.fusion.fuse_attention import FuseAttention
from infc.passes.fusion.heads_first import HeadsFirst
from tests.passes.support import apply, find, graph, ops, unchanged

Q4 = "q_num_heads=4, kv_num_heads=2"
GIVEN = "(float[batch,seq,12] q, float[batch,seq,6] k, float[batch,seq,10] v, int64[batch,seq] attention_mask)"
MASK = ("keep = Cast<to=9>(attention_mask) row = Unsqueeze(keep, axes) column = Unsqueeze(keep, others) off = Not(column) "
        "never = And(column, off) mask = Or(row, never) ")
AXES = {"axes": np.array([1, 2]), "others": np.array([1, 3])}


def test_heads_are_split_and_joined() -> None:
    """Four heads of queries share two of keys; values are wider than keys."""
    model = graph(f"{GIVEN} => (float[batch,seq,20] y) {{ {MASK} y = Attention<{Q4}>(q, k, v, mask) }}", AXES)
    apply(model, HeadsFirst, FuseAttention)
    assert ops(model)["PaddedAttention"] == 1


@pytest.mark.parametrize("settings", ["", ", is_causal=1", ", scale=0.3", ", softcap=2.0"])
def test_settings_stay(settings: str) -> None:
    model = graph(f"{GIVEN} => (float[batch,seq,20] y) {{ y = Attention<{Q4}{settings}>(q, k, v) }}")
    apply(model, HeadsFirst)
    assert len(find(model, "Attention").inputs) == 3
    assert ops(model)["Transpose"] == 4


@pytest.mark.parametrize("text", [
    f"{GIVEN} => (float[batch,seq,20] y, float[batch,4,seq,seq] s) "
    f"{{ y, pk, pv, s = Attention<{Q4}>(q, k, v) }}",
    "(float[batch,4,seq,3] q, float[batch,2,seq,3] k, float[batch,2,seq,5] v) => "
    "(float[batch,4,seq,5] y) { y = Attention(q, k, v) }",
])
def test_others_are_left(text: str) -> None:
    assert unchanged(graph(text), HeadsFirst) == []
