"""Inputs to try a model with: texts through its tokenizer where it has one, random values within the declared ranges otherwise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from infc.compiler import foreign
from infc.compiler.errors import UsageError
from infc.compiler.interface import Interface, TensorSpec

if TYPE_CHECKING:
    from infc.compiler.source import Source

Arrays = dict[str, np.ndarray]

_SMALL = 24  # size of a dimension in quick comparisons
_EXAMPLE = 16  # and in exporting
_BOUNDLESS = 1 << 30
_SHORTEST = 3  # a text of fewer tokens holds nothing but the special ones

TEXTS = (
    "The harbour was quiet by the time the ferry came in, and nobody waited on the quay.",
    "She measured the flour twice, because the recipe had failed the last time she trusted it.",
    "Interest rates rose by a quarter of a point on Thursday; the markets hardly moved.",
    "How do I reset the password of my account if I no longer have the phone?",
    "A comet that was last seen in 1862 will be visible to the naked eye next August.",
    "The committee postponed its decision on the bridge until an engineer had looked at the piers.",
    "Rain in the north, bright spells later, with temperatures near nine degrees.",
    "In 1928 a mould on a forgotten dish showed that bacteria would not grow near it.",
)


class Tokenizer(Protocol):
    def __call__(self, text: str, length: int) -> list[int]:
        """Exactly ``length`` token ids of the text, special tokens included."""
        ...


@dataclass(frozen=True)
class Case:
    name: str
    inputs: Arrays


def tokenizer(source: Source) -> Tokenizer | None:
    """The tokenizer of the source's tokenizer.json; None if it has none."""
    path = source.model_path / "tokenizer.json"
    if source.is_onnx or not path.is_file():
        return None
    if other := foreign.file(path):
        raise other
    from tokenizers import Tokenizer as Backend

    try:
        backend: Any = Backend.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower
        raise UsageError("E0116", f"not a tokenizer: {error}", where=str(path), hint="download the file again") from error
    backend.no_padding()

    def tokenize(text: str, length: int) -> list[int]:
        backend.enable_truncation(length)
        repeated: list[int] = backend.encode(" ".join([text] * length)).ids
        return repeated

    return tokenize


def small_sizes(interface: Interface) -> dict[str, int]:
    """Sizes for a quick comparison: a few rows of some tokens."""
    wanted = {"batch": 4, **interface.examples}
    return {s: min(wanted.get(s, _SMALL), interface.limits.get(s, _BOUNDLESS)) for s in interface.symbols}


def example_sizes(interface: Interface, number: int = 0) -> dict[str, int]:
    """Sizes to export with, no two alike; ``number`` 1 gives other ones, all different from the first."""
    sizes = {}
    for place, symbol in enumerate(interface.symbols):
        size = interface.examples.get(symbol, 2 if symbol == "batch" else _EXAMPLE)
        size = min(size + (place if symbol != "batch" else 0), interface.limits.get(symbol, _BOUNDLESS))
        sizes[symbol] = size + number if symbol == "batch" else max(1, size - number * (size // 4 or 1))
    return sizes


def example(interface: Interface, number: int = 0) -> Arrays:
    return random_inputs(interface, example_sizes(interface, number), np.random.default_rng(number))


def cases(interface: Interface, sizes: Mapping[str, int], tokenize: Tokenizer | None = None, *,
          trim: bool = True) -> Iterator[Case]:
    """The full size; one row with padding; a batch of mixed lengths; the same in random values. Seeded.

    ``trim``: dimensions may be smaller than ``sizes``, so that rows without padding and a batch cut to its longest row appear.
    """
    rng = np.random.default_rng(len(interface.inputs))
    yield Case("full", _filled(interface, sizes, rng, None, tokenize))
    if interface.mask and len(interface.mask_dims()) == 2:
        yield from _masked(interface, sizes, rng, tokenize, trim)
    if interface.context and trim and sizes["tokens"] > 1:
        fewer = {**sizes, "tokens": max(1, sizes["tokens"] * 3 // 5), "rows": 1}
        yield Case("shorter", _filled(interface, fewer, rng, None, tokenize))
    if tokenize:
        yield Case("random", _filled(interface, sizes, rng, None, None))


def _masked(interface: Interface, sizes: Mapping[str, int], rng: np.random.Generator, tokenize: Tokenizer | None,
            trim: bool) -> Iterator[Case]:
    batch, seq = interface.mask_dims()
    rows, columns = (d if isinstance(d, int) else sizes[d] for d in (batch, seq))
    shortest = min(interface.shortest.get(str(seq), _SHORTEST), columns)
    longest = max(1, columns * 3 // 5)
    yield Case("padded", _filled(interface, sizes, rng, np.full(rows, longest), tokenize))
    trim = trim and isinstance(batch, str) and isinstance(seq, str)
    cut = {**sizes, str(seq): longest} if trim else sizes
    lengths = np.linspace(longest, min(shortest, longest), rows).astype(int)
    yield Case("mixed lengths", _filled(interface, cut, rng, lengths, tokenize))
    if trim:
        yield Case("shortest", _filled(interface, {**sizes, str(batch): 1, str(seq): shortest}, rng, None, tokenize))


def random_inputs(interface: Interface, sizes: Mapping[str, int], rng: np.random.Generator) -> Arrays:
    """Values within the declared ranges and no padding."""
    return _filled(interface, sizes, rng, None, None)


def _filled(interface: Interface, sizes: Mapping[str, int], rng: np.random.Generator, lengths: np.ndarray | None,
            tokenize: Tokenizer | None) -> Arrays:
    arrays = {t.name: _random(t, t.shape(sizes), rng, interface.integers) for t in interface.inputs}
    for name, dim in interface.indices.items():
        count = len(arrays[name])
        arrays[name] = np.maximum(np.arange(sizes[dim] - count, sizes[dim]), 0).astype(arrays[name].dtype)
    if interface.context and tokenize and sizes["tokens"] >= _SHORTEST:
        arrays["input_ids"][...] = tokenize(TEXTS[0], sizes["tokens"])
    if interface.mask is None:
        return arrays
    mask = arrays[interface.mask]
    mask[...] = 1
    if lengths is not None:
        mask[...] = np.arange(mask.shape[1]) < lengths[:, None]
    ids = arrays.get("input_ids")
    if tokenize and ids is not None and ids.shape == mask.shape:
        _write_texts(arrays, mask, tokenize)
    return arrays


def _write_texts(arrays: Arrays, mask: np.ndarray, tokenize: Tokenizer) -> None:
    for row, length in enumerate(mask.astype(np.int64).sum(1)):
        ids = tokenize(TEXTS[row % len(TEXTS)], int(length)) if length >= _SHORTEST else []
        arrays["input_ids"][row, len(ids):] = 0
        arrays["input_ids"][row, : len(ids)] = ids
    if "token_type_ids" in arrays:
        arrays["token_type_ids"][...] = 0


def _random(spec: TensorSpec, shape: Sequence[int], rng: np.random.Generator, integers: tuple[int, int]) -> np.ndarray:
    if spec.element != spec.numpy:
        return rng.standard_normal(shape).astype(np.float32).astype(spec.element).view(spec.numpy)
    if spec.numpy.kind == "f":
        return np.asarray(rng.standard_normal(shape), spec.numpy)
    low, high = spec.range or ((0, 1) if spec.numpy.kind == "b" else integers)
    return np.asarray(rng.integers(max(low, min(high, 0)), high, shape, endpoint=True), spec.numpy)
