"""Which samples are taken: those whose digests are the least, so that the order of the data does not matter."""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from infc.compiler.calibrate.data import Data, Item
from infc.compiler.errors import UsageError

SAMPLES = 256
_MOST = 1 << 20
_HELD_OUT = 5  # a fifth of data that is too short for both


@dataclass(frozen=True)
class Selection:
    """``items`` to calibrate with and ``held_out`` ones to judge by, each in the order of their digests; ``seen`` in the data."""

    items: list[Item]
    held_out: list[Item]
    seen: int


def choose(data: Data, samples: int = SAMPLES, seed: int = 0, held_out: int = 0, slices: str = "") -> Selection:
    """``samples`` items and ``held_out`` other ones, a random choice that depends on the contents and the seed alone. No item that
    is held out has the content of one that is not; equal items count once.

    Memory holds the chosen items, not the data. Raises UsageError E0805 for data without samples and as ``Data.items``.
    """
    if not 1 <= samples <= _MOST:
        raise UsageError("E0805", f"{samples} samples are not possible", where="--calibration-samples", hint=f"use 1 to {_MOST}")
    heap: list[tuple[int, int, Item]] = []  # ranks are negative: the front of the heap is what goes first
    seen = 0
    for item in data.items(slices):
        seen += 1
        entry = (-_rank(item, seed), seen, item)
        if len(heap) < samples + held_out:
            heapq.heappush(heap, entry)
        elif entry[0] > heap[0][0]:
            heapq.heapreplace(heap, entry)
    if not heap:
        raise UsageError("E0805", "there is no sample in the data", where=str(data.path),
                         hint="give data with at least one; of a folder photos (.jpg, .png) and recordings (.wav) are samples")
    ranked = [item for _, _, item in sorted(heap, key=lambda entry: -entry[0])]
    first = min(samples, len(ranked) - min(held_out, len(ranked) // _HELD_OUT))
    items = ranked[:first]
    return Selection(items, without(ranked[first:], items), seen)


def _rank(item: Item, seed: int) -> int:
    return int.from_bytes(hashlib.sha256(seed.to_bytes(8, "little", signed=True) + item.digest).digest())


def without(items: Sequence[Item], taken: Sequence[Item]) -> list[Item]:
    """Those whose content is not among ``taken``."""
    digests = {item.digest for item in taken}
    return [item for item in items if item.digest not in digests]
