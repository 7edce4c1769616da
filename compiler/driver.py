"""build(): the only place where passes, targets and the runtime meet."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from infc import runtime
from infc.compiler import (
    assemble,
    cache,
    generation,
    golden,
    profiles,
    replay,
    report,
    residence,
    samples,
    source,
    target,
    tuning,
    values,
)
from infc.compiler import output as output_file
from infc.compiler.artifact import writer
from infc.compiler.artifact.golden import GoldenCase
from infc.compiler.artifact.layout import ISAS
from infc.compiler.calibrate import record as records
from infc.compiler.calibrate import session, stage
from infc.compiler.calibrate.budget import Sensitivity
from infc.compiler.calibrate.record import Record
from infc.compiler.calibrate.session import Listeners
from infc.compiler.calibrate.stage import Stage
from infc.compiler.errors import CheckError, UnsupportedError, UsageError
from infc.compiler.export import Exported, check_outputs, export
from infc.compiler.fixed import advice, fix
from infc.compiler.interface import Interface
from infc.compiler.lowering import PROOF, Lowered, add_functions, compile_written_out, lower, manager, settle, specialise
from infc.compiler.options import BuildOptions, unknown
from infc.compiler.pipeline import PIPELINES, QUANTISED
from infc.compiler.profiles import Profile
from infc.compiler.reference import Other
from infc.compiler.target import BuildContext, Compiled, Kernel, Section, Target, Watched
from infc.passes.base import PassRecord

_DRAWN = 8  # bytes of a random number before it has the input's type


@dataclass(frozen=True)
class Event:
    """Progress: a stage begins (``seconds`` None), ends, says something (``note``), or has ``done`` some of what it has to do."""

    stage: str
    seconds: float | None = None
    note: str = ""
    done: int = 0
    of: int = 0


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
        residence.trim()
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start
        self.progress(Event(name, self.seconds[name]))

    def note(self, line: str) -> None:
        self.progress(Event(self.current, note=line))

    def part(self, done: int, of: int) -> None:
        self.progress(Event(self.current, done=done, of=of))


def build(model: str | Path, output: str | Path | None = None, *, progress: Progress | None = None, **options: Any) -> BuildResult:
    """Compiles a model directory, hub id, .onnx file or pkg:NAME/path into one artifact file, ``STEM.infc`` by default.

    ``options`` are the fields of ``BuildOptions``; ``target="cpu,tensorrt-rtx", sm="89,120"`` builds for the CPU and for two kinds
    of GPU. The same model, options and timings give the same bytes, in any directory. CPU programs are replayed against the
    model; if one differs, CheckError E0503 is raised and no file is left. An engine for a GPU cannot run on every machine that
    builds it: the graph it was made of is replayed instead, and the report says so. A quantised program is held against the model
    within what its graph loses in ONNX Runtime, and judged on data that took no part; layers go back to higher precision until it
    keeps ``budget``, if there is one.
    """
    chosen = BuildOptions.of(options)
    stages = Stages(progress or Stages.progress)
    plugins, isas, ranges = prepare(chosen)
    stage.check(chosen)
    with stages("read"):
        found = _source(model, chosen)
    stage.check_data(chosen, found, {p.name: p.pipeline for p in plugins})
    path = Path(output or f"{found.stem}.infc")
    output_file.check(path, chosen.report)
    with stages("export"):
        exported = fix(export(found), chosen.set)
    wanted = choose_profiles(exported.interface, chosen)
    with advice(exported, chosen.command(str(model), plugins[0].name)):
        exported = check_outputs(exported, wanted[0].as_dict())
        with stages("passes"):
            lowered, wanted = settle(lower(exported, chosen, plugins), wanted)
            kept = generation.Cache.of(lowered.graphs.values(), lowered.interface, chosen, wanted)
            state = kept.sections(found) if kept else []
            if kept:
                stages.note(f"memory: {kept.planned(lowered.graphs, wanted)}")
        exported = replace(exported, interface=lowered.interface)
        with stages("golden"):  # of the model itself, before there is more of it
            cases = golden.make(exported, wanted, samples.tokenizer(found), bool(lowered.pads))
            golden.nothing_but_nan(cases, lowered.graphs.values())
        precision = calibrated(found, exported, lowered, wanted, chosen, plugins, stages)
        while True:
            quantised = in_precision(lowered, precision, plugins, chosen, stages)
            if kept:  # only now: what is known of values does not depend on how they are kept
                kept.mark([*lowered.graphs.values(), *quantised.graphs.values()])
            with stages("compile"):
                parts = compile_all(quantised, wanted, chosen, plugins, _called(model), isas=isas, ranges=ranges, note=stages.note,
                                    state=state[:1], watch={p.name: precision.watched(p.name) for p in plugins})
                compiled = assemble.combine(parts)
                if kept:
                    compiled.memory |= kept.measured(compiled.memory)
            with stages("golden"):
                tolerant = partial(precision.tolerant, interface=lowered.interface,
                                   lossy=kept.lossy(lowered.graphs) if kept else None)
                accepted = tolerant(cases)
                graphs = _replay_graphs(parts, cases, lowered, wanted, chosen)
                meta = assemble.meta(found, lowered.interface, wanted, chosen, isas, compiled, graphs)
                notes = compiled.notes + lowered.notes
                details = {"passes": [_record(r, name) for name, records in lowered.records.items() for r in records],
                           "memory": compiled.memory, "notes": notes, "graphs": graphs}
                spec = assemble.io_spec(lowered.interface, wanted, lowered.pads)
                packed = writer.pack(assemble.sections(found, spec, meta, details, accepted, compiled, state)) if isas else b""
                held = Held(accepted)
                if isas:
                    others = golden.otherwise(exported, wanted, samples.tokenizer(found), bool(lowered.pads))
                    held = _hold(packed, accepted, ((other, tolerant(c)) for other, c in others), lowered.interface, isas)
                notes += held.notes()
            if _accurate(packed, precision, plugins, isas, stages):
                break
    precision.confirm({p.name: parts[p.name].layers for p in plugins})
    meta |= {"quantisation": {name: precision.record_of(name) for name in precision.done}, **precision.sparsity()}
    with stages("write"):
        output_file.write(path, assemble.sections(found, spec, meta, details, golden.with_steps(held.cases, lowered.interface),
                                                     compiled, state))
    full = {**meta, **details, **precision.sparsity({name: part.measured for name, part in parts.items()}),
            "reference": exported.engine, "size": path.stat().st_size, "stages": stages.seconds,
            "golden": {"cases": len(cases), "stored": len(golden.stored(held.cases)), "largest_difference": held.largest,
                       "stepped": held.stepped, "agrees_with": held.by}}
    if chosen.report:
        with output_file.written(Path(chosen.report), "--report") as aside:
            aside.write_text(json.dumps(full, indent=1) + "\n", encoding="utf-8")
    return BuildResult(path, full, [r for records in lowered.records.values() for r in records])


def calibrate(model: str | Path, output: str | Path | None = None, *, grams: bool = False, progress: Progress | None = None,
              **options: Any) -> tuple[Record, Path]:
    """Runs a model on data and writes what was seen of its values, of each target's graph, to a record; ``STEM.npz`` by default.

    ``options`` are the fields of ``BuildOptions`` that decide the graphs, and ``calibration``. ``grams``: with the Gram matrices of
    all products' inputs. Raises as ``calibrate.session.obtain``; UsageError E0022 if the file is there and no record.
    """
    chosen = BuildOptions.of(options)
    stages = Stages(progress or Stages.progress)
    plugins = check_names(chosen)
    with stages("read"):
        found = _source(model, chosen)
    path = Path(output or f"{found.stem}.npz")
    if path.exists() and not session.is_record(str(path)):
        raise UsageError("E0022", "it exists and is no calibration record, so it is not replaced", where=str(path),
                         hint="choose another name with -o, or remove it first")
    if chosen.calibration and path.exists() and path.samefile(chosen.calibration):
        raise UsageError("E0022", "it is the data that is read", where=str(path), hint="choose another name with -o")
    with stages("export"):
        exported = fix(export(found), chosen.set)
    lowered, wanted = _lowered(exported, chosen, plugins, stages)
    with stages("calibrate"):
        spec = assemble.io_spec(lowered.interface, wanted, lowered.pads)
        record = stage.observe(chosen, found, lowered.interface, {p.pipeline: lowered.graphs[p.name] for p in plugins}, spec,
                               lowered.mask, add_functions, Listeners(stages.note, stages.part), grams)
    with stages("write"):
        records.save(record, path)
    return record, path


def quantised(found: source.Source, exported: Exported, options: BuildOptions, progress: Progress | None = None) -> Exported:
    """With the graph of the one target that is named, in the Q/DQ form: as it is quantised before its kernels' own form. Raises as
    ``build``."""
    stages = Stages(progress or Stages.progress)
    plugins = check_names(options)
    lowered, wanted = _lowered(exported, options, plugins, stages)
    precision = calibrated(found, replace(exported, interface=lowered.interface), lowered, wanted, options, plugins, stages)
    name = plugins[0].name
    with stages("quantise"):
        model = precision.quantise(name) if precision.jobs else lowered.graphs[name]
    kept = generation.Cache.of([model], lowered.interface, options, wanted)
    if kept:
        kept.mark([model])
    return replace(exported, model=model)


def sensitivity(model: str | Path, *, progress: Progress | None = None, **options: Any) -> dict[str, list[Sensitivity]]:
    """By target, the layers of a quantised model by what quantising each alone costs on held-out data, the worst first.

    ``options`` are the fields of ``BuildOptions``. Raises as ``build`` does of data and precision; UsageError E0050 where nothing
    is to be quantised, E0818 without data to judge by.
    """
    chosen = BuildOptions.of(options)
    stages = Stages(progress or Stages.progress)
    plugins = check_names(chosen)
    stage.check(chosen)
    with stages("read"):
        found = _source(model, chosen)
    stage.check_data(chosen, found, {p.name: p.pipeline for p in plugins})
    with stages("export"):
        exported = fix(export(found), chosen.set)
    lowered, wanted = _lowered(exported, chosen, plugins, stages)
    precision = calibrated(found, replace(exported, interface=lowered.interface), lowered, wanted, chosen, plugins, stages)
    if not precision.jobs:
        raise UsageError("E0050", "no layer of this model is quantised", where="--precision",
                         hint="give --precision int8, int4 or fp8; without products of constant weights there is nothing to rank")
    with stages("rank"):
        return {job.name: precision.ranking(job.name, stages.part) for job in precision.jobs}


def _lowered(exported: Exported, options: BuildOptions, plugins: Sequence[Target], stages: Stages) -> tuple[Lowered, list[Profile]]:
    """Each target's graph after its passes, and the profiles."""
    wanted = choose_profiles(exported.interface, options)
    with stages("passes"):
        return settle(lower(exported, options, plugins), wanted)


def calibrated(found: source.Source, exported: Exported, lowered: Lowered, wanted: Sequence[Profile], options: BuildOptions,
               plugins: Sequence[Target], stages: Stages) -> Stage:
    """What is known of the graphs that are to be in lower precision. Raises as ``calibrate.stage.begin``."""
    with stages("calibrate") if any(options.precision_of(p.name) != "f32" for p in plugins) else nullcontext():
        return stage.begin(options, found, exported, lowered.graphs, {p.name: p.pipeline for p in plugins},
                           assemble.io_spec(lowered.interface, wanted, lowered.pads), lowered.mask, add_functions,
                           Listeners(stages.note, stages.part))


def in_precision(lowered: Lowered, precision: Stage, plugins: Sequence[Target], options: BuildOptions, stages: Stages) -> Lowered:
    """With the graphs in the precision that was asked for, and products in the Q/DQ form, those that the model brings too, in the
    form that the CPU's kernels compute."""
    graphs = dict(lowered.graphs)
    with stages("quantise") if precision.jobs else nullcontext():
        graphs |= {job.name: precision.quantise(job.name) for job in precision.jobs}
        for plugin in plugins:
            manager(QUANTISED[plugin.pipeline], options).run(graphs[plugin.name])
    return replace(lowered, graphs=graphs)


def _accurate(artifact: bytes, precision: Stage, plugins: Sequence[Target], isas: Sequence[str], stages: Stages) -> bool:
    """Whether the CPU's programs keep the budget, by the best instruction set of this machine; True where they cannot run here."""
    name = next((p.name for p in plugins if p.device == "cpu"), None)
    runnable = [isa for isa in isas if ISAS[isa] <= ISAS[runtime.cpu_isa()]]
    if name is None or not runnable or precision.judge is None:
        return True
    with stages("accuracy"):
        return precision.measured(name, _engine(artifact, len(os.sched_getaffinity(0)), runnable[-1]).run)


def _source(model: str | Path, options: BuildOptions) -> source.Source:
    found = source.resolve(model, revision=options.revision, trust_remote_code=options.trust_remote_code)
    return replace(found, context=options.context)


def _called(model: str | Path) -> str:
    """The model in a command that builds again: by its name, for it lies elsewhere on another machine, or as the hub calls it."""
    path = Path(model).expanduser()
    return path.resolve().name if path.exists() else str(model)


def choose_profiles(interface: Interface, options: BuildOptions) -> list[Profile]:
    """The given profiles, checked against the model, or the task's default ones; smallest first."""
    if options.profiles:
        chosen = profiles.check(options.profiles, interface.symbols)
        profiles.check_limits(chosen, interface.limits)
    else:
        chosen = profiles.default(interface.task, interface.symbols, interface.limits, interface.lengths, interface.places())
    _check_inputs(interface, chosen[-1])
    return chosen


def _check_inputs(interface: Interface, largest: Profile) -> None:
    """Raises UsageError E0209 if this machine, which replays what it builds, cannot draw the inputs."""
    has = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for spec in interface.inputs:
        shape = spec.shape(largest.as_dict())
        takes = math.prod(max(d, 1) for d in shape) * (_DRAWN + spec.numpy.itemsize)  # NumPy overflows whether or not one is 0
        if takes > has:
            raise UsageError("E0209", f"values of input '{spec.name}' take {takes / 1e9:.0f} GB, this machine has "
                             f"{has / 1e9:.0f} GB",
                             where=f"--profile {largest}" if largest.sizes else str(list(spec.dims)), hint="give smaller sizes")


def prepare(options: BuildOptions) -> tuple[list[Target], tuple[str, ...], Mapping[str, tuple[float, float]]]:
    """The targets, the instruction sets of CPU programs and the ranges of values. Raises UsageError and UnsupportedError for
    options that name what there is not."""
    plugins = check_names(options)
    isas = options.resolved_isas(runtime.cpu_isa()) if any(p.device == "cpu" for p in plugins) else ()
    return plugins, isas, values.ranges(Path(options.ranges)) if options.ranges else {}


def check_names(options: BuildOptions) -> list[Target]:
    """The targets. Raises UsageError for a name of a target, pass or technique that there is not, or for an option that no target
    reads; UnsupportedError E0769 for a precision that a target does not build."""
    plugins = [target.find(name) for name in options.targets]
    options.check_devices(p.device for p in plugins)
    for plugin in plugins:
        precision = options.precision_of(plugin.name)
        if precision not in plugin.precisions:
            given = ",".join(f"{p.name}={precision if precision in p.precisions else p.precisions[0]}" for p in plugins)
            raise UnsupportedError("E0769", f"the target {plugin.name} builds {', '.join(plugin.precisions)}, not {precision}",
                                   where=f"--precision {precision}", hint=f"by target: --precision {given}")
    passes = [p.name for pipeline in (*(p.pipeline for p in plugins), PROOF)
              for p in (*PIPELINES[pipeline], *QUANTISED[pipeline])]
    techniques = [name for plugin in plugins for name in plugin.techniques]
    for name in options.disable:
        if name not in passes and name not in techniques:
            raise unknown("pass or technique", name, [*passes, *techniques], where="--disable")
    for name in options.only or ():
        if name not in passes:
            raise unknown("pass", name, passes, where="--only")
    return plugins


def one_pipeline(options: BuildOptions) -> str:
    """The pipeline of the one target that is named. Raises as ``check_names``, and UsageError E0017 for several."""
    plugins = check_names(options)
    if len(plugins) != 1:
        raise UsageError("E0017", f"{len(plugins)} targets have passes of their own", where=f"--target {','.join(options.targets)}",
                         hint="name one")
    return plugins[0].pipeline


def compile_all(lowered: Lowered, wanted: Sequence[Profile], options: BuildOptions, plugins: Sequence[Target], model: str, *,
                isas: Sequence[str] = (), ranges: Mapping[str, tuple[float, float]] | None = None,
                note: Callable[[str], None] = lambda line: None, state: Sequence[Section] = (),
                watch: Mapping[str, Mapping[str, Watched]] | None = None) -> dict[str, Compiled]:
    """What each target makes of its graph, by name. ``model`` is what the command that builds again calls the model, ``state`` and,
    by target, ``watch`` as in BuildContext."""
    with tuning.timings(options.timing_cache, options.tune and bool(isas), note) as timings:
        context = BuildContext(
            interface=assemble.io_spec(lowered.interface, wanted, lowered.pads), kernels=[Kernel(*k) for k in runtime.kernels()],
            native_isa=runtime.cpu_isa(), measure=tuning.measurer(lowered.interface, _engine), timing_cache=timings,
            measure_steps=tuning.step_measurer(lowered.interface, _engine),
            tune=options.tune, threads=options.resolved_threads(), isas=isas, log=note, machine=cache.machine(runtime._rt.__file__),
            ranges=ranges or {}, mask=lowered.mask, gpu=options.gpu(), state=state, watch_every=options.watch_every,
            force=options.force)
        made = {}
        for plugin in plugins:
            graph = lowered.graphs[plugin.name]
            made[plugin.name] = compile_written_out(plugin, specialise(graph, wanted), replace(
                context, disabled=frozenset(n for n in options.disable if n in plugin.techniques), symbolic=graph,
                precision=_handed(plugin, options), command=options.command(model, plugin.name),
                watch=(watch or {}).get(plugin.name, {}), cache=cache.user_dir() / plugin.name))
    return made


def _handed(plugin: Target, options: BuildOptions) -> str:
    """The precision that the target is told: to one for GPUs all int8 is static."""
    precision = options.precision_of(plugin.name)
    return "int8" if plugin.device == "gpu" and precision in ("int8-static", "auto") else precision


def _engine(artifact: bytes, threads: int, isa: str | None = None) -> runtime.Engine:
    """Its CPU programs, whatever else the artifact and this machine have."""
    return runtime.Engine(artifact, threads=threads, isa=isa, device="cpu")


def _record(record: PassRecord, target_name: str) -> dict[str, Any]:
    """What a pass matched and nearly matched; no times."""
    content = {"target": target_name, **asdict(record)}
    del content["seconds"]
    return content


@dataclass(frozen=True)
class Held:
    """Cases that the engine computes, and the largest difference, None if it did not run. ``stepped`` as in Comparison; ``by``
    names whose cases they are, where not the reference's."""

    cases: Sequence[GoldenCase]
    largest: float | None = None
    stepped: float = 0.0
    by: str = ""

    def notes(self) -> list[str]:
        return [f"golden cases: the engine agrees with {self.by}, which differs from ONNX Runtime"] * bool(self.by) + [
            f"golden cases: {self.stepped:.2%} of a quantised output is one step off: halfway between two"] * (self.stepped > 0)


def _hold(artifact: bytes, cases: Sequence[GoldenCase], others: Iterator[tuple[Other, Sequence[GoldenCase]]],
          interface: Interface, isas: Sequence[str]) -> Held:
    """Raises CheckError E0503 for an engine that computes neither what the cases say nor all that one of the others says;
    UnsupportedError E0407 if another agrees with it that is not to decide."""
    try:
        return _replay(artifact, cases, interface, isas)
    except CheckError as error:
        for other, found in others:
            with suppress(CheckError):
                held = replace(_replay(artifact, found, interface, isas), by=other.name)
                if other.disputed is None:
                    return held
                raise UnsupportedError(
                    "E0407", f"ONNX Runtime does not compute what {other.name} does, and the engine",
                    where=other.disputed or "the model",
                    hint="of a Resize, give the output's sizes in place of scales: they mean the same to all") from error
        raise


def _replay(artifact: bytes, cases: Sequence[GoldenCase], interface: Interface, isas: Sequence[str]) -> Held:
    """Runs all cases on every program this machine can run, with one thread and with all."""
    runnable = [isa for isa in isas if ISAS[isa] <= ISAS[runtime.cpu_isa()]]
    largest, stepped = 0.0, 0.0
    for isa in runnable:
        for threads in sorted({1, len(os.sched_getaffinity(0))}):
            results = golden.replay(_engine(artifact, threads, isa), cases, interface)
            largest = max(largest, golden.require(results, f"{isa}, {threads} threads"))
            stepped = max(stepped, *(c.stepped for case in results for c in case), 0.0)
    return Held(cases, largest, stepped)


def _replay_graphs(parts: Mapping[str, Compiled], cases: Sequence[GoldenCase], lowered: Lowered, wanted: Sequence[Profile],
                   options: BuildOptions) -> list[dict[str, Any]]:
    """The graphs of engines that are for other machines, in ONNX Runtime."""
    return [replay.handed(graph, name, options.precision_of(name), cases, lowered.interface, wanted, bool(lowered.pads),
                          add_functions)
            for name, part in parts.items() for graph in part.handed]
