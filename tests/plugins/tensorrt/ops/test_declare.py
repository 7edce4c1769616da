from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.gpu.operators import BY_NAME, OPERATORS, table
from tests.gpu.operators import declare as d

NORM, MAT_VEC = BY_NAME["AddRMSNormQuantize"], BY_NAME["Int4MatVec"]
SYMBOLS = ("a", "b", "c")
sizes = st.integers(1, 5000)


def expressions() -> st.SearchStrategy[str]:
    leaves = st.sampled_from(SYMBOLS) | st.integers(1, 300).map(str)
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.builds("({} {} {})".format, inner, st.sampled_from(["+", "*"]), inner),
            st.builds("({} {} {})".format, inner, st.sampled_from(["//", "%"]), st.integers(1, 300)),
            st.builds("{}({}, {})".format, st.sampled_from(["min", "max"]), inner, inner),
            st.builds("ceil_div({}, {})".format, inner, st.integers(1, 300)),
            st.builds("({} {} {})".format, inner, st.sampled_from(["<", "<=", "==", "!=", ">"]), inner),
            st.builds("({0} == {0} and {1} > {2} or {1} < 7)".format, inner, inner, inner),
        ),
        max_leaves=5,
    )


@pytest.fixture(scope="module")
def in_cpp(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], Any]:
    """Some expressions, and a function that evaluates the i-th in C++."""
    texts: list[str] = []

    @given(expressions())
    @settings(database=None, derandomize=True)
    def collect(text: str) -> None:
        texts.append(text)

    collect()
    texts += [
        t for op in OPERATORS for k in op.kernels for t in (k.when, k.grid, k.block) if d.Expression(t).symbols <= set(SYMBOLS)
    ]
    folder = tmp_path_factory.mktemp("expressions")
    cases = "".join(
        f"case {i}: return {d.Expression(t).cpp({n: j for j, n in enumerate(SYMBOLS)})};\n" for i, t in enumerate(texts)
    )
    (folder / "e.cpp").write_text(
        table.HEADER + '}\nusing namespace infc_ops;\nextern "C" int64_t evaluate(int i, const int64_t *s) {\n'
        f"switch (i) {{\n{cases}}}\nreturn -1;\n}}\n"
    )
    subprocess.run(
        ["g++", "-std=c++17", "-w", "-shared", "-fPIC", f"-I{d.HERE}", "-o", str(folder / "e.so"), str(folder / "e.cpp")],
        check=True,
    )
    evaluate = ctypes.CDLL(str(folder / "e.so")).evaluate
    evaluate.restype = ctypes.c_int64
    return texts, evaluate


@given(st.tuples(sizes, sizes, sizes))
def test_an_expression_means_in_cpp_what_it_means_in_python(in_cpp: tuple[list[str], Any], values: tuple[int, int, int]) -> None:
    texts, evaluate = in_cpp
    array = (ctypes.c_int64 * 3)(*values)
    for i, text in enumerate(texts):
        expected = d.Expression(text)(dict(zip(SYMBOLS, values, strict=True)))
        if abs(expected) < 2**63:
            assert evaluate(i, array) == expected, text


@pytest.mark.parametrize(
    "text", ["a / b", "a if b else c", "-a", "a ** 2", "a.b", "a < b < c", "not a", "a - b if c else 1", "[a]"]
)
def test_what_cpp_reads_otherwise_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="means something else in C"):
        d.Expression(text)


def test_sizes_bind_symbols_and_leading_dimensions_their_product() -> None:
    shapes = {"x": (2, 3, 64), "residual": (2, 3, 64), "gamma": (64,), "scale": (1,)}
    symbols = NORM.bind(shapes, {})
    assert symbols == {"rows": 6, "hidden": 64, "output_dtype": 3}
    assert NORM.output_shapes(shapes, symbols) == {"y": (2, 3, 64), "sum": (2, 3, 64)}
    assert NORM.kernel(symbols, {"T": "bf16", "Q": "fp8"}).name == "add_rms_norm_bf16_fp8_warp"
    assert NORM.grid(NORM.kernels[0], symbols) == (2, 128)


@pytest.mark.parametrize(
    ("op", "shapes", "attributes", "message"),
    [
        (NORM, {"x": (2, 12), "residual": (2, 12), "gamma": (12,), "scale": (1,)}, {}, "multiple of 8"),
        (NORM, {"x": (2, 16), "residual": (3, 16), "gamma": (16,), "scale": (1,)}, {}, "residual has 3 for rows, not 2"),
        (NORM, {"x": (2, 16), "residual": (2, 16), "gamma": (8,), "scale": (1,)}, {}, "gamma has 8 for hidden, not 16"),
        (NORM, {"x": (2, 16), "residual": (2, 16), "gamma": (16,), "scale": (2,)}, {}, "scale has 2 for 1, not 1"),
        (NORM, {"x": (2, 16), "residual": (2, 16), "gamma": (16,)}, {}, "scale is missing"),
        (NORM, {"x": (), "residual": (2, 16), "gamma": (16,), "scale": (1,)}, {}, "x has shape"),
        (MAT_VEC, {"x": (9, 128), "w": (4, 32), "scales": (4, 1)}, {}, "one to eight rows"),
        (MAT_VEC, {"x": (1, 128), "w": (4, 16), "scales": (4, 1)}, {}, "w has 16 for"),
        (MAT_VEC, {"x": (1, 128), "w": (4, 32), "scales": (4, 2)}, {}, "scales has 2 for"),
        (MAT_VEC, {"x": (1, 128), "w": (4, 32), "scales": (4, 8)}, {"group_size": 16}, "group_size must be"),
        (MAT_VEC, {"x": (1, 160), "w": (4, 32), "scales": (4, 1)}, {}, "k must be a multiple"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(
    op: d.Operator, shapes: dict[str, Any], attributes: dict[str, float], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        op.bind(shapes, attributes)


def test_names_do_not_clash_with_the_domain_of_the_passes() -> None:
    text = (Path(__file__).parents[4] / "docs" / "domain.md").read_text()
    assert not [op.name for op in OPERATORS if f"`{op.name}`" in text]


@pytest.mark.parametrize("op", OPERATORS, ids=lambda op: op.name)
def test_a_declaration_is_whole(op: d.Operator) -> None:
    assert op.path.exists()
    names = {t.name for t in (*op.inputs, *op.outputs)} | set(op.symbols) | {a.name for a in op.attributes}
    assert set(op.arguments) <= names
    assert {o.name for o in op.outputs} <= set(op.arguments)
    for text in (t for k in op.kernels for t in (k.when, k.grid, k.block)):
        assert d.Expression(text).symbols <= set(op.symbols)
