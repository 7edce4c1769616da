"""build(): the only place where passes, targets and the runtime meet."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from infc import runtime
from infc.compiler import cache, golden, profiles, report, samples, source, target, tokenizer
from infc.compiler.artifact import golden as golden_section
from infc.compiler.artifact import io, writer
from infc.compiler.artifact.golden import GoldenCase
from infc.compiler.artifact.layout import DIM_EXACT, DIM_PADS, ISAS, MAGIC
from infc.compiler.errors import UnsupportedError, UsageError
from infc.compiler.export import Exported, check_outputs, export
from infc.compiler.interface import Interface, TensorSpec
from infc.compiler.options import BuildOptions, unknown
from infc.compiler.pipeline import FOLD, PIPELINES
from infc.compiler.profiles import Profile
from infc.compiler.reference import PassChecker
from infc.compiler.source import Source
from infc.compiler.target import BuildContext, Compiled, Kernel, ProgramGraph, Section, Target
from infc.passes.base import PassManager, PassRecord
from infc.passes.domain import add_functions as add_functions  # the command line exports graphs with it

PACKED = "infc.packed"  # graph metadata of the pass pack_tokens: run-time scalars and the dimensions they count
_MEASURE_RUNS = 5
_MEASURE_SECONDS = (0.05, 0.5)  # at least, and after which five runs are not waited for


@dataclass(frozen=True)
class Event:
    """Progress: a stage begins (``seconds`` None), ends, or says something (``note``)."""

    stage: str
    seconds: float | None = None
    note: str = ""


Progress = Callable[[Event], None]


@dataclass
class BuildResult:
    """``report`` holds all that is known of the build, measured figures included; ``summary()`` is for people."""

    path: Path
    report: dict[str, Any]
    records: list[PassRecord]

    def summary(self) -> list[str]:
        return report.summary(self.report)


@dataclass
class Stages:
    """Names and times of what a build does."""

    progress: Progress = lambda event: None
    seconds: dict[str, float] = field(default_factory=dict)
    current: str = ""

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        self.current = name
        self.progress(Event(name))
        start = time.perf_counter()
        yield
        self.seconds[name] = time.perf_counter() - start
        self.progress(Event(name, self.seconds[name]))

    def note(self, line: str) -> None:
        self.progress(Event(self.current, note=line))


def build(model: str | Path, output: str | Path | None = None, *, progress: Progress | None = None, **options: Any) -> BuildResult:
    """Compiles a model directory, hub id, .onnx file or pkg:NAME/path into one artifact file, ``STEM.infc`` by default.

    ``options`` are the fields of ``BuildOptions``. The same model, options and timings give the same bytes, in any directory. The
    finished engine is replayed against the model; if it differs, CheckError E0503 is raised and no file is left.
    """
    chosen = BuildOptions.of(options)
    stages = Stages(progress or Stages.progress)
    plugin = check_names(chosen)
    isas = chosen.resolved_isas(runtime.cpu_isa())
    with stages("read"):
        found = source.resolve(model, revision=chosen.revision, trust_remote_code=chosen.trust_remote_code)
    path = Path(output or f"{found.stem}.infc")
    _check_output(path)
    if chosen.report and not Path(chosen.report).parent.is_dir():
        raise UsageError("E0021", "the directory for the report does not exist", where=chosen.report, hint="create it first")
    with stages("export"):
        exported = export(found)
    wanted = choose_profiles(exported.interface, chosen)
    check_outputs(exported, wanted[0].as_dict())
    with stages("passes"):
        records = optimise(exported, chosen, plugin.pipeline)
        exported = _settled(exported)
        graphs = specialise(exported.model, wanted)
    with stages("compile"):
        compiled = _compile(plugin, graphs, exported, chosen, isas, stages)
    with stages("golden"):
        cases = golden.make(exported, wanted, samples.tokenizer(found), bool(run_time_dims(exported.model)))
        meta = _meta(found, exported, wanted, chosen, isas, compiled)
        details = {"passes": [_record(r) for r in records], "memory": compiled.memory, "notes": compiled.notes}
        sections = _sections(found, io_spec(exported, wanted), meta, details, cases, compiled)
        largest = _replay(writer.pack(sections), cases, exported.interface, isas)
    with stages("write"):
        _write(path, sections)
    full = {**meta, **details, "reference": exported.engine, "size": path.stat().st_size, "stages": stages.seconds,
            "golden": {"cases": len(cases), "stored": len(golden.stored(cases)), "largest_difference": largest}}
    if chosen.report:
        Path(chosen.report).write_text(json.dumps(full, indent=1) + "\n", encoding="utf-8")
    return BuildResult(path, full, records)


def choose_profiles(interface: Interface, options: BuildOptions) -> list[Profile]:
    """The given profiles, checked against the model, or the task's default ones; smallest first."""
    if not options.profiles:
        return profiles.default(interface.task, interface.symbols, interface.limits, interface.lengths)
    chosen = profiles.check(options.profiles, interface.symbols)
    profiles.check_limits(chosen, interface.limits)
    return chosen


def optimise(exported: Exported, options: BuildOptions, pipeline: str = "cpu") -> list[PassRecord]:
    """Runs the graph passes of a pipeline over the exported graph, in place."""
    check = PassChecker(exported.interface, add_functions) if options.check_passes else None
    names = {p.name for p in PIPELINES[pipeline]}
    manager = PassManager(PIPELINES[pipeline], disabled=tuple(n for n in options.disable if n in names),
                          only=options.only, dump_dir=options.dump_graphs, check=check)
    return manager.run(exported.model)


def run_time_dims(model: ir.Model) -> dict[str, list[str]]:
    """Run-time scalars of a packed graph and the named dimensions whose product bounds each; empty for other graphs."""
    found: dict[str, list[str]] = json.loads(model.metadata_props.get(PACKED, "{}"))
    return found


def specialise(model: ir.Model, wanted: Sequence[Profile]) -> list[ProgramGraph]:
    """One graph a profile. Dimensions that a packed graph counts at run time stay symbolic, with bounds; all others are sizes."""
    counted = run_time_dims(model)
    keep = {name for names in counted.values() for name in names}
    graphs = []
    for profile in wanted:
        graph = profiles.specialise(model, profile, keep | set(counted))
        PassManager(FOLD).run(graph)
        bounds = {name: size for name, size in profile.sizes if name in keep}
        bounds |= {scalar: int(np.prod([profile[n] for n in names])) for scalar, names in counted.items()}
        graphs.append(ProgramGraph(profile, graph, bounds))
    return graphs


def io_spec(exported: Exported, wanted: Sequence[Profile]) -> io.IoSpec:
    """The IO section: a dimension that is counted at run time pads, any other must match exactly."""
    interface = exported.interface
    pads = {name for names in run_time_dims(exported.model).values() for name in names}
    symbols = [io.IoSymbol(s, DIM_PADS if s in pads else DIM_EXACT) for s in interface.symbols]
    inputs, outputs = ([_io_tensor(t) for t in side] for side in (interface.inputs, interface.outputs))
    return io.IoSpec(inputs, outputs, symbols, [p.as_dict() for p in wanted])


def _io_tensor(spec: TensorSpec) -> io.IoTensor:
    return io.IoTensor(spec.name, spec.dtype, spec.dims, spec.fill is not None, spec.fill or 0, spec.range)


def _settled(exported: Exported) -> Exported:
    """With the outputs' dimensions as the passes inferred them. Raises UnsupportedError E0405 for one that is no input's."""
    interface = exported.interface
    outputs = []
    for spec, value in zip(interface.outputs, exported.model.graph.outputs, strict=True):
        dims = tuple(d if isinstance(d, int) else str(d.value) for d in value.shape or ())
        for d in dims:
            if isinstance(d, str) and d not in interface.symbols:
                raise UnsupportedError("E0405", f"output '{spec.name}' has the size {d}, which is not that of an input's dimension",
                                       where=spec.name, hint="export the model with constant sizes")
        outputs.append(replace(spec, dims=dims))
    return replace(exported, interface=replace(interface, outputs=tuple(outputs)))


def _check_output(path: Path) -> None:
    """What would fail, or lose something, at the end of a build is refused at its start. A rename replaces even devices."""
    folder = path.resolve().parent
    if not folder.is_dir():
        raise UsageError("E0021", "the directory for the artifact does not exist", where=str(path), hint="create it first")
    if not os.access(folder, os.W_OK):
        raise UsageError("E0021", "the directory for the artifact is not writable", where=str(folder), hint="choose another one")
    if path.exists() and not (path.is_file() and _is_replaceable(path)):
        raise UsageError("E0022", "it exists and is not an artifact, so it is not replaced", where=str(path),
                         hint="choose another name with -o, or remove it first")


def _is_replaceable(path: Path) -> bool:
    with open(path, "rb") as file:
        return file.read(len(MAGIC)) in (b"", MAGIC)


def _write(path: Path, sections: Sequence[Section]) -> None:
    try:
        writer.write(path, sections)
    except OSError as error:  # it names the file aside
        raise UsageError("E0023", f"cannot be written: {error.strerror}", where=str(path),
                         hint="choose another place with -o") from error


def check_names(options: BuildOptions) -> Target:
    """The target. Raises UsageError for a name of a target, pass or technique that there is not."""
    plugin = target.find(options.target)
    passes = [p.name for p in PIPELINES[plugin.pipeline]]
    for name in options.disable:
        if name not in passes and name not in plugin.techniques:
            raise unknown("pass or technique", name, [*passes, *plugin.techniques], where="--disable")
    for name in options.only or ():
        if name not in passes:
            raise unknown("pass", name, passes, where="--only")
    return plugin


def _compile(plugin: Target, graphs: Sequence[ProgramGraph], exported: Exported, options: BuildOptions, isas: Sequence[str],
             stages: Stages) -> Compiled:
    path = Path(options.timing_cache) if options.timing_cache else cache.timings_path()
    timings = cache.load_timings(path) if options.tune else {}
    known = dict(timings)
    context = BuildContext(
        interface=io_spec(exported, [g.profile for g in graphs]), kernels=[Kernel(*k) for k in runtime.kernels()],
        native_isa=runtime.cpu_isa(), measure=_measurer(exported.interface),
        timing_cache=timings, tune=options.tune, threads=options.resolved_threads(), isas=isas,
        disabled=frozenset(n for n in options.disable if n in plugin.techniques), log=stages.note, machine=cache.machine())
    compiled = plugin.compile(graphs, context)
    if timings != known:
        _keep_timings(path, timings, bool(options.timing_cache), stages)
    return compiled


def _keep_timings(path: Path, timings: dict[str, float], wanted: bool, stages: Stages) -> None:
    """A build does not fail because the user's cache is not writable, unless the file was asked for."""
    try:
        cache.save_timings(path, timings)
    except OSError as error:
        if wanted:
            raise UsageError("E0023", f"cannot be written: {error.strerror}", where=str(path),
                             hint="give another file with --timing-cache") from error
        stages.note(f"measured times are not kept: {path} cannot be written: {error.strerror}")


def _measurer(interface: Interface) -> Callable[[bytes, int], float]:
    """Seconds a run on full inputs of the largest profile: the minimum, which the machine's other work disturbs least."""

    def measure(artifact: bytes, threads: int) -> float:
        engine = runtime.Engine(artifact, threads=threads)
        inputs = samples.random_inputs(interface, engine.profiles[-1], np.random.default_rng(0))
        context = engine.context()
        context.bind({t.name: inputs[t.name] for t in engine.inputs})
        best, spent, runs = float("inf"), 0.0, 0
        while spent < _MEASURE_SECONDS[0] or (runs < _MEASURE_RUNS and spent < _MEASURE_SECONDS[1]):
            start = time.perf_counter()
            context.run()
            took = time.perf_counter() - start
            best, spent, runs = min(best, took), spent + took, runs + 1
        return best

    return measure


def _meta(found: Source, exported: Exported, wanted: Sequence[Profile], options: BuildOptions, isas: Sequence[str],
          compiled: Compiled) -> dict[str, Any]:
    """Where the artifact comes from and what it is; no time, no path, nothing measured."""
    return {
        "source": {"name": found.name, "sha256": found.hash, "architecture": found.architecture, "revision": found.revision},
        "task": exported.interface.task,
        "mask": exported.interface.mask,
        "options": {"target": options.target, "threads": options.resolved_threads(), "tune": options.tune,
                    "disable": sorted(options.disable), "only": sorted(options.only) if options.only else None,
                    "trust_remote_code": options.trust_remote_code},
        "profiles": [str(p) for p in wanted],
        "isas": list(isas),
        "versions": report.versions(),
        "layers": report.layers(compiled),
    }


def _record(record: PassRecord) -> dict[str, Any]:
    """What a pass matched and nearly matched; no times."""
    content = asdict(record)
    del content["seconds"]
    return content


def _sections(found: Source, spec: io.IoSpec, meta: Mapping[str, Any], details: Mapping[str, Any],
              cases: Sequence[GoldenCase], compiled: Compiled) -> list[Section]:
    tokens = tokenizer.archive(found)
    sections = [Section("META", report.encode(meta)), Section("IO", io.encode(spec)),
                *(s for s in compiled.sections if s.kind != "WEIGHTS"),
                *([Section("TOKENIZER", tokens, required=False)] if tokens else []),
                Section("GOLDEN", golden_section.encode(golden.stored(cases), spec), required=False),
                Section("REPORT", report.encode(details), required=False)]
    return [*sections, *(s for s in compiled.sections if s.kind == "WEIGHTS")]


def _replay(artifact: bytes, cases: Sequence[GoldenCase], interface: Interface, isas: Sequence[str]) -> float:
    """Runs all cases on every program this machine can run, with one thread and with all; the largest difference."""
    runnable = [isa for isa in isas if ISAS[isa] <= ISAS[runtime.cpu_isa()]]
    largest = 0.0
    for isa in runnable:
        for threads in sorted({1, len(os.sched_getaffinity(0))}):
            engine = runtime.Engine(artifact, threads=threads, isa=isa)
            largest = max(largest, golden.require(golden.replay(engine, cases, interface), f"{isa}, {threads} threads"))
    return largest
