"""How much a program's steps compute and move, for a roofline (Williams et al., 2009)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from infc.compiler.artifact.layout import DTYPE_SIZES, PACKINGS
from infc.compiler.artifact.ops import OPS
from infc.compiler.artifact.program import Operand, Program, Step

_PANEL = 32  # columns of packed weights
_PACKED = PACKINGS["F32_K1N32"]


@dataclass(frozen=True)
class Work:
    """Of one step at the profile's sizes. ``operations``: multiplications and additions, of a sparse product those of the dense
    one; ``bytes``: operands once each, as if nothing stayed in a cache."""

    operations: int
    bytes: int


def of(program: Program, operators: Mapping[str, str]) -> list[Work]:
    """One for each step. ``operators`` gives a kernel's operator."""
    return [Work(_operations(step, operators.get(step.kernel, "")), sum(map(_bytes, (*step.inputs, *step.outputs))))
            for step in program.steps]


def _bytes(operand: Operand) -> int:
    inner = prod(operand.dims[1:])
    columns = -(-inner // _PANEL) * _PANEL if operand.packing == _PACKED else inner
    return operand.dims[0] * columns * DTYPE_SIZES[operand.dtype]


def _operations(step: Step, op: str) -> int:
    result = prod(step.outputs[0].dims) if step.outputs else 0
    words = dict(zip(OPS[op].words, step.words, strict=False)) if op in OPS else {}
    if op == "matmul":
        return 2 * result * words.get("k", 0)
    if op.startswith("depthwise"):
        return 2 * result * _taps(words)
    if op.startswith("conv"):
        channels = step.inputs[0].dims[-1] // max(words.get("groups", 1), 1)
        return 2 * result * channels * _taps(words)
    if op.startswith("gemm"):
        return 2 * result * prod(step.inputs[0].dims[1:])
    if op == "attention":
        return 2 * prod(step.inputs[0].dims) * words.get("kv_len", 0) * 2
    return result


def _taps(words: Mapping[str, int]) -> int:
    return prod(words.get(f"kernel_{axis}", 1) for axis in "dhw")
