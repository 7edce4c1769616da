"""From what a build was given to a calibration record: data that streams through the graphs, or a record that is loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from infc.compiler import samples
from infc.compiler.artifact.io import IoSpec
from infc.compiler.calibrate import data, observe, record, select
from infc.compiler.calibrate.data import Arrays, Data, Item
from infc.compiler.calibrate.gather import Estimate, Gathering
from infc.compiler.calibrate.prepare import Preparer
from infc.compiler.calibrate.record import Key, Record
from infc.compiler.errors import UsageError
from infc.compiler.interface import Interface

SYNTHETIC = "synthetic"
HELD_OUT = 64  # samples kept to judge by, where no other data is given for that


@dataclass(frozen=True)
class Settings:
    """``file``: data as FILE or FILE:COLUMN, a record, or "synthetic". ``at_once``: samples that run at the same time, which
    changes nothing but the time."""

    file: str
    samples: int = select.SAMPLES
    seed: int = 0
    at_once: int = 2


@dataclass(frozen=True)
class Subject:
    """What is calibrated: ``graphs`` by pipeline, after their fusion passes; ``source`` is the SHA-256 of the model's files and
    ``files`` those that prepare inputs; ``prepare`` gives a graph what it needs to run in ONNX Runtime."""

    source: str
    graphs: Mapping[str, ir.Model]
    spec: IoSpec
    interface: Interface
    mask: str | None
    files: Mapping[str, bytes]
    prepare: Callable[[ir.Model], object]

    def preparer(self) -> Preparer:
        return Preparer(self.spec, self.files, self.interface.mask, self.interface.indices)


@dataclass(frozen=True)
class Wishes:
    """By pipeline: whose products' Gram matrices are wanted, and whether the ranges of all floats are."""

    grams: Mapping[str, Sequence[str]] = field(default_factory=dict)
    every: bool = False


@dataclass(frozen=True)
class Listeners:
    """Who hears of the estimate before and of the samples done (of how many) meanwhile."""

    note: Callable[[str], None] = lambda line: None
    progress: Callable[[int, int], None] = lambda done, of: None


@dataclass(frozen=True)
class Obtained:
    """``used``: items that took part, and ``held_out`` ones of the same data that did not; none of a record."""

    record: Record
    used: list[Item] = field(default_factory=list)
    held_out: list[Item] = field(default_factory=list)


def is_record(file: str) -> bool:
    return record.is_record(Path(file).expanduser())


def obtain(settings: Settings, subject: Subject, wishes: Wishes, listeners: Listeners, held_out: int = 0,
           slices: str = "") -> Obtained:
    """Loads or makes the record. Raises UsageError E0800 to E0811, and as ``data.find``."""
    if is_record(settings.file):
        found = record.load(Path(settings.file).expanduser())
        for pipeline, model in subject.graphs.items():
            found.check(subject.source, pipeline, model, settings.file)
        return Obtained(found)
    if settings.file == SYNTHETIC and not Path(SYNTHETIC).exists():
        about: dict[str, Any] = {"name": SYNTHETIC, "sha256": "", "samples": settings.samples, "seed": settings.seed}
        return Obtained(_gather(settings, subject, wishes, listeners, about, lambda: _made_up(settings, subject)))
    chosen_data = data.find(settings.file)
    chosen = select.choose(chosen_data, settings.samples, settings.seed, held_out, slices)
    about = describe(chosen_data, len(chosen.items), chosen.seen, settings.seed)
    preparer = subject.preparer()
    made = _gather(settings, subject, wishes, listeners, about, lambda: map(preparer, chosen.items))
    return Obtained(made, chosen.items, chosen.held_out)


def describe(found: Data, used: int, of: int, seed: int) -> dict[str, Any]:
    """Data as META names it: no path."""
    return {"name": found.path.resolve().name, **({"column": found.column} if found.column else {}), "sha256": found.sha256(),
            "samples": used, "of": of, "seed": seed}


def _gather(settings: Settings, subject: Subject, wishes: Wishes, listeners: Listeners, about: Mapping[str, Any],
            stream: Callable[[], Iterator[Arrays]]) -> Record:
    sizes = {name: max(p[name] for p in subject.spec.profiles) for name in subject.interface.symbols}
    key = Key(subject.source, {p: record.graph_hash(m) for p, m in subject.graphs.items()}, {**about, "sizes": sizes})
    values, grams = {}, {}
    for number, (pipeline, model) in enumerate(subject.graphs.items()):
        gathering = Gathering(stream, int(about["samples"]), subject.mask, subject.prepare, settings.at_once,
                              estimated=lambda e, p=pipeline: listeners.note(_told(p, e)),  # type: ignore[misc]
                              progress=_part(listeners.progress, number, len(subject.graphs)))
        watched = observe.watched(model, wishes.every)
        values[pipeline], grams[pipeline] = gathering.run(model, watched, wishes.grams.get(pipeline, ()))
    return Record(key, values, grams)


def _part(progress: Callable[[int, int], None], number: int, parts: int) -> Callable[[int, int], None]:
    return lambda done, of: progress(number * of + done, parts * of)


def _told(pipeline: str, estimate: Estimate) -> str:
    passes = f" in {estimate.passes} passes" if estimate.passes > 1 else ""
    return (f"{pipeline}: {estimate.samples} samples{passes}, about {max(1, round(estimate.seconds))} s and "
            f"{estimate.memory / 1e6:.0f} MB of memory")


def _made_up(settings: Settings, subject: Subject) -> Iterator[Arrays]:
    """Random values within the declared ranges, at the largest profile's sizes and one row."""
    rng = np.random.default_rng(settings.seed)
    sizes = {name: 1 if name == "batch" else max(p[name] for p in subject.spec.profiles) for name in subject.interface.symbols}
    for _ in range(settings.samples):
        yield samples.random_inputs(subject.interface, sizes, rng)


def evaluation(file: str, slices: str, seed: int, most: int) -> tuple[Data, list[Item], int]:
    """The data to judge by, at most ``most`` of its items, and how many there are."""
    found = data.find(file)
    chosen = select.choose(found, most, seed, 0, slices)
    return found, chosen.items, chosen.seen


def needed(targets: Sequence[str]) -> UsageError:
    """What a quantised build without data fails with."""
    return UsageError("E0814", f"{' and '.join(targets)} is made with data: what the model meets decides how it is rounded",
                      where="--precision", hint="give --calibration FILE, some hundred samples of what the model is for: .txt, "
                      ".jsonl, .csv, .parquet, .npz or a folder of photos or recordings; --calibration synthetic needs none and "
                      "costs accuracy, as does --method rtn of int8 and int4 on the CPU")
