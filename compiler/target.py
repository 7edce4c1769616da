"""What a target is to the compiler: a plugin that turns specialised graphs into artifact sections."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import Any, Protocol

import onnx_ir as ir

from infc.compiler.artifact.io import IoSpec
from infc.compiler.errors import UsageError
from infc.compiler.profiles import Profile

ENTRY_POINTS = "infc.targets"


@dataclass(frozen=True)
class Kernel:
    """A kernel the runtime has: ``op`` is a key of ``artifact.ops.OPS``, ``isa`` one of ``artifact.layout.ISAS``."""

    name: str
    op: str
    isa: str


@dataclass
class BuildContext:
    """What the driver lends a target.

    ``interface`` is what the artifact will take and give, with all profiles; what is measured is run through it.
    ``measure`` takes a whole artifact in memory and a thread count, runs it on random inputs and returns seconds a run (the
    minimum of several). ``timing_cache`` maps a key to seconds and is loaded and saved by the driver. ``log`` takes one line of
    progress.
    """

    interface: IoSpec
    kernels: Sequence[Kernel]
    native_isa: str
    measure: Callable[[bytes, int], float]
    timing_cache: dict[str, float]
    tune: bool
    threads: int
    isas: Sequence[str]
    disabled: frozenset[str] = frozenset()  # techniques of the target switched off by name
    machine: str = ""  # tells measured times of one machine from those of another, e.g. the CPU's model name
    log: Callable[[str], None] = lambda line: None


@dataclass(frozen=True)
class ProgramGraph:
    """A graph for one profile. ``bounds`` gives the largest value of each dimension that stays symbolic: a run-time scalar."""

    profile: Profile
    model: ir.Model
    bounds: dict[str, int]


@dataclass
class Section:
    """A section for the artifact writer; ``kind`` is a key of ``artifact.layout.SECTION_KINDS``."""

    kind: str
    data: bytes | memoryview
    name: str = ""
    ordinal: int = 0
    required: bool = True


@dataclass
class Layer:
    """One line of ``infc inspect``: a step as it was built."""

    name: str
    op: str
    kernel: str
    precision: str
    fused: list[str] = field(default_factory=list)  # names of the source's nodes computed here
    detail: dict[str, Any] = field(default_factory=dict)


@dataclass
class Compiled:
    """``layers`` maps "profile/isa" to the steps in order; ``memory`` holds bytes by kind."""

    sections: list[Section]
    layers: dict[str, list[Layer]]
    memory: dict[str, Any]
    notes: list[str] = field(default_factory=list)


class Target(Protocol):
    """``name`` is what ``--target`` takes; ``pipeline`` a key of ``compiler.pipeline.PIPELINES``; ``techniques`` the names that
    ``BuildContext.disabled`` may hold."""

    name: str
    pipeline: str
    techniques: tuple[str, ...]

    def compile(self, programs: Sequence[ProgramGraph], context: BuildContext) -> Compiled:
        """Raises UnsupportedError, naming the node, for what the target cannot run."""
        ...


def find(name: str) -> Target:
    """The target registered under ``name``."""
    found = {e.name: e for e in entry_points(group=ENTRY_POINTS)}
    if name not in found:
        raise UsageError("E0010", f"no target is named '{name}'", where="--target",
                         hint=f"one of: {', '.join(sorted(found)) or 'none is installed; reinstall infc'}")
    target: Target = found[name].load()()
    return target
