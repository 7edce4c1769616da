"""What each target takes: how weights and activations of a precision are stored, and which products are worth it: data."""

from __future__ import annotations

from dataclasses import dataclass, replace

from infc.passes.quant.plan import LayerChoice
from infc.passes.quant.products import Product


@dataclass(frozen=True)
class Form:
    """``weight``: a name of numbers.KINDS, or bf16, f16. ``activation``: ``rows`` (dynamic), ``tensor`` (static), bf16, fp8
    (static), or "" for f32. ``symmetric`` activations have no zero; ``grouped`` ones have a scale for each block of the weight."""

    weight: str
    activation: str = ""
    symmetric: bool = False
    grouped: bool = False


FORMS: dict[str, dict[str, Form]] = {
    "cpu": {
        "int8": Form("int8", "rows"),
        "int8-static": Form("int8", "tensor"),
        "int4": Form("uint4-fine", "rows", symmetric=True, grouped=True),
        "fp8": Form("fp8", "bf16"),
        "bf16": Form("bf16", "bf16"),
        "f16": Form("f16"),  # without f16 arithmetic, activations gain nothing by it
    },
    "tensorrt": {
        "int8": Form("int8", "tensor", symmetric=True),
        "int8-static": Form("int8", "tensor", symmetric=True),
        "int4": Form("int4"),
        "fp8": Form("fp8", "fp8", symmetric=True),
    },
}

FOUR_BITS = ("int4", "uint4", "uint4-fine")

# Matrices that kernels of a target multiply by faster if they are 2:4: kinds, and what K is a multiple of. TensorRT's are any.
SPARSE: dict[str, tuple[frozenset[str], int]] = {"cpu": (frozenset({"bf16", "int8", *FOUR_BITS}), 32)}

STATIC_PIXELS = "activations of convolutions have one scale"

# Least K and N of a product that gains by fewer bits.
WORTH = {"matrix": (32, 16), "conv": (1, 8)}


def settle(product: Product, choice: LayerChoice, target: str) -> tuple[Form | None, str, int, str]:
    """(form, actual precision, block, why) of a product: the form is None where it stays f32, and ``why`` says it, or that the
    form is not quite what was asked for."""
    form = FORMS[target].get(choice.precision)
    if form is None:
        return None, "f32", 0, "" if choice.precision == "f32" else f"{target} computes {choice.precision} for whole graphs"
    k, n = product.shape
    least_k, least_n = WORTH["conv" if product.conv else "matrix"]
    if k < least_k or n < least_n:
        return None, "f32", 0, f"K = {k}, N = {n} is too small to gain"
    if product.conv:
        return _conv(form, choice.precision)
    if form.weight in FOUR_BITS:
        return _grouped(replace(form, weight="int4") if choice.symmetric else form, choice.precision, choice.group or 32, k, target)
    if form.weight == "int8" and form.activation == "rows" and choice.group:
        return _grouped(replace(form, symmetric=True, grouped=True), choice.precision, choice.group, k, target)
    return form, choice.precision, 0, ""


def _grouped(form: Form, precision: str, group: int, k: int, target: str) -> tuple[Form, str, int, str]:
    block = next((b for b in (group, 64, 32) if b <= group and k % b == 0), 0)
    if not block:
        return FORMS[target]["int8"], "int8", 0, f"K = {k} is not a multiple of 32"
    if block == k and form.weight == "int8":  # a group is a row
        return FORMS[target]["int8"], "int8", 0, ""
    return form, precision, block, "" if block == group else f"groups of {block}, as K = {k}"


def _conv(form: Form, precision: str) -> tuple[Form | None, str, int, str]:
    if form.weight in ("bf16", "f16", "fp8", *FOUR_BITS):
        return None, "f32", 0, f"convolutions are not computed in {precision}"
    if form.activation == "rows":
        return replace(form, activation="tensor"), "int8-static", 0, STATIC_PIXELS
    return form, precision, 0, ""


def no_sparse(product: Product, choice: LayerChoice, target: str) -> str:
    """Why 2:4 would not make the product faster on the target; "" if it may."""
    if target not in SPARSE:
        return ""
    kinds, multiple = SPARSE[target]
    form, actual, _, _ = settle(product, choice, target)
    if form is None or form.weight not in kinds or product.conv:
        return f"no kernel of the CPU skips zeros of {'convolutions' if product.conv else actual}"
    if form.grouped and form.weight not in FOUR_BITS:
        return "no kernel of the CPU skips zeros of bytes in groups"
    return f"K = {product.shape[0]} is not a multiple of {multiple}" if product.shape[0] % multiple else ""
