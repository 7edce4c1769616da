"""Static-shape profiles: what ``--profile batch=1,seq=128`` means."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from infc.compiler.errors import UsageError

_ITEM = re.compile(r"^\s*([A-Za-z_]\w*)\s*=\s*(\d+)\s*$")
_LARGEST = 1 << 20


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
        match = _ITEM.match(item)
        if not match:
            raise UsageError("E0201", f"'{item.strip()}' is not a dimension and its size", where=f"--profile {text}",
                             hint="write --profile batch=1,seq=128")
        name, size = match[1], int(match[2])
        if name in sizes:
            raise UsageError("E0202", f"dimension '{name}' is given twice", where=f"--profile {text}", hint="give each dimension once")
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
                raise UsageError("E0204", f"the model has no dimension '{name}'", where=f"--profile {profile}",
                                 hint=f"its dimensions are: {', '.join(wanted) or 'none, all are constant'}")
        missing = [name for name in wanted if name not in sizes]
        if missing:
            raise UsageError("E0205", f"no size is given for {', '.join(missing)}", where=f"--profile {profile}",
                             hint="--profile " + ",".join(f"{n}={sizes.get(n, 1)}" for n in wanted))
        ordered = tuple((name, sizes[name]) for name in wanted)
        done[tuple(size for _, size in ordered)] = Profile(ordered)
    return [p for _, p in sorted(done.items(), key=lambda item: (_product(item[0]), item[0]))]


def _product(sizes: tuple[int, ...]) -> int:
    product = 1
    for size in sizes:
        product *= size
    return product
