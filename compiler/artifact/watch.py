"""The WATCH section: which activations a context counts, and the ranges of calibration that they are held against."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from infc.compiler.artifact.cursor import StringTable
from infc.compiler.artifact.layout import WATCH_HEADER, WATCH_LAYER, WATCH_PLACE

EVERY = 256


@dataclass(frozen=True)
class Place:
    """Input ``operand`` of a step of the ``program``-th PROGRAM section; what is below ``low`` or above ``high``, in the operand's
    own unit, is beyond. ``by_row``: row r of the step's ROWS split reads row r of it."""

    program: int
    step: int
    layer: int
    operand: int
    by_row: bool
    low: float
    high: float


@dataclass(frozen=True)
class Watch:
    """``layers`` are (name, low, high, part of calibration's values beyond); of every ``every`` runs one counts."""

    layers: Sequence[tuple[str, float, float, float]]
    places: Sequence[Place]
    every: int = EVERY


def encode(watch: Watch) -> bytes:
    """The bytes of a WATCH section."""
    strings = StringTable()
    layers = np.zeros(len(watch.layers), WATCH_LAYER.dtype)
    for record, (name, low, high, beyond) in zip(layers, watch.layers, strict=True):
        record["name"], record["low"], record["high"], record["beyond"] = strings.add(name), low, high, beyond
    places = np.zeros(len(watch.places), WATCH_PLACE.dtype)
    for record, place in zip(places, sorted(watch.places, key=lambda p: (p.program, p.step)), strict=True):
        for name, value in vars(place).items():
            record[name] = value
    header = np.zeros((), WATCH_HEADER.dtype)
    header["layer_count"], header["place_count"], header["every"] = len(layers), len(places), watch.every
    header["strings_size"] = len(strings.data)
    return b"".join((header.tobytes(), layers.tobytes(), places.tobytes(), bytes(strings.data)))
