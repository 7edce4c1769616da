"""Control flow in a table of steps: the regions that follow `branch` and `repeat` steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

CONTROL = ("branch", "repeat")
MAX_NESTING = 8  # regions within each other, as in the runtime's internal.h


@dataclass(frozen=True)
class Region:
    """Steps ``control + 1`` to before ``then_end`` run if the control step is taken, those from there to before ``end`` if a branch
    is not."""

    control: int
    then_end: int
    end: int
    repeats: bool

    @cached_property
    def boundaries(self) -> tuple[int, ...]:
        """Where threads that go through the region together have met: the first step of each part, and the one after it."""
        return self.control + 1, self.then_end, self.end

    def holds(self, step: int) -> bool:
        return self.control < step < self.end

    def repeated(self, step: int) -> bool:
        """Whether the step runs anew in each iteration; the control step itself does."""
        return self.repeats and self.control <= step < self.end


def regions(steps: Sequence[tuple[str, Sequence[int]]]) -> list[Region]:
    """The regions of steps that are given by operator and words, outer ones first."""
    found = []
    for i, (op, words) in enumerate(steps):
        if op in CONTROL:
            then_end = i + 1 + words[0]
            found.append(Region(i, then_end, then_end if op == "repeat" else then_end + words[1], op == "repeat"))
    return found


def regions_by_step(found: Sequence[Region], count: int) -> list[tuple[Region, ...]]:
    """The regions whose control step or parts each of ``count`` steps is, outer ones first."""
    near: list[tuple[Region, ...]] = [()] * count
    for region in found:
        for i in range(region.control, min(region.end, count)):
            near[i] += (region,)
    return near
