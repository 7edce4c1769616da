"""Static-shape profiles: what ``--profile batch=1,seq=128`` means."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING

from infc.compiler.errors import UsageError

if TYPE_CHECKING:
    import onnx_ir as ir

NAME = r"[^\W\d][\w.]*"  # of a dimension
_ITEM = re.compile(rf"\s*({NAME})\s*=\s*([0-9]+)\s*")
_LARGEST = 1 << 20
_SMALL = {"batch": 1, "seq": 128, "texts": 4, "samples": 16000}
_GENERATION = ((1, 1), (8, 8), (128, 64), (512, 64))  # tokens of a step and rows of logits: decoding, some sequences, prompts
_USUAL = (("batch", 1), ("seq", 128), ("length", 128), ("height", 224), ("width", 224), ("channel", 3), ("samples", 16000))


@dataclass(frozen=True)
class Profile:
    """Sizes of named dimensions, in the order given."""

    sizes: tuple[tuple[str, int], ...]

    def __str__(self) -> str:
        return ",".join(f"{name}={size}" for name, size in self.sizes)

    def __getitem__(self, name: str) -> int:
        return dict(self.sizes)[name]

    def as_dict(self) -> dict[str, int]:
        return dict(self.sizes)


def parse(text: str) -> Profile:
    """Raises UsageError for anything but ``name=size[,name=size…]`` with distinct names and sizes from 1 to 2^20."""
    sizes: dict[str, int] = {}
    for item in text.split(","):
        match = _ITEM.fullmatch(item)
        if not match:
            raise UsageError("E0201", f"'{item.strip()}' is not a dimension and its size", where=f"--profile {text}",
                             hint="write --profile batch=1,seq=128")
        name, size = match[1], int(match[2])
        if name in sizes:
            raise UsageError("E0202", f"dimension '{name}' is given twice", where=f"--profile {text}",
                             hint="give each dimension once")
        if not 1 <= size <= _LARGEST:
            raise UsageError("E0203", f"{name}={size} is out of range", where=f"--profile {text}", hint=f"use 1 to {_LARGEST}")
        sizes[name] = size
    return Profile(tuple(sizes.items()))


def check(profiles: Iterable[Profile], symbols: Iterable[str]) -> list[Profile]:
    """Profiles put in the order of ``symbols`` and sorted from smallest to largest, duplicates dropped.

    Raises UsageError when a profile names a dimension the model lacks or leaves one out.
    """
    wanted = list(symbols)
    done: dict[tuple[int, ...], Profile] = {}
    for profile in profiles:
        sizes = profile.as_dict()
        for name in sizes:
            if name not in wanted:
                close = get_close_matches(name, wanted, n=1)
                meant = f"did you mean {close[0]}? " if close else ""
                lengths = "; a prompt of any length comes in chunks: --context is what bounds it" if "tokens" in wanted else ""
                raise UsageError("E0204", f"the model has no dimension '{name}'", where=f"--profile {profile}",
                                 hint=f"{meant}its dimensions are: {', '.join(wanted) or 'none, all are constant'}{lengths}")
        missing = [name for name in wanted if name not in sizes]
        if missing:
            raise UsageError("E0205", f"no size is given for {', '.join(missing)}", where=f"--profile {profile}",
                             hint=f"--profile {_suggestion(wanted, sizes)}")
        ordered = tuple((name, sizes[name]) for name in wanted)
        done[tuple(size for _, size in ordered)] = Profile(ordered)
    return [p for _, p in sorted(done.items(), key=lambda item: (_product(item[0]), item[0]))]


def _product(sizes: tuple[int, ...]) -> int:
    product = 1
    for size in sizes:
        product *= size
    return product


def _suggestion(wanted: Iterable[str], given: Mapping[str, int]) -> str:
    """A profile for people to change: sizes that are usual for dimensions of such names."""
    guesses = {n: next((size for part, size in _USUAL if part in n.lower()), 1) for n in wanted}
    return ",".join(f"{n}={given.get(n, guess)}" for n, guess in guesses.items())


def default(task: str, symbols: Iterable[str], limits: Mapping[str, int], lengths: Mapping[str, int],
            places: Mapping[str, str] | None = None) -> list[Profile]:
    """The profiles of a build that names none.

    One short text, photo or second of speech, which is the case people measure, and a batch of eight as long as the model was made
    for; where padding is not computed the larger one costs memory only. Outputs of a vocabulary's width get no batch: they would be
    gigabytes.
    Raises UsageError if a dimension is neither a batch nor a length, for then nobody can guess; ``places`` says where those are.
    """
    wanted = list(symbols)
    if task == "text-generation":
        most = limits["tokens"]
        return check((Profile((("tokens", min(t, most)), ("rows", min(r, t, most)))) for t, r in _GENERATION), wanted)
    unknown = [s for s in wanted if s not in _SMALL]
    if unknown:
        named = ", ".join(f"{s} ({places[s]})" if places and s in places else s for s in unknown)
        raise UsageError("E0206", f"the model's dimension {named} has no default size", where="--profile",
                         hint=f"--profile {_suggestion(wanted, {})}")
    large = {"batch": 8, "seq": lengths.get("seq", _SMALL["seq"] * 4), "texts": 16, "samples": 160000}
    sizes = [_SMALL] if task == "fill-mask" else [_SMALL, large]
    return check((Profile(tuple((s, min(size[s], limits.get(s, size[s]))) for s in wanted)) for size in sizes), wanted)


def check_limits(profiles: Iterable[Profile], limits: Mapping[str, int]) -> None:
    """Raises UsageError E0207 for a profile larger than the model defines, such as positions beyond its table."""
    for profile in profiles:
        for name, size in profile.sizes:
            if size > limits.get(name, size):
                raise UsageError("E0207", f"{name}={size} is more than the model's {limits[name]}", where=f"--profile {profile}",
                                 hint=f"use {name}={limits[name]} or less")


def specialise(model: ir.Model, profile: Profile, keep: set[str]) -> ir.Model:
    """A copy in which the dimensions that ``profile`` names are its sizes, those in ``keep`` excepted. Weights are shared.

    What is left unknown, the passes of ``pipeline.FOLD`` infer.
    """
    sizes = {name: size for name, size in profile.sizes if name not in keep}
    copy = model.clone()
    for graph in copy.graphs():
        for value in (*graph.inputs, *(v for node in graph for v in node.outputs)):
            if value.shape is not None:
                value.shape = value.shape.evaluate(sizes)
    return copy
