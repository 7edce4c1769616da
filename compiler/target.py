"""What a target is to the compiler: a plugin that turns specialised graphs into artifact sections."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from infc.compiler.artifact.io import IoSpec
from infc.compiler.errors import UsageError
from infc.compiler.profiles import Profile

if TYPE_CHECKING:
    import onnx_ir as ir

ENTRY_POINTS = "infc.targets"
PRECISIONS = ("f32", "f16", "bf16", "int8", "int8-static", "fp8", "int4", "auto")


@dataclass(frozen=True)
class Kernel:
    """A kernel the runtime has: ``op`` is a key of ``artifact.ops.OPS``, ``isa`` one of ``artifact.layout.ISAS``."""

    name: str
    op: str
    isa: str


@dataclass(frozen=True)
class GpuOptions:
    """What targets for GPUs are asked for. ``sms``: compute capabilities such as 89, ascending; none: that of this machine's GPU.
    ``layout``: "one" engine for all profiles, or an engine for "each". ``sparsity``: "2:4" if weights must hold that pattern.
    ``timeout`` in seconds and ``memory`` in bytes bound the process that builds an engine; None: no bound."""

    sms: tuple[int, ...] = ()
    layout: str = "one"
    sparsity: str = ""
    timeout: float | None = 3600.0
    memory: int | None = None


@dataclass(frozen=True)
class Watched:
    """What calibration says of a quantised layer's input: values from ``low`` to ``high`` are represented, what is within
    ``margin`` of an end is rounded to it. ``beyond``: the part of calibration's values farther out than that; ``lower`` and
    ``upper``: the parts that were rounded to an end."""

    low: float
    high: float
    margin: float
    beyond: float
    lower: float
    upper: float


@dataclass
class BuildContext:
    """What the driver lends a target.

    ``interface`` is what the artifact will take and give, with all profiles; what is measured is run through it.
    ``measure`` takes a whole artifact in memory and a thread count, runs it on random inputs and returns seconds a run (the
    minimum of several). ``timing_cache`` maps a key to seconds and is loaded and saved by the driver. ``log`` takes one line of
    progress.

    ``precision`` is one of PRECISIONS; to GPUs all int8 is "int8". ``ranges`` gives the least and largest value of activations, by
    value name, for quantised precisions; a graph that is quantised already carries Q/DQ instead. ``mask`` names the [batch, seq]
    input that is 0 where a position is padding. ``symbolic`` is the graph before it was specialised, ``state`` the sections that
    its programs need besides to run, ``command`` the command line
    that builds this artifact, without --target and --sm, ``cache`` a directory for what a target keeps between builds. ``watch``:
    quantised layers, by name, whose inputs are to be counted in every ``watch_every``-th run. ``force``: weights that are 2:4 are
    stored without their zeros, though it be slower. ``measure_steps``: as ``measure``, seconds of each step of the artifact's one
    program.
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
    precision: str = "f32"
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    mask: str | None = None
    gpu: GpuOptions = GpuOptions()
    symbolic: ir.Model | None = None
    state: Sequence[Section] = ()
    command: str = ""
    cache: Path | None = None
    watch: Mapping[str, Watched] = field(default_factory=dict)
    watch_every: int = 0
    force: bool = False
    measure_steps: Callable[[bytes, int], list[float]] | None = None


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


@dataclass(frozen=True)
class Handed:
    """A graph as it was handed to a builder whose engine cannot run here: the driver replays it in ONNX Runtime instead."""

    label: str
    profiles: tuple[Profile, ...]
    model: ir.Model


@dataclass
class Compiled:
    """``layers`` maps a program's label ("profile/isa", "profile/target/sm86+89") to its steps in order; ``memory`` holds bytes by
    kind. ``engines`` holds the facts of each engine of a GPU target for META: plain JSON values, nothing measured. The keys
    that reports know: flavour, version, sms, profiles, precision, size (bytes), programs (label of ``layers`` -> its numbers of
    layers, launches and fused_attentions), sparsity (one {state, …} a weight). ``measured``: of layers whose weights could be
    stored without zeros, seconds with (dense) and without (sparse), for the build's report alone."""

    sections: list[Section]
    layers: dict[str, list[Layer]]
    memory: dict[str, Any]
    notes: list[str] = field(default_factory=list)
    engines: list[dict[str, Any]] = field(default_factory=list)
    handed: list[Handed] = field(default_factory=list)
    measured: list[dict[str, Any]] = field(default_factory=list)


class Target(Protocol):
    """``name`` is what ``--target`` takes; ``pipeline`` a key of ``compiler.pipeline.PIPELINES``; ``techniques`` the names that
    ``BuildContext.disabled`` may hold; ``device`` "cpu" or "gpu": which options of a build it reads; ``precisions`` those of
    PRECISIONS that it builds."""

    name: str
    pipeline: str
    techniques: tuple[str, ...]
    device: str
    precisions: tuple[str, ...]

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
