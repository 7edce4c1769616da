"""Residual add, RMSNorm and quantisation in one pass over memory."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from .declare import Arrays, Attribute, Kernel, Operand, Operator, TypeVariable
from .dtypes import DTYPES, from_f32, to_f32

WARP_HIDDEN = 1024  # up to here a warp has a row to itself: four vectors of 8 a lane


def reference(inputs: Arrays, attributes: Mapping[str, float]) -> dict[str, np.ndarray]:
    """``sum = x + residual`` in x's type; ``y = quantise(sum / rms(sum) * gamma / scale)``, in f32 up to the rounding."""
    x = inputs["x"]
    dtype = "f16" if x.dtype == np.float16 else "bf16"
    output = next(name for name in OPERATOR.types["Q"].choices if DTYPES[name].onnx == attributes["output_dtype"])
    with np.errstate(all="ignore"):
        total = from_f32(to_f32(x, dtype) + to_f32(inputs["residual"], dtype), dtype)
        values = to_f32(total, dtype)
        mean = np.mean(values.astype(np.float64) ** 2, axis=-1, keepdims=True).astype(np.float32)
        normed = values * (1 / np.sqrt(mean + np.float32(attributes["epsilon"])))
        y = from_f32(normed * to_f32(inputs["gamma"], dtype) * (1 / inputs["scale"]), output)
    return {"y": y, "sum": total}


OPERATOR = Operator(
    name="AddRMSNormQuantize",
    source="add_rms_norm_quantize.cu",
    inputs=(Operand("x", "T", ("*rows", "hidden")), Operand("residual", "T", ("*rows", "hidden")),
            Operand("gamma", "T", ("hidden",)), Operand("scale", "f32", ("1",))),
    outputs=(Operand("y", "Q", ("*rows", "hidden")), Operand("sum", "T", ("*rows", "hidden"))),
    attributes=(Attribute("epsilon", "float", 1e-5), Attribute("output_dtype", "int", DTYPES["int8"].onnx)),
    types={"T": TypeVariable(("f16", "bf16")), "Q": TypeVariable(("int8", "fp8"), attribute="output_dtype")},
    requires=(("hidden % 8 == 0", "hidden must be a multiple of 8: rows are read 16 bytes at a time"),
              ("rows * hidden < 2147483648", "x must have fewer than 2**31 elements")),
    kernels=(Kernel("add_rms_norm_{T}_{Q}_warp", f"hidden <= {WARP_HIDDEN}", "ceil_div(rows, 4)", "128", 80),
             Kernel("add_rms_norm_{T}_{Q}_block", "1", "rows", "256", 80)),
    arguments=("x", "residual", "gamma", "scale", "y", "sum", "rows", "hidden", "epsilon"),
    reference=reference,
)
