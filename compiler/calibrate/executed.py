"""What a program computes layers in: the kernels of its steps, held against what became of the graph's layers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from infc.compiler.target import Layer
from infc.passes.quant.plan import Decision
from infc.passes.sparsity.sparsify import SPARSE, SparseDecision

_SLOWER = "skipping its zeros was no faster, or switched off: --force skips them"
_INTEGERS = frozenset({"gemm_i8", "conv_i8", "depthwise_i8", "gemm_grouped"})
# The operators of the CPU that multiply in a precision.
OPERATORS = {"int8": _INTEGERS, "int8-static": _INTEGERS, "int4": frozenset({"gemm_grouped"}),
             **dict.fromkeys(("bf16", "f16", "fp8"), frozenset({"gemm_16"}))}


def confirmed(decisions: Iterable[Decision], programs: Mapping[str, Sequence[Layer]]) -> list[Decision]:
    """With f32 for layers that have the numbers of their precision, but in some program no kernel of it: the product is computed
    of what they stand for. ``programs``: the steps of each of the CPU's programs."""
    operators = [_operators(steps) for steps in programs.values()]
    return [_confirmed(d, operators) for d in decisions]


def skipping(decisions: Iterable[SparseDecision], programs: Mapping[str, Sequence[Layer]]) -> list[SparseDecision]:
    """With what kernels do with the zeros of weights that are 2:4: they skip them, or multiply them too where that is faster."""
    steps = [step for program in programs.values() for step in program]
    skip = {step.name for step in steps if step.detail.get("sparse")}
    return [replace(d, kernel="skips zeros" if d.node in skip else "multiplies zeros",
                    why=d.why or ("" if d.node in skip else _SLOWER)) if d.actual == SPARSE else d
            for d in decisions]


def _operators(steps: Sequence[Layer]) -> dict[str, set[str]]:
    """By name of a node, those that compute it."""
    found: dict[str, set[str]] = {}
    for step in steps:
        found.setdefault(step.name, set()).add(step.op)
    return found


def _confirmed(decision: Decision, programs: Sequence[Mapping[str, set[str]]]) -> Decision:
    wanted = OPERATORS.get(decision.actual)
    if wanted is None or all(wanted & p.get(decision.node, wanted) for p in programs):
        return decision
    why = f"its numbers are those of {decision.actual}, but no kernel multiplies them"
    return replace(decision, actual="f32", why="; ".join(filter(None, (decision.why, why))))
