"""What a build does about precision, between the passes and the targets: calibrate, quantise, keep to the budget, tell."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx_ir as ir

from infc.compiler import tokenizer
from infc.compiler.artifact.golden import GoldenCase
from infc.compiler.artifact.io import IoSpec
from infc.compiler.calibrate import accuracy, data, executed, select, session
from infc.compiler.calibrate.accuracy import Accuracy, Judge, Run
from infc.compiler.calibrate.budget import Outcome, Sensitivity
from infc.compiler.calibrate.quantising import AUTO, BUDGET, CALIBRATED, Quantised, Quantiser, Wanted, runner
from infc.compiler.calibrate.record import Record
from infc.compiler.calibrate.session import Listeners, Obtained, Settings, Subject, Wishes
from infc.compiler.errors import CheckError, UsageError
from infc.compiler.export import Exported
from infc.compiler.interface import Interface
from infc.compiler.options import BuildOptions
from infc.compiler.reference import masked, numbers
from infc.compiler.replay import LEAST_COSINE, closeness
from infc.compiler.source import Source
from infc.compiler.target import Layer, Watched
from infc.models import registry
from infc.passes.quant import products
from infc.passes.quant.plan import LayerChoice, usual
from infc.passes.sparsity import sparsify

_WHOLE = {"tensorrt": ("f32", "f16", "bf16")}  # precisions in which a pipeline's target computes graphs as they are
SPARSE_ON_CPU = ("bf16", "int8", "int4", "int8-static", AUTO)  # precisions whose kernels skip zeros
# Of a language model's logits: plain rounding to 4 bits was seen to leave .82 of a short text, other texts' are at .1 to .4.
_LEAST_OF_LANGUAGE = 0.6
_GLANCE = 16  # samples that tell whether a graph has lost the model
_BETTER = "--method rtn or gptq, more data or data of another kind, or --budget 0.99: the worst layers go back"
_ROUNDING = 2.0  # times the error of the Q/DQ graph, which an engine that rounds elsewhere may have
_CACHE_ROUNDING = 4.0  # the same of a cache of fewer bits: kernels round queries and probabilities to bf16 too; 2.5 was seen


@dataclass(frozen=True)
class Job:
    """One target's graph that is to be in lower precision."""

    name: str
    pipeline: str
    precision: str
    model: ir.Model

    @property
    def calibrated(self) -> bool:
        return self.precision in CALIBRATED


@dataclass
class Stage:
    """The jobs of a build and what came of them, by target. ``about`` is META's description of the data."""

    jobs: list[Job]
    options: BuildOptions
    prepare: Callable[[ir.Model], object]
    record: Record | None = None
    judge: Judge | None = None
    about: dict[str, Any] = field(default_factory=dict)
    done: dict[str, Quantised] = field(default_factory=dict)
    engine: dict[str, Accuracy] = field(default_factory=dict)
    note: Callable[[str], None] = lambda line: None

    @property
    def budget(self) -> float | None:
        asked = any(job.precision == AUTO for job in self.jobs)
        return BUDGET if self.options.budget is None and asked and self.options.metric == accuracy.DEFAULT else self.options.budget

    def quantise(self, name: str) -> ir.Model:
        """The target's graph in the Q/DQ form; called again after an engine missed the budget, with one layer more restored."""
        job = next(j for j in self.jobs if j.name == name)
        before = self.done.get(name)
        first = len(before.restored) + 1 if before and before.outcome else 0
        self.done[name] = self._quantiser(job).within(self.judge, self.budget, first, before.outcome if before else None, self.note)
        return self.done[name].model.clone()

    def ranking(self, name: str, progress: Callable[[int, int], None]) -> list[Sensitivity]:
        """The target's layers by what quantising each alone costs. Raises UsageError E0818 where there is no data to judge by."""
        if self.judge is None:
            raise no_data("a ranking of layers", "--calibration")
        return self._quantiser(next(j for j in self.jobs if j.name == name)).ranking(self.judge, progress)

    def _quantiser(self, job: Job) -> Quantiser:
        statistics = self.record.statistics(job.pipeline, self.options.calibration_method) if self.record else None
        return Quantiser(job.model, self.wanted(job), statistics, self.prepare)

    def watched(self, name: str) -> dict[str, Watched]:
        """The target's layers whose activations are integers and were calibrated, by what is known of their ranges."""
        if not self.options.watch_ranges or name not in self.done:
            return {}
        return {d.node: Watched(**d.details["range"]) for d in self.done[name].decisions if "range" in d.details}

    def measured(self, name: str, run: Run) -> bool:
        """Judges an engine. False if it misses the budget, and there is a layer that could be restored."""
        if self.judge is None or name not in self.done:
            return True
        self.engine[name] = found = self.judge.accuracy(run)
        outcome = self.done[name].outcome
        if self.budget is None or found.holds(self.budget) or outcome is None:
            return True
        left = [d for d in self.done[name].decisions if d.actual not in ("f32", "bf16")]
        if not left:
            raise CheckError("E0816", f"the engine misses the budget {self.budget}: {self.judge.metric} {found.mean:.6f}",
                             where=name, hint="give a lower budget, or another precision")
        return False

    def tolerant(self, cases: Sequence[GoldenCase], interface: Interface, lossy: ir.Model | None = None) -> list[GoldenCase]:
        """Golden cases that accept what the CPU's quantised graph makes of them, or a ``lossy`` one that is not quantised. Raises
        CheckError E0817 if that has lost the model: quantisation, not a kernel, is at fault."""
        done = next((self.done[j.name] for j in self.jobs if j.pipeline == "cpu" and j.name in self.done), None)
        graph = done.model if done else lossy
        if graph is None:
            return list(cases)
        run, margin = runner(graph, self.prepare), _ROUNDING if lossy is None else _CACHE_ROUNDING
        least = _LEAST_OF_LANGUAGE if interface.context else LEAST_COSINE
        judged = self._judged(run, done.outcome if done else None)
        found = [_tolerant(case, run, interface, margin) for case in cases]
        close, number = min(((c, n) for n, (_, c) in enumerate(found)), default=(1.0, 0))
        if close < least:
            self._explain(number, close, judged, least)
        elif judged is not None and judged < least and self.budget is None:
            self.note(f"the quantised graph has lost much: a mean cosine of {judged:.3f} on {self.about.get('name')}; {_BETTER}")
        return [case for case, _ in found]

    def _judged(self, run: Run, outcome: Outcome | None) -> float | None:
        """The mean cosine of a graph on samples to judge by, measured now if its ``outcome`` does not tell; None without any."""
        if outcome is not None and outcome.accuracy.metric == accuracy.DEFAULT:
            return outcome.accuracy.mean
        return 1.0 - self.judge.loss(run, _GLANCE) if self.judge is not None and len(self.judge) else None

    def _explain(self, number: int, close: float, judged: float | None, least: float) -> None:
        """A golden case is made up: it may lie where no data does, so what was seen on data decides. Raises CheckError E0817."""
        said, on = f"golden case {number}, which is made up, has a cosine of {close:.3f}", self.about.get("name")
        if judged is not None and (judged >= least or self.budget is not None):
            self.note(f"{said}: it is outside of what was calibrated; on {on} the quantised graph has {judged:.4f}")
            return
        if judged is not None:
            raise CheckError("E0817", f"the quantised graph has a mean cosine of {judged:.3f} with the model on {on}; {said}",
                             where="--precision", hint=_BETTER)
        raise CheckError("E0817", f"an output of the quantised graph has a cosine of {close:.3f} with the model's",
                         where=f"golden case {number}",
                         hint="the case is made up: give --evaluation FILE, and what is made of that decides, or another --method")

    def confirm(self, programs: Mapping[str, Mapping[str, Sequence[Layer]]]) -> None:
        """Holds what became of the CPU's layers against the steps of its programs, by target."""
        for job in self.jobs:
            if job.pipeline == "cpu":
                done = self.done[job.name]
                self.done[job.name] = replace(done, decisions=executed.confirmed(done.decisions, programs[job.name]),
                                              sparse=executed.skipping(done.sparse, programs[job.name]))

    def record_of(self, name: str) -> dict[str, Any]:
        """For META and the report."""
        done, outcome = self.done[name], self.done[name].outcome
        found: dict[str, Any] = {"requested": next(j.precision for j in self.jobs if j.name == name), "budget": self.budget,
                                 "layers": [d.record() for d in done.decisions], "restored": list(done.restored)}
        if self.record:
            found["calibration"] = {"key": self.record.key.digest(), "method": self.options.calibration_method,
                                    "data": dict(self.record.key.data)}
            pipeline = next(j.pipeline for j in self.jobs if j.name == name)
            invalid = sorted(n for n, seen in self.record.values[pipeline].items() if seen.invalid)
            found["calibration"] |= {"invalid": invalid} if invalid else {}
        if self.judge:
            found["evaluation"] = self.about
        if outcome:
            found["accuracy"] = {"graph": {"by": "onnxruntime", **outcome.accuracy.record()}}
            if name in self.engine:
                found["accuracy"]["engine"] = {"by": "infc", **self.engine[name].record()}
            found["sensitivity"] = [[s.node, float(f"{s.loss:.4g}")] for s in outcome.ranking]
        return found

    def sparsity(self, measured: Mapping[str, Sequence[Mapping[str, Any]]] | None = None) -> dict[str, Any]:
        """What became of 2:4, by target, for META and the report; {} where it was not asked for. With what was ``measured`` of
        layers, for the build's own report."""
        if not self.options.sparsity:
            return {}
        return {"sparsity": {name: {"pattern": self.options.sparsity, "method": self.options.sparsity_method,
                                    **({"forced": True} if self.options.force else {}),
                                    "layers": [d.record() | _seconds(d.node, (measured or {}).get(name, ())) for d in done.sparse]}
                             for name, done in self.done.items()}}

    def wanted(self, job: Job) -> Wanted:
        """What the options ask of a job."""
        settings = {"group": self.options.group} if self.options.group else {}
        sparsity = self.options.sparsity_method if self.options.sparsity else None
        return Wanted(job.precision, job.pipeline, self.options.method, settings, sparsity, _whole(job.pipeline, job.precision))


def _seconds(node: str, measured: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Of a layer: seconds of a run with its zeros and without."""
    return next(({"seconds": {"dense": m["dense"], "sparse": m["sparse"]}} for m in measured if m["layer"] == node), {})


def check(options: BuildOptions) -> None:
    """Before anything takes time. Raises UsageError E0800 for data that is not there, E0818 for a budget with none, E0051 to E0053
    for a method or group, E0820 for data that nothing would be done with, E0812 for what is no metric, E0054, E0821 and E0822 for
    sparsity that nothing would come of, E0815 for a perplexity below the model's."""
    unread = next((name for name in ("calibration", "evaluation", "budget") if getattr(options, name) is not None), None)
    if unread and not options.sparsity_method and all(options.precision_of(name) == "f32" for name in options.targets):
        raise UsageError("E0820", f"--{unread} is for quantised builds, and all of this one is f32", where=f"--{unread}",
                         hint="add --precision int8, or leave it out")
    accuracy.scorer(options.metric)
    if options.metric == accuracy.PERPLEXITY and options.budget is not None and options.budget < 1:
        raise UsageError("E0815", f"a budget of {options.budget} asks for less perplexity than the model's own", where="--budget",
                         hint="give how many times the model's it may be: 1.04 accepts 4 % more")
    LayerChoice(method=options.method or LayerChoice.method, group=options.group)
    _check_read(options)
    for file in filter(None, (options.calibration, options.evaluation)):
        if not session.is_record(file) and file != session.SYNTHETIC:
            data.find(file)
    if options.budget is not None and not (options.calibration or options.evaluation):
        raise no_data("a budget", "--budget")
    if options.watch_ranges and not any(name == "cpu" and options.precision_of(name) in CALIBRATED for name in options.targets):
        raise UsageError("E0823", "only layers in integers on the CPU have ranges to be watched", where="--watch-ranges",
                         hint="add --precision int8, int8-static or int4, or leave it out")
    if options.watch_ranges and not options.calibration:
        raise UsageError("E0823", "the ranges to be watched come from calibration", where="--watch-ranges",
                         hint="give --calibration FILE")
    sparsify.check(options.sparsity_method)
    if options.sparsity_method and not options.sparsity:
        raise UsageError("E0821", "a method of sparsity is given, and no sparsity", where="--sparsity-method",
                         hint="add --sparsity 2:4")
    if options.force and not options.sparsity:
        raise UsageError("E0821", "sparsity is forced, and none is asked for", where="--force", hint="add --sparsity 2:4")
    if options.sparsity and all(name == "cpu" and options.precision_of(name) not in SPARSE_ON_CPU for name in options.targets):
        raise UsageError("E0822", f"no kernel of the CPU skips zeros of {options.precision_of('cpu')}", where="--sparsity",
                         hint="add --precision bf16, int8 or int4, or leave it out")


def _check_read(options: BuildOptions) -> None:
    """Raises UsageError E0820 for an option that nothing of this build reads."""
    default, precisions = BuildOptions(), {options.precision_of(name) for name in options.targets}
    recorded = options.calibration is not None and session.is_record(options.calibration)
    in_integers = precisions & {"int4", "int8", AUTO}
    useless = {
        "evaluation_samples": "" if options.evaluation else "there is no --evaluation",
        "calibration_samples": "the record has its own" if recorded else "" if options.calibration else "there is no --calibration",
        "group": "" if in_integers else "it is for int4 and int8",
        "method": "" if precisions & set(CALIBRATED) else "no layer is rounded to integers or fp8",
        "calibration_method": "" if options.calibration else "there is no --calibration",
        "metric": "" if options.calibration or options.evaluation else "there is no data to judge by",
        "watch_every": "" if options.watch_ranges else "there is no --watch-ranges",
    }
    useless["calibration_seed"] = useless["calibration_samples"]
    for name, why in useless.items():
        if why and getattr(options, name) != getattr(default, name):
            option = f"--{name.replace('_', '-')}"
            raise UsageError("E0820", f"{option} would change nothing: {why}", where=option, hint="leave it out")


def check_data(options: BuildOptions, found: Source, pipelines: Mapping[str, str]) -> None:
    """Raises UsageError E0814 as ``begin`` does, before anything is exported, where it is certain: for a model whose weights are
    floats, by the method that was given or is usual."""
    if options.calibration or found.is_onnx or {"quantization_config", "compression_config"} & set(found.config or {}):
        return
    language = registry.recipe_of(found.architecture)[1] == registry.HEADS["ForCausalLM"]
    blind = []
    for name, pipeline in pipelines.items():
        precision = options.precision_of(name)
        method = options.method or usual(precision, language=language, sparse=bool(options.sparsity))[0]
        if precision in CALIBRATED and not _without_data(options, pipeline, precision, frozenset(method.split("+"))):
            blind.append(f"{precision} for {name}")
    if blind:
        raise session.needed(blind)


def begin(options: BuildOptions, found: Source, exported: Exported, graphs: Mapping[str, ir.Model], pipelines: Mapping[str, str],
          spec: IoSpec, mask: str | None, prepare: Callable[[ir.Model], object], listeners: Listeners) -> Stage:
    """Calibrates what needs it. ``graphs`` and ``pipelines`` by target. Raises UsageError E0814 for a quantised build without data,
    E0812 for a metric that the model does not have, and as ``session.obtain``."""
    accuracy.check(options.metric, exported.interface)
    jobs = [Job(name, pipelines[name], options.precision_of(name), model) for name, model in graphs.items()
            if _is_job(options, name, pipelines[name], model)]
    stage = Stage(jobs, options, prepare, note=listeners.note)
    blind = [j for j in jobs if j.calibrated and not options.calibration and products.find(j.model)[0]
             and not _without_data(options, j.pipeline, j.precision, Quantiser(j.model, stage.wanted(j), None, prepare).methods)]
    if blind:
        raise session.needed([f"{j.precision} for {j.name}" for j in blind])
    if not jobs:
        return stage
    subject = Subject(found.hash, {j.pipeline: j.model for j in jobs}, spec, exported.interface, mask, tokenizer.files(found),
                      prepare)
    obtained = None
    if options.calibration:
        settings = Settings(options.calibration, options.calibration_samples, options.calibration_seed)
        grams = {j.pipeline: Quantiser(j.model, stage.wanted(j), None, prepare).grams for j in jobs}
        wanted_out = 0 if options.evaluation else session.HELD_OUT
        obtained = session.obtain(settings, subject, Wishes(grams), listeners, wanted_out, options.slices)
        stage.record = obtained.record
    _judge(stage, subject, exported, obtained)
    return stage


def observe(options: BuildOptions, found: Source, interface: Interface, graphs: Mapping[str, ir.Model], spec: IoSpec,
            mask: str | None, prepare: Callable[[ir.Model], object], listeners: Listeners, grams: bool) -> Record:
    """A record of all graphs, by pipeline, with all that any precision could want; ``grams``: Gram matrices of every product."""
    subject = Subject(found.hash, graphs, spec, interface, mask, tokenizer.files(found), prepare)
    names = {pipeline: [p.gram for p in products.find(model)[0]] if grams else [] for pipeline, model in graphs.items()}
    settings = Settings(options.calibration or "", options.calibration_samples, options.calibration_seed)
    return session.obtain(settings, subject, Wishes(names, every=True), listeners).record


def _is_job(options: BuildOptions, name: str, pipeline: str, model: ir.Model) -> bool:
    """Not what its target computes in whole, unless weights are to become 2:4, nor from ranges that were given, nor what has no
    products left to quantise."""
    precision = options.precision_of(name)
    if _whole(pipeline, precision) and not (options.sparsity_method and pipeline != "cpu"):
        return False
    if pipeline == "tensorrt" and _without_data(options, pipeline, precision, frozenset()):
        return False
    found, others = products.find(model)
    return bool(found) or products.KEPT in others.values()


def _whole(pipeline: str, precision: str) -> bool:
    return precision in _WHOLE.get(pipeline, ("f32",))


def _without_data(options: BuildOptions, pipeline: str, precision: str, methods: frozenset[str]) -> bool:
    """On the CPU rounding to nearest needs none, with activations that are measured at run time: that may be asked for, and is what
    the plan has for language models in int8. TensorRT's target may be given ranges, and rounds weights of 4 bits itself where
    there is no data."""
    if pipeline == "tensorrt":
        return bool(options.ranges) or (precision == "int4" and not options.calibration and not options.sparsity_method)
    return methods == {"rtn"} and precision in ("int8", "int4")


def _judge(stage: Stage, subject: Subject, exported: Exported, obtained: Obtained | None) -> None:
    options = stage.options
    items = obtained.held_out if obtained else []
    if options.evaluation:
        found, items, seen = session.evaluation(options.evaluation, options.slices, options.calibration_seed,
                                               options.evaluation_samples)
        stage.about = session.describe(found, len(items), seen, options.calibration_seed)
        known = len(items) - len(select.without(items, obtained.used if obtained else []))
        if known:
            stage.note(f"{known} of {len(items)} samples to judge by took part in calibration: the figures flatter")
            stage.about["calibrated"] = known
    elif stage.record:
        stage.about = {"name": f"held out of {stage.record.key.data.get('name', '')}", "samples": len(items)}
    if items:
        stage.judge = Judge(items, subject.preparer(), exported.reference, subject.spec, exported.interface, options.metric)
        if stage.judge.left_out:
            stage.note(f"of {stage.judge.left_out} of {len(items)} samples to judge by the model makes NaN: they are left out")
            stage.about["samples"] = len(stage.judge)
    elif stage.budget is not None:
        raise no_data("a budget", "--budget")


def no_data(what: str, where: str) -> UsageError:
    return UsageError("E0818", f"{what} needs data to judge by, and there is none", where=where,
                      hint="give --evaluation FILE: data that did not take part in calibration")


def _tolerant(case: GoldenCase, run: Run, interface: Interface, margin: float) -> tuple[GoldenCase, float]:
    """The case, and the least cosine of its outputs."""
    got = numbers(masked(run(case.inputs), case.inputs, interface), interface)
    want = numbers(masked(case.outputs, case.inputs, interface), interface)
    largest, closest = case.tolerance, 1.0
    for name, expected in want.items():
        if expected.dtype.kind != "f":
            continue
        closest = min(closest, closeness(got[name], expected))
        finite = np.isfinite(expected) & np.isfinite(got[name])
        largest = max(largest, margin * float(np.abs(got[name][finite] - expected[finite]).max(initial=0.0)))
    return replace(case, tolerance=largest), closest
