"""Weights of which a column has two of each four rows: stored without the others where that is faster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from infc.compiler.artifact.ops import GEMM_16, GROUPED_ZEROS, OPS
from infc.plugins.cpu import pack_16, pack_grouped, pack_i8
from infc.plugins.cpu.access import word_of
from infc.plugins.cpu.values import Buffer, Ref, Step

Seconds = Callable[[Sequence[Step]], list[float]]
GAIN = 0.99  # of the time of a layer's steps, at most, for zeros to be skipped
WEIGHT = {"gemm_16": 1, "gemm_i8": 2, "gemm_grouped": 2}  # which input it is


@dataclass
class _Product:
    """A step and its weight without zeros."""

    step: Step
    dense: Ref
    sparse: Ref

    def store(self, without_zeros: bool) -> None:
        op, words = self.step.op, self.step.words
        at = OPS[op].words.index("sparse")
        self.step.inputs[WEIGHT[op]] = self.sparse if without_zeros else self.dense
        self.step.words = (*words[:at], int(without_zeros), *words[at + 1 :])


@dataclass
class Choice:
    """What became of the weight that the products of one layer read, in all profiles together: seconds of these steps with zeros
    and without, None where they were not measured; whether it is stored without."""

    layer: str
    size: tuple[int, int]
    products: list[_Product]
    dense: float | None = None
    sparse: float | None = None
    chosen: bool = True

    def store(self, without_zeros: bool) -> None:
        for product in self.products:
            product.store(without_zeros)

    def record(self) -> dict[str, Any]:
        return {"layer": self.layer, "dense": self.dense, "sparse": self.sparse, "chosen": self.chosen}


def choose(steps: Iterable[Step], seconds: Seconds | None, force: bool = False) -> list[Choice]:
    """Stores weights without their zeros, each where that is faster. ``seconds`` measures steps in runs of all of them as they are
    stored then; None: nothing is measured, and all are stored without. ``force``: they are though it be slower."""
    found = _products(steps)
    if seconds and found:
        at = [p.step for choice in found for p in choice.products]
        for without_zeros in (False, True):
            for choice in found:
                choice.store(without_zeros)
            taken = dict(zip(map(id, at), seconds(at), strict=True))
            for choice in found:
                total = sum(taken[id(p.step)] for p in choice.products)
                choice.dense, choice.sparse = (choice.dense, total) if without_zeros else (total, choice.sparse)
    for choice in found:
        if choice.dense is not None and choice.sparse is not None:
            choice.chosen = force or choice.sparse <= GAIN * choice.dense
        choice.store(choice.chosen)
    return found


def notes(choices: Iterable[Choice]) -> list[str]:
    """How many of each shape are stored how; without times, which an artifact does not hold."""
    counts: dict[tuple[int, int], list[int]] = {}
    for choice in choices:
        counts.setdefault(choice.size, [0, 0])[choice.chosen] += 1
    return [f"2:4 weights {k} x {n}: " + " and ".join(f"{count} stored {how}" for count, how in
                                                      ((short, "without zeros"), (whole, "whole")) if count)
            for (k, n), (whole, short) in counts.items()]


def _products(steps: Iterable[Step]) -> list[Choice]:
    """Those that could be stored without zeros, by weight; other profiles have the same data."""
    known: dict[tuple[object, ...], Ref | None] = {}
    found: dict[int, Choice] = {}
    for step in steps:
        if step.op not in WEIGHT:
            continue
        k, n = word_of(step.op, step.words, "k"), step.outputs[0].dims[-1]
        dense = step.inputs[WEIGHT[step.op]]
        key = (id(dense.buffer.data), step.op, step.words)
        if key not in known:
            known[key] = _without_zeros(step, dense)
        short = known[key]
        if short is not None:
            found.setdefault(id(dense.buffer.data), Choice(step.name, (k, n), [])).products.append(_Product(step, dense, short))
    return list(found.values())


def _without_zeros(step: Step, dense: Ref) -> Ref | None:
    assert dense.buffer.data is not None
    packed = np.ascontiguousarray(dense.buffer.data).reshape(dense.dims)
    words = {name: word_of(step.op, step.words, name) for name in OPS[step.op].words}
    if step.op == "gemm_i8":
        w = pack_i8.undone(packed, words["k"], step.outputs[0].dims[-1])
        short = pack_i8.sparse(w) if pack_i8.is_sparse(w) else None
    else:
        short = _in_16_bits(packed, words) if step.op == "gemm_16" else _in_groups(packed, words)
    return None if short is None else Ref(Buffer("WEIGHTS", short.nbytes, data=short), dense.dtype, short.shape, 0, short.shape[1])


def _in_16_bits(packed: np.ndarray, words: dict[str, int]) -> np.ndarray | None:
    if words["format"] != GEMM_16.index("bf16"):
        return None
    bits = pack_16.undone(packed, words["k"], words["n"])
    return pack_16.sparse(bits) if pack_16.is_sparse(bits) else None


def _in_groups(packed: np.ndarray, words: dict[str, int]) -> np.ndarray | None:
    zeros = GROUPED_ZEROS[words["zeros"]]
    if words["bits"] != 4 or zeros == "sixteenths":
        return None
    weight = pack_grouped.undone(packed, 4, bool(words["wide"]), zeros == "bytes", words["group"], words["n"])
    return pack_grouped.pack(weight, True) if pack_grouped.is_sparse(weight) else None
