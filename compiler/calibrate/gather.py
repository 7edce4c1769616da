"""Calibration of one graph: samples stream through it once, and once more for each lot of Gram matrices that fits in memory."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from infc.compiler.calibrate import observe
from infc.compiler.calibrate.collect import Collector, Gram
from infc.compiler.calibrate.data import Arrays
from infc.compiler.calibrate.observe import Observer, Watched
from infc.passes.quant.statistics import HALF, ValueStatistics

GRAM_MEMORY = 1 << 30  # bytes of Gram matrices that are made at a time
GRAM_SAMPLES = 1024  # at most: how channels go together does not show better in more
_HISTOGRAM = 2 * HALF * 8
_TRIED = 2  # samples that are run before, to estimate by the second


@dataclass(frozen=True)
class Estimate:
    """Of a whole calibration before it begins: ``seconds``, and ``memory`` in bytes besides what the process has."""

    samples: int
    passes: int
    seconds: float
    memory: int


@dataclass(frozen=True)
class Gathering:
    """What calibration does. ``samples`` makes the prepared samples anew each time it is called, always the same in the same order;
    there are ``count``. ``at_once``: how many run at a time, which changes no result. ``estimated`` and ``progress`` (done, of) are
    told how it goes."""

    samples: Callable[[], Iterable[Arrays]]
    count: int
    mask: str | None
    prepare: Callable[[ir.Model], object]
    at_once: int = 2
    gram_memory: int = GRAM_MEMORY
    estimated: Callable[[Estimate], None] = lambda estimate: None
    progress: Callable[[int, int], None] = lambda done, of: None

    def run(self, model: ir.Model, values: Sequence[Watched],
            grams: Sequence[str] = ()) -> tuple[dict[str, ValueStatistics], Mapping[str, NDArray[np.float32]]]:
        """What is known of ``values``, and the Gram matrices ``grams``, which lie in files. Raises as ``Observer.run``."""
        lots = _lots([v for v in observe.multiplied(model) if v.key in set(grams)], self.gram_memory)
        collectors = {v.name: Collector(v.axis) for v in values}
        store = GramFiles() if lots else None
        few = min(self.count, GRAM_SAMPLES)
        total, done = self.count + few * len(lots), 0
        for number, lot in enumerate([values, *lots]):
            made = {v.key: Gram(v.patches) for v in lot} if number else {}
            observer = Observer(model, list(dict.fromkeys(v.name for v in lot)), self.mask, self.prepare)
            if number == 0:
                self.estimated(self._estimate(observer, model, values, lots))
            for found in observer.stream(islice(self.samples(), few if number else None), self.at_once):
                for value in lot:
                    if value.name in found and value.patches is not None:
                        made[value.key].add(found[value.name])
                    elif value.name in found:
                        (made or collectors)[value.name].add(_channels_last(found[value.name], value.axis))
                done += 1
                self.progress(done, total)
            for name, gram in made.items():
                if store is not None and gram.sum is not None:
                    store.add(name, gram.sum)
        return {name: c.result() for name, c in collectors.items() if c.count or c.invalid}, store or {}

    def _estimate(self, observer: Observer, model: ir.Model, values: Sequence[Watched], lots: Sequence[list[Watched]]) -> Estimate:
        seconds, activations = 0.0, 0
        for number, sample in enumerate(self.samples()):
            if number == _TRIED:
                break
            start = time.perf_counter()
            found = observer.run(sample)
            for value in values:
                if value.name in found:
                    Collector(value.axis).add(_channels_last(found[value.name], value.axis))
            seconds, activations = time.perf_counter() - start, max(activations, observe.sizes(found))
        weights = sum(v.const_value.nbytes for v in model.graph.initializers.values() if v.const_value is not None)
        grams = max((sum(v.gram_bytes for v in lot) for lot in lots), default=0)
        histograms = sum(_HISTOGRAM + 40 * v.channels for v in values if v.axis is not None)
        return Estimate(self.count, 1 + len(lots), seconds * (self.count + min(self.count, GRAM_SAMPLES) * len(lots)),
                        2 * weights + activations * (self.at_once + 2) + histograms + grams)


def _channels_last(value: NDArray[Any], axis: int | None) -> NDArray[Any]:
    return np.moveaxis(value, axis, -1) if axis is not None and value.ndim > 1 else value


def _lots(values: Sequence[Watched], memory: int) -> list[list[Watched]]:
    """In the graph's order, as many at a time as their matrices fit."""
    lots: list[list[Watched]] = []
    taken = memory
    for value in values:
        if taken + value.gram_bytes > memory:
            lots.append([])
            taken = 0
        lots[-1].append(value)
        taken += value.gram_bytes
    return lots


class GramFiles(Mapping[str, NDArray[np.float32]]):
    """Matrices in files that go when this does; one is in memory while it is used."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="infc-gram-")
        self._paths: dict[str, Path] = {}

    def add(self, name: str, matrix: NDArray[np.float32]) -> None:
        path = Path(self._folder.name) / f"{len(self._paths)}.npy"
        np.save(path, matrix)
        self._paths[name] = path

    def __getitem__(self, name: str) -> NDArray[np.float32]:
        return np.asarray(np.load(self._paths[name], allow_pickle=False), np.float32)

    def __iter__(self) -> Iterator[str]:
        return iter(self._paths)

    def __len__(self) -> int:
        return len(self._paths)

    def __contains__(self, name: object) -> bool:
        return name in self._paths
