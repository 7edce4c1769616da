from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from infc.compiler.errors import UsageError
from infc.passes.base import PassManager
from infc.passes.cleanup.common_subexpressions import CommonSubexpressions
from infc.passes.cleanup.constant_folding import ConstantFolding
from infc.passes.cleanup.dead_code import DeadCode
from infc.passes.cleanup.identities import Identities
from infc.passes.cleanup.normalise import Normalise
from infc.passes.cleanup.reshape_transpose import ReshapeTranspose
from infc.passes.graph import MODULE, dims
from infc.passes.shapes import Shapes, broadcast, reshape_target
from tests.passes.support import apply, find, graph, normal, ops, unchanged

F = np.float32
XY = "(float[batch,seq,8] x) => (float[batch,seq,8] y)"
I = {
    "zero": np.array([0]),
    "one": np.array([1]),
    "two": np.array([2]),
    "last": np.array([-1]),
    "s0": np.array(0),
    "s1": np.array(1),
    "heads": np.array([2]),
    "four": np.array([4]),
    "eight": np.array([8]),
    "big": np.array([1 << 62]),
}


# --- identities ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        "a = Identity(x)",
        "a = Dropout(x)",
        "a = Cast<to=1>(x)",
        "a = Reshape(x, keep)",
        "a = Transpose<perm=[0,1,2]>(x)",
        "a = Slice(x, zero, big, two)",
        "a = Expand(x, ones)",
        "a = Mul(x, unit)",
        "a = Mul(units, x)",
        "a = Div(x, unit)",
        "a = Add(x, nil)",
        "a = Sub(x, nil)",
        "a = Concat<axis=1>(x)",
        "a = Sum(x)",
        "a = Max(x)",
    ],
)
def test_identity(body: str) -> None:
    model = graph(
        f"{XY} {{ {body} y = Neg(a) }}",
        I | {"keep": np.array([0, 0, 8]), "ones": np.array([1, 1, 8]), "unit": F(1), "units": np.ones((1, 8), F), "nil": F(0)},
    )
    apply(model, Identities)
    assert ops(model) == {"Neg": 1}


@pytest.mark.parametrize(
    "body",
    [
        "i = Cast<to=7>(x) a = Cast<to=1>(i)",
        "a = Reshape(x, swap)",
        "a = Transpose<perm=[0,2,1]>(x)",
        "a = Slice(x, one, big, two)",
        "a = Slice(x, last, bottom, two, last)",
        "a = Mul(x, almost)",
        "a = Sub(nil, x)",
        "a = Div(unit, x)",
        "a = Mul(x, rows)",
        "a = Concat<axis=2>(x, x)",
    ],
)
def test_no_identity(body: str) -> None:
    model = graph(
        f"(float[batch,seq,8] x) => (float[p,q,r] y) {{ {body} y = Neg(a) }}",
        I
        | {
            "swap": np.array([0, 8, -1]),
            "almost": F(1.001),
            "nil": F(0),
            "unit": F(1),
            "bottom": np.array([-(1 << 62)]),
            "rows": np.array([1] * 7 + [2], F),
        },
    )
    unchanged(model, Identities)


def test_a_broadcasting_one_is_no_identity() -> None:
    unchanged(graph("(float[batch,1,8] x) => (float[batch,7,8] y) { y = Mul(x, ones) }", {"ones": np.ones((7, 8), F)}), Identities)


def test_identity_of_an_output() -> None:
    model = graph(f"{XY} {{ a = Neg(x) y = Identity(a) }}")
    apply(model, Identities)
    assert ops(model) == {"Neg": 1}
    assert model.graph.outputs[0].name == "y"


def test_an_input_that_is_an_output_keeps_its_identity() -> None:
    unchanged(graph(f"{XY} {{ y = Identity(x) }}"), Identities)


def test_one_value_for_two_outputs_keeps_an_identity() -> None:
    model = graph("(float[batch,8] x) => (float[batch,8] y, float[batch,8] z) { a = Neg(x) y = Identity(a) z = Identity(a) }")
    apply(model, Identities)
    assert ops(model) == {"Neg": 1, "Identity": 1}


def test_expand_before_an_operator_that_broadcasts() -> None:
    text = "(float[batch,8] x, float[batch,1] n) => (float[batch,8] y{}) {{ s = Shape(x) e = Expand(n, s) y = Div(x, e) {} }}"
    model = graph(text.format("", ""))
    apply(model, Identities)
    assert ops(model) == {"Div": 1}
    model = graph(text.format(", float[batch,8] z", "z = Neg(e)"))
    apply(model, Identities)
    assert ops(model) == {"Shape": 1, "Expand": 1, "Div": 1, "Neg": 1}
    assert find(model, "Div").inputs[1].name == "n"  # type: ignore[union-attr]


def test_expand_that_makes_the_result_larger_stays() -> None:
    unchanged(
        graph("(float[1,8] x, float[batch,1] n) => (float[batch,8] y) { s = Shape(n) e = Expand(x, s) y = Neg(e) }"), Identities
    )


# --- reshape and transpose -----------------------------------------------------------------------------------------------------


def test_transposes_join_or_cancel() -> None:
    model = graph(
        "(float[batch,seq,8] x) => (float[seq,8,batch] y) { a = Transpose<perm=[0,2,1]>(x) y = Transpose<perm=[2,1,0]>(a) }"
    )
    apply(model, ReshapeTranspose)
    assert find(model, "Transpose").attributes["perm"].value == (1, 2, 0)
    model = graph(f"{XY} {{ n = Neg(x) a = Transpose<perm=[2,0,1]>(n) y = Transpose<perm=[1,2,0]>(a) }}")
    apply(model, ReshapeTranspose)
    assert ops(model) == {"Neg": 1}


@pytest.mark.parametrize(
    ("body", "left"),
    [
        ("n = Neg(x) a = Reshape(n, split) y = Reshape(a, join)", {"Neg": 1}),
        ("n = Neg(x) a = Unsqueeze(n, one) y = Squeeze(a, one)", {"Neg": 1}),
        ("n = Neg(x) a = Reshape(n, flat) b = Reshape(a, join) y = Exp(b)", None),
    ],
)
def test_reshapes(body: str, left: dict[str, int] | None) -> None:
    model = graph(
        f"{XY} {{ {body} }}", I | {"split": np.array([0, 0, 2, 4]), "join": np.array([0, 0, 8]), "flat": np.array([-1, 8])}
    )
    if left is None:
        model = graph(
            "(float[batch,seq,8] x) => (float[p,8] y) { a = Unsqueeze(x, one) y = Reshape(a, flat) }",
            I | {"flat": np.array([-1, 8])},
        )
        apply(model, ConstantFolding, ReshapeTranspose)
        assert ops(model) == {"Reshape": 1}
    else:
        apply(model, ReshapeTranspose)
        assert ops(model) == left


def test_a_reshape_between_users_serves_the_others() -> None:
    model = graph(
        "(float[batch,seq,8] x) => (float[batch,seq,8] y, float[batch,seq,2,4] a) "
        "{ n = Neg(x) a = Reshape(n, split) y = Reshape(a, join) }",
        {"split": np.array([0, 0, 2, 4]), "join": np.array([0, 0, 8])},
    )
    apply(model, ReshapeTranspose)
    assert ops(model) == {"Neg": 1, "Reshape": 1}


# --- constant folding ----------------------------------------------------------------------------------------------------------

SHAPE_CHAINS = {
    "gather, concat": "s = Shape(x) b = Gather(s, zero) n = Gather(s, one) t = Concat<axis=0>(b, n, heads, four) a = Reshape(x, t)",
    "scalars": "s = Shape(x) b = Gather(s, s0) n = Gather(s, s1) bu = Unsqueeze(b, zero) nu = Unsqueeze(n, zero) "
    "t = Concat<axis=0>(bu, nu, heads, last) a = Reshape(x, t)",
    "slice": "s = Shape(x) l = Slice(s, zero, two) t = Concat<axis=0>(l, heads, four) a = Reshape(x, t)",
    "attributes": "b = Shape<start=0,end=1>(x) n = Shape<start=1,end=2>(x) t = Concat<axis=0>(b, n, last, four) a = "
    "Reshape<allowzero=1>(x, t)",
    "arithmetic": "s = Shape(x) l = Slice(s, zero, two) w = Slice(s, two, big) h = Div(w, four) t = Concat<axis=0>(l, "
    "h, four) a = Reshape(x, t)",
    "of another value": "z = Neg(x) s = Shape(z) l = Slice(s, zero, two) t = Concat<axis=0>(l, heads, four) a = Reshape(x, t)",
}


@pytest.mark.parametrize("chain", SHAPE_CHAINS)
def test_shape_chains_before_a_reshape(chain: str) -> None:
    model = graph(f"(float[batch,seq,8] x) => (float[batch,seq,2,4] y) {{ {SHAPE_CHAINS[chain]} y = Exp(a) }}", I)
    apply(model, ConstantFolding, DeadCode)
    assert ops(model) == {"Reshape": 1, "Exp": 1}
    assert find(model, "Reshape").inputs[1].const_value.numpy().tolist() == [0, 0, 2, 4]  # type: ignore[union-attr]


def test_a_product_of_symbols_becomes_one_inferred_dimension() -> None:
    text = "s = Shape(x) b = Gather(s, zero) n = Gather(s, one) m = Mul(b, n) t = Concat<axis=0>(m, eight) y = Reshape(x, t)"
    model = graph(f"(float[batch,seq,8] x) => (float[p,8] y) {{ {text} }}", I)
    apply(model, ConstantFolding, DeadCode)
    assert find(model, "Reshape").inputs[1].const_value.numpy().tolist() == [-1, 8]  # type: ignore[union-attr]


def test_two_dimensions_of_another_tensor_stay_computed() -> None:
    model = graph(
        "(float[p,8] x, float[batch,seq] z) => (float[batch,seq,8] y) "
        "{ s = Shape(z) t = Concat<axis=0>(s, eight) y = Reshape(x, t) }",
        I,
    )
    PassManager([ConstantFolding]).run(model)
    assert ops(model) == {"Shape": 1, "Concat": 1, "Reshape": 1}


def test_expand_by_the_torchscript_exporters_where() -> None:
    text = (
        "s = Shape(x) o = ConstantOfShape<value=int64[1] {1}>(three) m = Mul(o, minus) e = Equal(s, m) w = Where(e, o, s) "
        "a = Expand(n, w) y = Add(a, x)"
    )
    model = graph(
        f"(float[batch,seq,8] x, float[batch,seq,1] n) => (float[batch,seq,8] y) {{ {text} }}",
        {"three": np.array([3]), "minus": np.array([-1])},
    )
    apply(model, ConstantFolding, Identities, DeadCode)
    assert ops(model) == {"Add": 1}


def test_constants_fold() -> None:
    model = graph(
        "(float[batch,8] x) => (float[batch,4] y) { t = Transpose(w) h = Mul(t, half) y = MatMul(x, h) }",
        {"w": normal(4, 8), "half": F(0.5)},
    )
    apply(model, ConstantFolding)
    assert ops(model) == {"MatMul": 1}
    np.testing.assert_allclose(find(model, "MatMul").inputs[1].const_value.numpy(), normal(4, 8).T * 0.5)  # type: ignore[union-attr]


def test_a_constant_that_would_grow_large_stays() -> None:
    model = graph(
        "(float[batch,8] x) => (float[2000,1000] y) { e = Expand(c, size) s = ReduceSum<keepdims=0>(x) y = Add(e, s) }",
        {"c": F(1.5), "size": np.array([2000, 1000])},
    )
    apply(model, ConstantFolding, atol=1e-4)
    assert ops(model)["Expand"] == 1


def test_quantised_constants_stay() -> None:
    model = graph(
        "(float[batch,8] x) => (float[batch,4] y) { d = DequantizeLinear(w, scale) y = MatMul(x, d) }",
        {"w": np.arange(32, dtype=np.int8).reshape(8, 4), "scale": F(0.1)},
    )
    apply(model, ConstantFolding)
    assert ops(model)["DequantizeLinear"] == 1


# --- shapes --------------------------------------------------------------------------------------------------------------------


def test_shapes_of_an_unannotated_file() -> None:
    model = graph(
        "(float[batch,seq,8] x, int64[batch,seq] ids) => (float[u,v,w] y) "
        "{ s = Shape(ids) n = Gather(s, one) p = Slice(table, zero, n, zero) "
        "e = Add(x, p) h = Reshape(e, heads4) t = Transpose<perm=[0,2,1,3]>(h) k = MatMul(t, t2) r = "
        "ReduceMax<keepdims=0>(k, last) y = Exp(r) }",
        I | {"table": normal(40, 8), "heads4": np.array([0, 0, 2, 4]), "t2": normal(4, 5)},
    )
    for node in model.graph:
        node.outputs[0].shape = None
        node.outputs[0].type = None if node.outputs[0] is not model.graph.outputs[0] else node.outputs[0].type
    Shapes(model)
    assert {n.outputs[0].name: dims(n.outputs[0]) for n in model.graph} == {
        "s": (2,),
        "n": (1,),
        "p": ("Min(40, seq)", 8),
        "e": ("batch", "seq", 8),
        "h": ("batch", "seq", 2, 4),
        "t": ("batch", 2, "seq", 4),
        "k": ("batch", 2, "seq", 5),
        "r": ("batch", 2, "seq"),
        "y": ("batch", 2, "seq"),
    }


def test_names_that_exporters_make_up_give_way() -> None:
    model = graph(f"{XY} {{ a = Neg(x) y = Exp(a) }}")
    model.graph[0].outputs[0].shape = ir.Shape(["batch", "Nega_dim_1", 8])
    Shapes(model)
    assert dims(model.graph[0].outputs[0]) == ("batch", "seq", 8)


@pytest.mark.parametrize(
    ("shapes", "expected"),
    [
        ([("b", "s", 8), (8,)], ("b", "s", 8)),
        ([("b", 1, 8), (1, "s", 1)], ("b", "s", 8)),
        ([("s",), ("Min(512, s)",)], ("s",)),
        ([("b",), ("s",)], None),
        ([("b",), (None,)], None),
        ([(3,), ("s",)], None),
        ([(), (2, 1)], (2, 1)),
    ],
)
def test_broadcast(shapes: list[tuple[int | str | None, ...]], expected: tuple[int | str, ...] | None) -> None:
    assert broadcast(*shapes) == expected


@pytest.mark.parametrize(
    ("source", "wanted", "target"),
    [
        (("b", "s", 8), ("b", "s", 2, 4), [0, 0, 2, 4]),
        (("b", "s", 8), ("b*s", 8), [-1, 8]),
        (("b*s", 8), ("b", "s", 8), None),
        (("b", None), ("b", 4), None),
        ((6, 4), (2, 12), [2, 12]),
        (("b", 1, "s"), ("b", "s"), [0, -1]),
    ],
)
def test_reshape_target(source: tuple[int | str | None, ...], wanted: tuple[int | str, ...], target: list[int] | None) -> None:
    assert reshape_target(source, wanted) == target


# --- the rest ------------------------------------------------------------------------------------------------------------------


def test_common_subexpressions() -> None:
    model = graph(
        "(float[batch,8] x) => (float[batch,8] y) "
        "{ a = Add(x, c) b = Add(x, d) e = Exp(a) f = Exp(b) y = Sub(e, f) z = Neg(b) q = Neg(z) }",
        {"c": normal(8), "d": normal(8)},
    )
    records = PassManager([CommonSubexpressions, DeadCode]).run(model)
    assert ops(model) == {"Add": 1, "Exp": 1, "Sub": 1}
    assert set(records[0].matches) == {"n_b", "n_f"}
    assert set(records[1].matches) == {"n_z", "n_q"}


def test_different_attributes_are_different_expressions() -> None:
    unchanged(
        graph("(float[batch,8] x) => (float[batch,8] y) { a = Softmax<axis=0>(x) b = Softmax<axis=1>(x) y = Sub(a, b) }"),
        CommonSubexpressions,
    )


def test_dead_code_drops_initializers() -> None:
    model = graph(f"{XY} {{ a = Mul(x, w) y = Neg(x) }}", {"w": normal(8)})
    apply(model, DeadCode)
    assert ops(model) == {"Neg": 1}
    assert not model.graph.initializers


def test_normalise_lifts_constants_and_converts_the_opset() -> None:
    model = graph(
        "(float[batch,8] x) => (float[batch,1] y) { c = Constant<value_float=0.5>() a = Mul(x, c) y = ReduceMean<axes=[1]>(a) }",
        opset=17,
    )
    apply(model, Normalise)
    assert ops(model) == {"Mul": 1, "ReduceMean": 1}
    assert model.opset_imports[""] == 23


def test_normalise_keeps_modules_and_strips_the_exporters_metadata() -> None:
    model = graph(f"{XY} {{ y = Neg(x) }}")
    model.graph[0].metadata_props.update(
        {
            "namespace": ": __main__.W/model: a.Bert/model.encoder: b.Encoder/neg: aten.neg.default",
            "pkg.torch.onnx.stack_trace": "File x.py, line 3",
        }
    )
    apply(model, Normalise)
    assert dict(model.graph[0].metadata_props) == {MODULE: "model.encoder"}


def test_normalise_names_every_node() -> None:
    model = graph(f"{XY} {{ a = Neg(x) y = Neg(a) }}")
    for node in model.graph:
        node.name = None
    PassManager([Normalise]).run(model)
    assert len({n.name for n in model.graph}) == 2


def test_an_operator_that_meant_something_else_is_an_error() -> None:
    with pytest.raises(UsageError, match="the meaning it had at opset 6"):
        PassManager([Normalise]).run(graph("(float[4] x) => (float[4] y) { y = Add(x, x) }", opset=6))


@pytest.mark.parametrize("opset", [-1, 1000])
def test_an_opset_that_is_not_read_is_an_error(opset: int) -> None:
    with pytest.raises(UsageError, match=f"opset is {opset}"):
        PassManager([Normalise]).run(graph(f"{XY} {{ y = Neg(x) }}", opset=opset))


@pytest.mark.parametrize(("source", "to"), [("int32", 7), ("int64", 6)])
def test_a_look_up_reads_whole_numbers_of_either_width(source: str, to: int) -> None:
    text = f"({source}[n] i, float[10,4] t) => (float[n,4] y) {{ j = Cast<to={to}>(i) y = Gather(t, j) }}"
    model = graph(text)
    apply(model, Identities)
    assert ops(model) == {"Gather": 1}


def test_a_cast_that_others_read_stays_for_them() -> None:
    model = graph("(int64[n] i, float[10,4] t) => (float[n,4] y, int32[n] z) { j = Cast<to=6>(i) y = Gather(t, j) z = Add(j, j) }")
    apply(model, Identities)
    assert ops(model) == {"Gather": 1, "Cast": 1, "Add": 1}
    assert find(model, "Gather").inputs[1] is model.graph.inputs[0]


@pytest.mark.parametrize("text", ["(float[n] i, float[10,4] t) => (float[n,4] y) { k = Abs(i) j = Cast<to=7>(k) y = Gather(t, j) }",
                                  "(int64[n] i) => (int32[n] y) { y = Cast<to=6>(i) }"])
def test_a_cast_that_changes_numbers_stays(text: str) -> None:
    assert unchanged(graph(text), Identities) == []
