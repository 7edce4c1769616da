"""Elementwise operators and selection."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx_ir as ir

from infc.compiler.artifact.ops import BINARY, UNARY
from infc.plugins.cpu.layout import common_order, in_order, new_in_order
from infc.plugins.cpu.lower import Lowering, rule, word
from infc.plugins.cpu.types import FLOATS, cast
from infc.plugins.cpu.values import NUMPY, Tensor, product

UNARY_OPS = {
    "Tanh": "tanh", "Sigmoid": "sigmoid", "Exp": "exp", "Log": "log", "Sqrt": "sqrt", "Reciprocal": "reciprocal",
    "Erf": "erf", "Neg": "neg", "Floor": "floor", "Ceil": "ceil", "Round": "round", "Sin": "sin", "Cos": "cos",
    "Softplus": "softplus", "Not": "not", "HardSwish": "hard_swish", "IsNaN": "isnan",
    "Tan": "tan", "Asin": "asin", "Acos": "acos", "Atan": "atan", "Sinh": "sinh", "Cosh": "cosh", "Asinh": "asinh",
    "Acosh": "acosh", "Atanh": "atanh",
}
BINARY_OPS = {
    "Add": "add", "Sub": "sub", "Mul": "mul", "Div": "div", "Min": "min", "Max": "max", "PRelu": "prelu",
    "Equal": "equal", "Less": "less", "LessOrEqual": "less_equal", "Greater": "greater", "GreaterOrEqual": "greater_equal",
    "And": "and", "Or": "or", "Xor": "xor", "Sum": "add",
}
ARITHMETIC = ("f32", "f64", "i32", "i64", "u64")
EXACT_UNARY = ("abs", "neg", "sign", "clip", "identity")  # functions that integers have too
NOT_IN_F64 = ("clip", "relu6")
COMPARISONS = BINARY[BINARY.index("equal") : BINARY.index("xor") + 1]
BITWISE = BINARY[BINARY.index("bit_and") :]


def unary(lo: Lowering, x: Tensor, function: str, alpha: float = 0.0, beta: float = 0.0) -> Tensor:
    """A new tensor function(x)."""
    if function == "not":
        lo.want(x, "bool")
    else:
        lo.want(x, "f32", *(("i32", "i64") if function in EXACT_UNARY else ()), *(() if function in NOT_IN_F64 else ("f64",)))
    words = (UNARY.index(function), word(alpha), word(beta))
    return in_order(lo, "unary", x, "bool" if function in ("isnan", "isinf") else x.dtype, words)


def binary(lo: Lowering, a: Tensor, b: Tensor, function: str) -> Tensor:
    """A new tensor function(a, b), broadcast."""
    known = {"equal": (*ARITHMETIC, "bool"), **dict.fromkeys(("and", "or", "xor"), ("bool",)),
             **dict.fromkeys(BITWISE, ("i32", "i64", "u64"))}
    lo.want(a, *known.get(function, ARITHMETIC))
    if a.dtype != b.dtype:
        raise lo.unsupported(f"element types {a.dtype} and {b.dtype} differ")
    dims, symbols = lo.broadcast([a, b])
    order = common_order([a, b], len(dims))
    y = new_in_order(lo, "bool" if function in COMPARISONS else a.dtype, dims, symbols, order)
    return lo.elementwise("binary", y, [a, b], [BINARY.index(function)])


def scalar(lo: Lowering, value: float, dtype: str = "f32") -> Tensor:
    return lo.constant(np.array(value, NUMPY[dtype]))


def select(lo: Lowering, condition: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """a where the condition holds, else b; broadcast."""
    if a.dtype != b.dtype:
        raise lo.unsupported(f"element types {a.dtype} and {b.dtype} differ")
    dims, symbols = lo.broadcast([condition, a, b])
    y = new_in_order(lo, a.dtype, dims, symbols, common_order([condition, a, b], len(dims)))
    return lo.elementwise("select", y, [lo.want(condition, "bool"), a, b])


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


@rule("Celu")
def _celu(lo: Lowering, node: ir.Node) -> Tensor:
    """ONNX's formula and not its function body, which divides positive numbers by alpha too and may overflow."""
    x, alpha, zero = lo.input(0), scalar(lo, lo.attribute("alpha", 1.0)), scalar(lo, 0.0)
    less_one = binary(lo, unary(lo, binary(lo, x, alpha, "div"), "exp"), scalar(lo, 1.0), "sub")
    return binary(lo, binary(lo, zero, x, "max"), binary(lo, zero, binary(lo, alpha, less_one, "mul"), "min"), "add")


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


@rule("Abs", "Sign")
def _abs_sign(lo: Lowering, node: ir.Node) -> Tensor:
    x = lo.input(0)
    if x.dtype != "u64":
        return unary(lo, x, node.op_type.lower())
    return x if node.op_type == "Abs" else binary(lo, x, scalar(lo, 1, "u64"), "min")


@rule("Relu")
def _relu(lo: Lowering, node: ir.Node) -> Tensor:
    x = lo.input(0)
    return unary(lo, x, "relu") if x.dtype in FLOATS else binary(lo, x, scalar(lo, 0, x.dtype), "max")


@rule("IsInf")
def _isinf(lo: Lowering, node: ir.Node) -> Tensor:
    x = lo.input(0)
    signs = [s for s, name in ((-1, "detect_negative"), (1, "detect_positive")) if lo.attribute(name, 1)]
    if len(signs) == 2:
        return unary(lo, x, "isinf")
    return binary(lo, x, scalar(lo, signs[0] * np.inf, x.dtype), "equal") if signs else binary(lo, x, x, "less")


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
        first = binary(lo, first, other, BINARY_OPS[node.op_type])
    return first


@rule("Pow")
def _pow(lo: Lowering, node: ir.Node) -> Tensor:
    """In the base's type; where the exponent has another one, computed in a type that holds both."""
    x, y = lo.input(0), lo.input(1)
    if x.dtype == "f32" and y.constant is not None and product(y.dims) == 1 and np.all(y.constant == 2):
        return unary(lo, x, "square")
    types = {x.dtype, y.dtype}
    if len(types) == 1 or types <= {"i64", "u64"}:
        wide = x.dtype
    elif x.dtype == "f32" and "f64" not in types:
        wide = "f32"
    else:
        wide = "f64" if types & set(FLOATS) else "i64"
    return cast(lo, binary(lo, cast(lo, x, wide), cast(lo, y, wide), "pow"), x.dtype)


@rule("Mean")
def _mean(lo: Lowering, node: ir.Node) -> Tensor:
    first, *others = lo.inputs()
    total = first
    for other in others:
        total = binary(lo, total, other, "add")
    return binary(lo, total, scalar(lo, 1 / (len(others) + 1), first.dtype), "mul")


@rule("Mod")
def _mod(lo: Lowering, node: ir.Node) -> Tensor:
    """fmod: the remainder has the dividend's sign, else the divisor's."""
    return binary(lo, lo.input(0), lo.input(1), "rem" if lo.attribute("fmod", 0) else "mod")


@rule("Where")
def _where(lo: Lowering, node: ir.Node) -> Tensor:
    return select(lo, lo.input(0), lo.input(1), lo.input(2))


@rule("Identity", "Dropout")
def _identity(lo: Lowering, node: ir.Node) -> Tensor:
    if node.op_type == "Dropout":
        lo.attribute("seed")
        training = lo.const(2)
        if training is not None and training.any():
            raise lo.unsupported("training mode")
    return replace(lo.input(0))
