"""Matrix-vector product with int4 weights in groups, for decoding: one to eight rows of activations."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from .declare import Arrays, Attribute, Kernel, Operand, Operator, ceil_div

UNIT = 256  # values of k in a unit: eight lanes read 16 bytes each
NIBBLES = np.array([0, 2, 4, 6, 1, 3, 5, 7])  # by position in a word: which of its eight values of k
MIDDLE = 8  # zero point of weights without zero points


def pack(weights: np.ndarray) -> np.ndarray:
    """``weights`` [n, k], integers 0..15 -> int32 [n, ceil(k/256)*32], filled up with zeros.

    In a unit of 256 values of k, the word at 4·lane + w (lane 0..7, w 0..3) holds k = 64·w + 8·lane + 0..7: eight lanes that
    take word w together then read 128 adjacent bytes of f16 activations. Within a word the nibbles, lowest first, are k = 0, 2,
    4, 6, 1, 3, 5, 7: masking nibbles i and i + 4 gives the halves of a half2 for adjacent k.
    """
    n, k = weights.shape
    if weights.min(initial=0) < 0 or weights.max(initial=0) > 15:
        raise ValueError("int4 weights are packed as 0..15: add 8 to signed ones")
    units = ceil_div(k, UNIT)
    padded = np.zeros((n, units * UNIT), np.uint32)
    padded[:, :k] = weights
    words = padded.reshape(n, units, 4, 8, 8).transpose(0, 1, 3, 2, 4)[..., NIBBLES]
    return np.asarray(np.bitwise_or.reduce(words << np.arange(0, 32, 4, dtype=np.uint32), axis=-1).reshape(n, -1)).view(np.int32)


def unpack(packed: np.ndarray, k: int) -> np.ndarray:
    """The inverse of ``pack``: uint8 [n, k]."""
    n = packed.shape[0]
    words = packed.view(np.uint32).reshape(n, -1, 8, 4, 1) >> np.arange(0, 32, 4, dtype=np.uint32) & 15
    return words[..., np.argsort(NIBBLES)].transpose(0, 1, 3, 2, 4).reshape(n, -1)[:, :k].astype(np.uint8)


def reference(inputs: Arrays, attributes: Mapping[str, float]) -> dict[str, np.ndarray]:
    """``y = x · (scale · (w - zero))ᵀ``, accumulated in f64, rounded to f16 once."""
    x, scales = inputs["x"], inputs["scales"].astype(np.float64)
    group, k = int(attributes["group_size"]), x.shape[-1]
    zeros = inputs["zeros"].astype(np.float64) if "zeros" in inputs else np.full_like(scales, MIDDLE)
    w = (unpack(inputs["w"], k) - np.repeat(zeros, group, axis=1)) * np.repeat(scales, group, axis=1)
    with np.errstate(all="ignore"):
        return {"y": (x.astype(np.float64) @ w.T).astype(np.float32).astype(np.float16)}


OPERATOR = Operator(
    name="Int4MatVec",
    source="int4_mat_vec.cu",
    inputs=(Operand("x", "f16", ("*rows", "k")), Operand("w", "int32", ("n", "ceil_div(k, 256) * 32")),
            Operand("scales", "f16", ("n", "k // group_size")), Operand("zeros", "int8", ("n", "k // group_size"), optional=True)),
    outputs=(Operand("y", "f16", ("*rows", "n")),),
    attributes=(Attribute("group_size", "int", 128),),
    types={},
    requires=(("group_size == 32 or group_size == 64 or group_size == 128", "group_size must be 32, 64 or 128"),
              ("k % group_size == 0", "k must be a multiple of group_size"),
              ("rows >= 1 and rows <= 8", "one to eight rows: for more, dequantise and multiply matrices"),
              ("n * k < 2147483648", "w must have fewer than 2**31 elements")),
    kernels=tuple(Kernel(f"int4_mat_vec_rows{rows}", f"rows <= {rows}", "ceil_div(n, 4)", "32 * min(4, ceil_div(k, 1024))", bound)
                  for rows, bound in ((1, 80), (2, 128), (4, 128), (8, 168))),
    arguments=("x", "w", "scales", "zeros", "y", "rows", "k", "n", "group_size"),
    reference=reference,
)
