"""Element types: against NumPy, whose extensions hold the types that it lacks."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from infc.plugins.cpu.types import convert
from infc.plugins.cpu.values import NAMES, NUMPY
from tests.plugins.cpu.harness import bits, compile_model, native_isas, run

INTEGERS = ("i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64")
HALVES = ("f16", "bf16")
SMALL = ("f8e4m3fn", "f8e4m3fnuz", "f8e5m2", "f8e5m2fnuz", "f4e2m1", "i4", "u4", "i2", "u2")


def onnx_type(array: np.ndarray) -> int:
    return int(helper.np_dtype_to_tensor_dtype(array.dtype))


def node_model(op: str, inputs: list[np.ndarray], output: np.ndarray, opset: int = 23, **attributes: object) -> onnx.ModelProto:
    """One node over inputs of these types and shapes."""
    names = [f"x{i}" for i in range(len(inputs))]
    values = [helper.make_tensor_value_info(n, onnx_type(a), a.shape) for n, a in zip(names, inputs, strict=True)]
    made = helper.make_tensor_value_info("y", onnx_type(output), output.shape)
    graph = helper.make_graph([helper.make_node(op, names, ["y"], **attributes)], "g", values, [made])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])


def results(model: onnx.ModelProto, inputs: list[np.ndarray], like: np.ndarray, **options: object) -> list[np.ndarray]:
    """The output on each instruction set."""
    artifact, _ = compile_model(model, native_isas(), **options)  # type: ignore[arg-type]
    feeds = {f"x{i}": bits(a) for i, a in enumerate(inputs)}
    return [run(artifact, feeds, isa=isa)["y"].view(like.dtype) for isa in native_isas()]


def same(got: np.ndarray, want: np.ndarray) -> bool:
    if want.dtype.kind in "iub":
        return bool((got == want).all())
    return np.array_equal(got.astype(np.float64), want.astype(np.float64), equal_nan=True)


def random_of(dtype: str, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Values over all of the type's range, its extremes among them."""
    target = NUMPY[dtype]
    if dtype in INTEGERS:
        limits = np.iinfo(target)
        array = rng.integers(limits.min, limits.max, shape, target, endpoint=True)
        array.reshape(-1)[:3] = limits.min, limits.max, 1
        return array
    return (rng.standard_normal(shape) * 10).astype(np.float32).astype(target)


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div", "Mod", "Min", "Max", "BitwiseAnd", "BitwiseOr", "BitwiseXor"])
@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_wrap_as_numpy_has_it(op: str, dtype: str) -> None:
    rng = np.random.default_rng(3)
    a, b = random_of(dtype, rng, (4, 50)), random_of(dtype, rng, (50,))
    b[b == 0] = 3
    if op == "Div":  # towards zero
        with np.errstate(over="ignore"):
            want = (np.where((a % b != 0) & ((a < 0) != (b < 0)), a // b + np.array(1, a.dtype), a // b)).astype(a.dtype)
    else:
        functions = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Mod": np.mod, "Min": np.minimum, "Max": np.maximum,
                     "BitwiseAnd": np.bitwise_and, "BitwiseOr": np.bitwise_or, "BitwiseXor": np.bitwise_xor}
        with np.errstate(over="ignore"):
            want = functions[op](a, b)
    for got in results(node_model(op, [a, b], want), [a, b], want):
        assert same(got, want)


@pytest.mark.parametrize("op", ["Less", "GreaterOrEqual", "Equal"])
@pytest.mark.parametrize("dtype", [*INTEGERS, *HALVES, "f64"])
def test_comparisons(op: str, dtype: str) -> None:
    rng = np.random.default_rng(4)
    a, b = random_of(dtype, rng, (40,)), random_of(dtype, rng, (40,))
    a[::3] = b[::3]
    want = {"Less": a < b, "GreaterOrEqual": a >= b, "Equal": a == b}[op]
    for got in results(node_model(op, [a, b], want), [a, b], want):
        assert same(got, want)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("op", ["Add", "Mul", "Div", "Exp", "Tanh", "Sqrt", "ReduceSum", "Softmax"])
def test_halves_are_computed_in_f32_and_rounded_once(op: str, dtype: str) -> None:
    rng = np.random.default_rng(5)
    count = 2 if op in ("Add", "Mul", "Div") else 1
    xs = [(np.abs(rng.standard_normal((6, 20))) + 0.05).astype(NUMPY[dtype]) for _ in range(count)]
    wide = [x.astype(np.float32) for x in xs]
    exact = {"Add": lambda a, b: a + b, "Mul": lambda a, b: a * b, "Div": lambda a, b: a / b, "Exp": np.exp, "Tanh": np.tanh,
             "Sqrt": np.sqrt, "ReduceSum": lambda a: a.sum(keepdims=True).reshape(1, 1),
             "Softmax": lambda a: np.exp(a) / np.exp(a).sum(-1, keepdims=True)}[op]
    want = np.asarray(exact(*wide), np.float32).astype(NUMPY[dtype])
    step = np.abs(np.spacing(want) if dtype == "f16" else want.astype(np.float32) * 2.0**-7).astype(np.float32)
    for got in results(node_model(op, xs, want), xs, want):
        assert (np.abs(got.astype(np.float32) - want.astype(np.float32)) <= step).all()


def _chain(dtype: str) -> onnx.ModelProto:
    number = onnx_type(np.zeros(1, NUMPY[dtype]))
    scale = helper.make_tensor("s", number, [1], np.array([300], NUMPY[dtype]).tobytes(), raw=True)
    nodes = [helper.make_node("Mul", ["x0", "s"], ["a"]), helper.make_node("Transpose", ["a"], ["b"], perm=[1, 0]),
             helper.make_node("Concat", ["b", "x1"], ["c"], axis=0), helper.make_node("Div", ["c", "s"], ["y"])]
    values = [helper.make_tensor_value_info(n, number, [2, 2]) for n in ("x0", "x1")]
    graph = helper.make_graph(nodes, "g", values, [helper.make_tensor_value_info("y", number, [4, 2])], [scale])
    return onnx.shape_inference.infer_shapes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)]))


def test_a_chain_of_halves_overflows_only_where_each_operator_rounds() -> None:
    x0, x1 = np.array([[1, 1000], [2, 3]], np.float16), np.array([[300, 600], [0, 3]], np.float16)
    want = np.concatenate([x0.T, (x1.astype(np.float32) / 300).astype(np.float16)])
    for got in results(_chain("f16"), [x0, x1], want):
        assert same(got, want)
    want[1, 0] = np.inf
    for got in results(_chain("f16"), [x0, x1], want, disabled=["half-chains"]):
        assert same(got, want)


@given(st.lists(st.floats(width=32), min_size=1, max_size=40), st.sampled_from([*SMALL, *HALVES, "i8", "u16", "i32", "u64"]),
       st.booleans())
@settings(max_examples=60, deadline=None)
def test_cast_at_build_is_cast_at_run_time(values: list[float], dtype: str, saturate: bool) -> None:
    x = np.array(values, np.float32)
    want = convert(x, dtype, saturate)
    attributes = {} if saturate or not dtype.startswith("f8") else {"saturate": 0}
    model = node_model("Cast", [x], want, 25, to=onnx_type(want), **attributes)
    for got in results(model, [x], want):
        assert same(got, convert(x, dtype, saturate or not attributes))


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f8e4m3fn", "f8e4m3fnuz", "f8e5m2", "f8e5m2fnuz", "f4e2m1"])
def test_every_code_of_a_small_float_survives_f32(dtype: str) -> None:
    count = 1 << (16 if dtype in HALVES else 4 if dtype == "f4e2m1" else 8)
    x = np.arange(count, dtype=np.uint16 if dtype in HALVES else np.uint8).view(NUMPY[dtype])
    wide = x.astype(np.float32)
    for got in results(node_model("Cast", [x], wide, 25, to=1), [x], wide):
        assert same(got, wide)
    for got in results(node_model("Cast", [wide], x, 25, to=onnx_type(x), saturate=0), [wide], x):
        assert same(got, x)


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f8e4m3fn", "f8e5m2fnuz"])
def test_rounding_is_that_of_ml_dtypes(dtype: str) -> None:
    codes = np.arange(1 << (15 if dtype in HALVES else 7), dtype=np.uint16).astype(np.uint16 if dtype in HALVES else np.uint8)
    points = codes.view(NUMPY[dtype]).astype(np.float32)
    points = np.sort(points[np.isfinite(points)])
    middle = (points[1:] + points[:-1]) / 2
    x = np.concatenate([middle, np.nextafter(middle, 0), np.nextafter(middle, np.float32(np.inf)), -middle]).astype(np.float32)
    want = x.astype(NUMPY[dtype])
    for got in results(node_model("Cast", [x], want, 25, to=onnx_type(want)), [x], want):
        assert same(got, want)


@pytest.mark.parametrize("dtype", [*SMALL, *HALVES, "u16", "u64", "bool"])
def test_moving_knows_no_type(dtype: str) -> None:
    rng = np.random.default_rng(6)
    x = rng.integers(0, 2, (4, 6)).astype(np.float32).astype(NUMPY[dtype])
    for op, attributes, want in (("Transpose", {"perm": [1, 0]}, np.ascontiguousarray(x.T)), ("Identity", {}, x)):
        for got in results(node_model(op, [x], want, 25, **attributes), [x], want):
            assert same(got, want)


@pytest.mark.parametrize("dtype", ["f64", "i32", "i64", "u64", "u32", "f16"])
def test_products_of_other_types(dtype: str) -> None:
    rng = np.random.default_rng(7)
    a, b = (rng.integers(0, 50, shape).astype(NUMPY[dtype]) for shape in ((2, 3, 5), (5, 40)))
    want = (a.astype(np.float64) @ b.astype(np.float64)).astype(NUMPY[dtype])
    for got in results(node_model("MatMul", [a, b], want), [a, b], want):
        assert same(got, want)


@pytest.mark.parametrize(("base", "exponent"), [("i32", "f32"), ("f32", "i64"), ("i64", "i32"), ("f32", "u64"), ("f16", "f32"),
                                                ("u64", "i32")])
def test_pow_has_the_type_of_its_base(base: str, exponent: str) -> None:
    x, y = np.array([1, 2, 3, 7]).astype(NUMPY[base]), np.array([3, 2, 1, 0]).astype(NUMPY[exponent])
    want = np.power(x.astype(np.float64), y.astype(np.float64)).astype(NUMPY[base])
    for got in results(node_model("Pow", [x, y], want), [x, y], want):
        assert same(got, want)


def test_bits_of_a_result_as_another_type() -> None:
    x = np.array([1.5, -2], np.float32)
    nodes = [helper.make_node("Neg", ["x0"], ["n"]), helper.make_node("BitCast", ["n"], ["y"], to=6)]
    values = [helper.make_tensor_value_info("x0", 1, [2])]
    graph = helper.make_graph(nodes, "g", values, [helper.make_tensor_value_info("y", 6, [2])])
    want = (-x).view(np.int32)
    for got in results(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 26)]), [x], want):
        assert same(got, want)


def test_every_type_has_a_name() -> None:
    assert NAMES[np.dtype(ml_dtypes.int4)] == "i4"
    assert set(NUMPY) == set(NAMES.values())
