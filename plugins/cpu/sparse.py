"""Weights of which a column has two of each four rows: stored without the others where that is faster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from infc.compiler.artifact.ops import GEMM_16, OPS
from infc.plugins.cpu.access import word_of
from infc.plugins.cpu.pack_16 import is_sparse, sparse, undone
from infc.plugins.cpu.values import Buffer, Ref, Step

GAIN = 0.99  # of the time of a run, at most, for a change to be kept
_SPARSE = OPS["gemm_16"].words.index("sparse")


@dataclass
class _Product:
    """A step and its weight without zeros."""

    step: Step
    dense: Ref
    sparse: Ref

    def store(self, without_zeros: bool) -> None:
        words = self.step.words
        self.step.inputs[1] = self.sparse if without_zeros else self.dense
        self.step.words = (*words[:_SPARSE], int(without_zeros), *words[_SPARSE + 1 :])


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
    known: dict[Buffer, Ref | None] = {}
    found: dict[tuple[int, int], list[_Product]] = {}
    for step in steps:
        if step.op != "gemm_16" or word_of("gemm_16", step.words, "format") != GEMM_16.index("bf16"):
            continue
        k, n = (word_of("gemm_16", step.words, name) for name in "kn")
        dense = step.inputs[1]
        if dense.buffer not in known:
            known[dense.buffer] = _without_zeros(dense, k, n)
        short = known[dense.buffer]
        if short is not None:
            found.setdefault((k, n), []).append(_Product(step, dense, short))
    return dict(found)


def _without_zeros(dense: Ref, k: int, n: int) -> Ref | None:
    data = dense.buffer.data
    assert data is not None
    bits = undone(np.ascontiguousarray(data).reshape(dense.dims), k, n)
    if not is_sparse(bits):
        return None
    packed = sparse(bits)
    return Ref(Buffer("WEIGHTS", packed.nbytes, data=packed), "u8", packed.shape, 0, packed.shape[1])
