"""Elementwise operators, selection and conversion."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from infc.compiler.artifact.ops import BINARY, UNARY
from infc.plugins.cpu.layout import common_order, inverse, memory_order, new_in_order, permuted
from infc.plugins.cpu.lower import Lowering, rule, word
from infc.plugins.cpu.values import NAMES, NUMPY, Tensor, product

UNARY_OPS = {
    "Relu": "relu", "Tanh": "tanh", "Sigmoid": "sigmoid", "Exp": "exp", "Log": "log", "Sqrt": "sqrt", "Reciprocal": "reciprocal",
    "Erf": "erf", "Abs": "abs", "Neg": "neg", "Floor": "floor", "Ceil": "ceil", "Round": "round", "Sin": "sin", "Cos": "cos",
    "Softplus": "softplus", "Sign": "sign", "Not": "not", "HardSwish": "hard_swish", "IsNaN": "isnan",
}
BINARY_OPS = {
    "Add": "add", "Sub": "sub", "Mul": "mul", "Div": "div", "Pow": "pow", "Min": "min", "Max": "max", "PRelu": "prelu",
    "Equal": "equal", "Less": "less", "LessOrEqual": "less_equal", "Greater": "greater", "GreaterOrEqual": "greater_equal",
    "And": "and", "Or": "or", "Xor": "xor", "Sum": "add",
}
ARITHMETIC = ("f32", "f64", "i32", "i64")
EXACT_UNARY = ("abs", "neg", "sign", "clip", "identity")  # functions that integers have too
COMPARISONS = BINARY[BINARY.index("equal"):]
CASTABLE = ("f32", "f64", "i32", "i64", "u8", "i8", "bool")


def unary(lo: Lowering, x: Tensor, function: str, alpha: float = 0.0, beta: float = 0.0) -> Tensor:
    """A new tensor function(x)."""
    if function == "not":
        lo.want(x, "bool")
    else:
        lo.want(x, "f32", *(("i32", "i64") if function in EXACT_UNARY else ()))
    words = (UNARY.index(function), word(alpha), word(beta))
    return _in_order(lo, "unary", x, "bool" if function in ("isnan", "isinf") else x.dtype, words)


def _in_order(lo: Lowering, op: str, x: Tensor, dtype: str, words: Sequence[int]) -> Tensor:
    """A new tensor of an operator that takes elements as they lie in memory."""
    order = memory_order(x)
    x = lo.dense(permuted(x, order))
    y = lo.like(x, dtype)
    source, rows, inner = lo.matrix(x, 1 if x.symbol else None)
    lo.emit(op, [source], [y.ref((rows, inner))], words, rows, x.symbol)
    return permuted(y, inverse(order))


def binary(lo: Lowering, a: Tensor, b: Tensor, function: str) -> Tensor:
    """A new tensor function(a, b), broadcast."""
    lo.want(a, *(("bool",) if function in ("and", "or", "xor") else (*ARITHMETIC, "bool") if function == "equal" else ARITHMETIC))
    if a.dtype != b.dtype:
        raise lo.unsupported(f"element types {a.dtype} and {b.dtype} differ")
    dims, symbols = lo.broadcast([a, b])
    order = common_order([a, b], len(dims))
    y = new_in_order(lo, "bool" if function in COMPARISONS else a.dtype, dims, symbols, order)
    return lo.elementwise("binary", y, [a, b], [BINARY.index(function)])


def scalar(lo: Lowering, value: float) -> Tensor:
    return lo.constant(np.array(value, np.float32))


def cast(lo: Lowering, x: Tensor, dtype: str) -> Tensor:
    """x as another element type."""
    if x.dtype == dtype:
        return x
    if x.constant is not None:
        return lo.constant(_convert(x.constant, dtype))
    lo.want(x, *CASTABLE)
    if dtype not in CASTABLE:
        raise lo.unsupported(f"conversion to {dtype}")
    return _in_order(lo, "cast", x, dtype, ())


def select(lo: Lowering, condition: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """a where the condition holds, else b; broadcast."""
    if a.dtype != b.dtype:
        raise lo.unsupported(f"element types {a.dtype} and {b.dtype} differ")
    dims, symbols = lo.broadcast([condition, a, b])
    y = new_in_order(lo, a.dtype, dims, symbols, common_order([condition, a, b], len(dims)))
    return lo.elementwise("select", y, [lo.want(condition, "bool"), a, b])


def _convert(array: np.ndarray, dtype: str) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        converted: np.ndarray = array.astype(NUMPY[dtype])
    return converted


@rule(*UNARY_OPS)
def _unary(lo: Lowering, node: ir.Node) -> Tensor:
    return unary(lo, lo.input(0), UNARY_OPS[node.op_type])


@rule("Gelu")
def _gelu(lo: Lowering, node: ir.Node) -> Tensor:
    return unary(lo, lo.input(0), "gelu_tanh" if lo.attribute("approximate", "none") == "tanh" else "gelu_erf")


@rule("LeakyRelu")
def _leaky_relu(lo: Lowering, node: ir.Node) -> Tensor:
    return unary(lo, lo.input(0), "leaky_relu", lo.attribute("alpha", 0.01))


@rule("Elu")
def _elu(lo: Lowering, node: ir.Node) -> Tensor:
    return unary(lo, lo.input(0), "elu", lo.attribute("alpha", 1.0))


@rule("HardSigmoid")
def _hard_sigmoid(lo: Lowering, node: ir.Node) -> Tensor:
    return unary(lo, lo.input(0), "hard_sigmoid", lo.attribute("alpha", 0.2), lo.attribute("beta", 0.5))


@rule("Swish")
def _swish(lo: Lowering, node: ir.Node) -> Tensor:
    x, alpha = lo.input(0), lo.attribute("alpha", 1.0)
    if alpha == 1.0:
        return unary(lo, x, "silu")
    return binary(lo, x, unary(lo, binary(lo, x, scalar(lo, alpha), "mul"), "sigmoid"), "mul")


@rule("Mish")
def _mish(lo: Lowering, node: ir.Node) -> Tensor:
    x = lo.input(0)
    return binary(lo, x, unary(lo, unary(lo, x, "softplus"), "tanh"), "mul")


@rule("Softsign")
def _softsign(lo: Lowering, node: ir.Node) -> Tensor:
    x = lo.input(0)
    return binary(lo, x, binary(lo, unary(lo, x, "abs"), scalar(lo, 1.0), "add"), "div")


@rule("Selu")
def _selu(lo: Lowering, node: ir.Node) -> Tensor:
    alpha, gamma = lo.attribute("alpha", 1.67326319217681884765625), lo.attribute("gamma", 1.05070102214813232421875)
    return binary(lo, unary(lo, lo.input(0), "elu", alpha), scalar(lo, gamma), "mul")


@rule("IsInf")
def _isinf(lo: Lowering, node: ir.Node) -> Tensor:
    if not (lo.attribute("detect_negative", 1) and lo.attribute("detect_positive", 1)):
        raise lo.unsupported("one sign only")
    return unary(lo, lo.input(0), "isinf")


@rule("Clip")
def _clip(lo: Lowering, node: ir.Node) -> Tensor:
    x = lo.input(0)
    low, high = lo.optional(1), lo.optional(2)
    if x.dtype == "f32" and all(bound is None or bound.constant is not None for bound in (low, high)):
        limits = [float(t.constant.reshape(-1)[0]) if t is not None and t.constant is not None else d
                  for t, d in ((low, -np.inf), (high, np.inf))]
        return unary(lo, x, "clip", *limits)
    for bound, function in ((low, "max"), (high, "min")):
        x = binary(lo, x, bound, function) if bound is not None else x
    return x


@rule(*BINARY_OPS)
def _binary(lo: Lowering, node: ir.Node) -> Tensor:
    first, *others = lo.inputs()
    for other in others:
        if node.op_type == "Pow" and other.dtype != first.dtype:
            other = cast(lo, other, first.dtype)
        if node.op_type == "Pow" and other.constant is not None and first.dtype == "f32" and np.all(other.constant == 2):
            first = unary(lo, first, "square") if product(other.dims) == 1 else binary(lo, first, other, "pow")
        else:
            first = binary(lo, first, other, BINARY_OPS[node.op_type])
    return first


@rule("Mean")
def _mean(lo: Lowering, node: ir.Node) -> Tensor:
    first, *others = lo.inputs()
    total = first
    for other in others:
        total = binary(lo, total, other, "add")
    return binary(lo, total, scalar(lo, 1 / (len(others) + 1)), "mul")


@rule("Mod")
def _mod(lo: Lowering, node: ir.Node) -> Tensor:
    a, b = lo.input(0), lo.input(1)
    if bool(lo.attribute("fmod", 0)) != (a.dtype in ("f32", "f64")):
        raise lo.unsupported("fmod is for floats, and modulo for integers")
    return binary(lo, a, b, "mod")


@rule("Where")
def _where(lo: Lowering, node: ir.Node) -> Tensor:
    return select(lo, lo.input(0), lo.input(1), lo.input(2))


@rule("Cast")
def _cast(lo: Lowering, node: ir.Node) -> Tensor:
    dtype = np.dtype(ir.DataType(lo.attribute("to")).numpy())
    if dtype not in NAMES:
        raise lo.unsupported(f"conversion to {ir.DataType(lo.attribute('to'))}")
    return cast(lo, lo.input(0), NAMES[dtype])


@rule("CastLike")
def _cast_like(lo: Lowering, node: ir.Node) -> Tensor:
    return cast(lo, lo.input(0), lo.input(1).dtype)


@rule("Identity", "Dropout")
def _identity(lo: Lowering, node: ir.Node) -> Tensor:
    if node.op_type == "Dropout":
        lo.attribute("seed")
        training = lo.const(2)
        if training is not None and training.any():
            raise lo.unsupported("training mode")
    return replace(lo.input(0))
