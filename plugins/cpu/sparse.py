"""Weights of which a column has two of each four rows: stored without the others where that is faster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from infc.compiler.artifact.ops import GEMM_16, OPS
from infc.plugins.cpu import pack_16, pack_grouped, pack_i8
from infc.plugins.cpu.access import word_of
from infc.plugins.cpu.values import Buffer, Ref, Step

GAIN = 0.99  # of the time of a run, at most, for a change to be kept
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


def choose(steps: Iterable[Step], seconds: Callable[[], float] | None) -> list[str]:
    """Stores weights without their zeros, and says for each shape what became of it. ``seconds`` is the time of a run of the steps
    as they are; None: it is not measured, and all are stored so."""
    found = _products(steps)
    best = seconds() if seconds and found else 0.0
    notes = []
    for (k, n), products in found.items():
        for product in products:
            product.store(True)
        note = f"2:4 weights {k} x {n} ({len({p.dense.buffer for p in products})}): "
        if seconds is None:
            notes.append(note + "stored without zeros, not measured")
            continue
        took = seconds()
        kept = took <= GAIN * best
        chosen = "stored without zeros" if kept else "stored whole"
        notes.append(f"{note}{chosen}; a run takes {1e3 * took:.3f} ms without zeros, {1e3 * best:.3f} ms with them")
        if kept:
            best = took
        else:
            for product in products:
                product.store(False)
    return notes


def _products(steps: Iterable[Step]) -> dict[tuple[int, int], Sequence[_Product]]:
    """Those that could be stored without zeros, by K and N."""
    known: dict[tuple[object, ...], Ref | None] = {}
    found: dict[tuple[int, int], list[_Product]] = {}
    for step in steps:
        if step.op not in WEIGHT:
            continue
        k, n = word_of(step.op, step.words, "k"), step.outputs[0].dims[-1]
        dense = step.inputs[WEIGHT[step.op]]
        key = (id(dense.buffer.data), step.op, step.words)  # other profiles have the same data
        if key not in known:
            known[key] = _without_zeros(step, dense)
        short = known[key]
        if short is not None:
            found.setdefault((k, n), []).append(_Product(step, dense, short))
    return dict(found)


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
    if words["bits"] != 4:
        return None
    weight = pack_grouped.undone(packed, 4, bool(words["wide"]), bool(words["has_zeros"]), words["group"], words["n"])
    return pack_grouped.pack(weight, True) if pack_grouped.is_sparse(weight) else None
