from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from infc.passes.base import Pass
from infc.passes.cleanup.constant_folding import ConstantFolding
from infc.passes.cleanup.dead_code import DeadCode
from infc.passes.cleanup.reshape_transpose import ReshapeTranspose
from infc.passes.fusion.merge_heads import MergeHeads
from infc.passes.fusion.write_out_attention import WriteOutAttention
from infc.passes.graph import dims
from tests.passes.support import Array, apply, find, graph, normal, ops, unchanged

PASSES: tuple[type[Pass], ...] = (ConstantFolding, WriteOutAttention, ReshapeTranspose, MergeHeads, DeadCode)
C: dict[str, Array] = {
    "heads": np.array([0, 0, 2, 4]),
    "one_head": np.array([0, 0, 1, 4]),
    "wide": np.array([0, 0, 1, 8]),
    "joined": np.array([0, 0, 8]),
    **{f"w{n}": normal(8, 8, seed=i) for i, n in enumerate("qkv")},
    **{f"b{n}": normal(8, seed=i + 3) for i, n in enumerate("qkv")},
    **{f"n{n}": normal(8, 4, seed=i + 6) for i, n in enumerate("kv")},
    **{f"c{n}": normal(4, seed=i + 9) for i, n in enumerate("kv")},
    "table": normal(7, 8),
}


def branch(name: str, *, weight: str = "w", bias: str = "b", heads: str = "heads", x: str = "x") -> str:
    product = f"{name}m = MatMul({x}, {weight}{name}) "
    shifted = f"{name}a = Add({bias}{name}, {name}m) " if bias else f"{name}a = Identity({name}m) "
    if not bias:
        product, shifted = f"{name}a = MatMul({x}, {weight}{name}) ", ""
    return product + shifted + f"{name}r = Reshape({name}a, {heads}) {name} = Transpose<perm=[0,2,1,3]>({name}r) "


def model(
    body: str, attention: str = "a = Attention(q, k, v)", parameters: str = "float[batch,seq,8] x", more: str = ""
) -> ir.Model:
    tail = "at = Transpose<perm=[0,2,1,3]>(a) y = Reshape(at, joined)"
    return graph(f"({parameters}) => (float[batch,seq,8] y{more}) {{ {body} {attention} {tail} }}", C)


THREE = branch("q") + branch("k") + branch("v")


def test_three_products_become_one() -> None:
    m = model(THREE)
    apply(m, *PASSES)
    assert ops(m) == {"MatMul": 3, "Add": 1, "Reshape": 2, "Transpose": 3, "Split": 1, "Mul": 1, "Softmax": 1}
    assert dims(find(m, "Split").inputs[0]) == ("batch", 6, "seq", 4)


def test_the_operator_keeps_its_place() -> None:
    m = model(THREE, "a = Attention<is_causal=1>(q, k, v)")
    apply(m, *PASSES)
    assert ops(m) == {"MatMul": 1, "Add": 1, "Reshape": 2, "Transpose": 2, "Split": 1, "Attention": 1}


def test_grouped_heads() -> None:
    few = branch("k", weight="n", bias="c", heads="one_head") + branch("v", weight="n", bias="c", heads="one_head")
    m = model(branch("q") + few)
    apply(m, *PASSES)
    assert [dims(v) for v in find(m, "Split").outputs] == [("batch", n, "seq", 4) for n in (2, 1, 1)]


def test_keys_transposed_at_once() -> None:
    keys = branch("k").replace("[0,2,1,3]", "[0,2,3,1]")
    m = model(branch("q") + keys + branch("v"), "s = MatMul(q, k) p = Softmax<axis=-1>(s) a = MatMul(p, v)")
    apply(m, *PASSES)
    assert (ops(m)["Split"], ops(m)["Transpose"]) == (1, 3)


def test_one_bias_may_be_missing() -> None:
    m = model(branch("q") + branch("k", bias="") + branch("v"))
    apply(m, *PASSES)
    bias = next(v for v in m.graph.initializers.values() if v.name is not None and v.name.endswith("merged/bias"))
    assert bias.const_value is not None
    assert not bias.const_value.numpy()[8:16].any()


def test_values_projected_after_the_scores() -> None:
    """The merged product stands before its first reader."""
    m = model(
        branch("q") + branch("k"),
        "kd = Transpose<perm=[0,1,3,2]>(k) s = MatMul(q, kd) p = Softmax<axis=-1>(s) " + branch("v") + " a = MatMul(p, v)",
    )
    apply(m, *PASSES)
    assert ops(m)["Split"] == 1


def test_a_cache_that_is_an_output() -> None:
    m = model(THREE, "a = Attention<is_causal=1>(q, k, v)", more=", float[batch,2,seq,4] k")
    apply(m, *PASSES)
    assert ops(m)["Split"] == 1
    assert m.graph.outputs[1].name == "k"


COUNTER = {
    "one bias": (branch("q") + branch("k", bias="") + branch("v", bias=""), []),
    "two values": (branch("q") + branch("k", x="z") + branch("v", x="z"), ["query, key and value are not made from one value"]),
    "bias over positions": (THREE.replace("Add(bq, qm)", "Add(table, qm)"), []),
    "a projection read elsewhere": (THREE.replace("Add(bq, qm)", "Add(bq, qm) more = Tanh(qm)"), []),
}


@pytest.mark.parametrize("case", COUNTER)
def test_what_stays(case: str) -> None:
    body, reasons = COUNTER[case]
    more = ", float[batch,seq,8] more" if " more = " in body else ""
    m = model(body, "a = Attention<is_causal=1>(q, k, v)", "float[batch,seq,8] x, float[batch,seq,8] z", more)
    assert unchanged(m, MergeHeads) == reasons


def test_heads_of_other_sizes_stay() -> None:
    keys = branch("k").replace("[0,2,1,3]", "[0,2,3,1]")
    attention = "s = MatMul(q, k) p = Softmax<axis=-1>(s) a = MatMul(p, v)"
    text = f"(float[batch,seq,8] x) => (float[batch,2,seq,8] a) {{ {branch('q')}{keys}{branch('v', heads='wide')} {attention} }}"
    assert unchanged(graph(text, C), MergeHeads) == ["the heads of query, key and value differ in size or type"]
