"""The TensorRT targets: graphs are legalised, grouped into engines, built one after the other, and described."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx_ir as ir

from infc.compiler.artifact.io import IoSpec
from infc.compiler.artifact.tensorrt import TensorRtEngine, encode
from infc.compiler.errors import InternalError, UsageError
from infc.compiler.profiles import Profile
from infc.compiler.target import PRECISIONS, BuildContext, Compiled, Handed, Layer, ProgramGraph, Section
from infc.plugins.tensorrt import layers as built
from infc.plugins.tensorrt.build import EngineRequest, EngineResult, build
from infc.plugins.tensorrt.flavour import ENTERPRISE, RTX, Flavour, check_type, choose_sms, machine_sm
from infc.plugins.tensorrt.legalise import Legalised, Request, SparseWeight, legalise
from infc.plugins.tensorrt.legalise.lint import lint
from infc.plugins.tensorrt.legalise.masks import masked_outputs

TECHNIQUES = {
    "sparse-weights": "weights that hold the 2:4 pattern may be multiplied by sparse tensor cores",
}
_FUSED = "infc.fused"  # node metadata: the model's nodes it stands for
_TYPES = {"FLOAT": "f32", "HALF": "f16", "BF16": "bf16", "INT8": "i8", "UINT8": "u8", "INT32": "i32", "INT64": "i64", "BOOL": "bool"}


@dataclass
class _Group:
    """The graph of one engine and the profiles it serves, by their numbers in the artifact."""

    model: ir.Model
    profiles: dict[int, Profile]
    dynamic: bool

    def __str__(self) -> str:
        return "; ".join(map(str, self.profiles.values()))


class _Target:
    """See compiler.target.Target. ``flavour`` is all that differs."""

    flavour: Flavour
    name: str
    pipeline = "tensorrt"
    techniques = tuple(TECHNIQUES)
    device = "gpu"
    precisions = PRECISIONS

    def compile(self, programs: Sequence[ProgramGraph], context: BuildContext) -> Compiled:
        """One TENSORRT section an engine: one for all profiles, or one for each, as ``context.gpu.layout`` says.

        Raises UsageError and UnsupportedError E07xx: SMs or types that do not go together, graphs that cannot be written for the
        builder, and what the parser and the builder refuse, naming nodes.
        """
        flavour = self.flavour
        sms = choose_sms(flavour, context.gpu.sms, machine_sm())
        check_type(context.precision, sms, f"--precision {context.precision}")
        compiled = Compiled([], {}, {"engines": {}, "activations": {}})
        for group in _groups(programs, context):
            legal = _legalise(group, programs, _request(flavour, sms, context))
            context.log(f"{flavour.title} for SM {', '.join(map(str, sms))}: {group}")
            result = build(legal.model, flavour, _engine_request(flavour, sms, group, legal, context), context.log)
            _check_interface(result, context.interface)
            context.log(f"engine of {len(result.plan) / 1e6:.1f} MB after {result.seconds:.1f} s, {result.peak / 1e6:.0f} MB of memory")
            _add(compiled, flavour, sms, group, legal, result, context)
        return compiled


class TensorRtRtxTarget(_Target):
    """Engines for GeForce and RTX GPUs, built on any machine."""

    flavour = RTX
    name = RTX.name


class TensorRtTarget(_Target):
    """Engines for this machine's GPU."""

    flavour = ENTERPRISE
    name = ENTERPRISE.name


def _groups(programs: Sequence[ProgramGraph], context: BuildContext) -> list[_Group]:
    """A graph for all profiles keeps its dimensions' names, unless there is only one; shapes are then the builder's to fold."""
    if context.gpu.layout not in ("one", "each"):
        raise UsageError("E0750", f"'{context.gpu.layout}' is no layout of engines", where="--engine-layout",
                         hint="one engine for all profiles: one; an engine for each: each")
    if context.gpu.layout == "one" and len(programs) > 1 and context.symbolic is not None:
        return [_Group(context.symbolic, {i: p.profile for i, p in enumerate(programs)}, dynamic=True)]
    return [_Group(p.model, {i: p.profile}, dynamic=False) for i, p in enumerate(programs)]


def _legalise(group: _Group, programs: Sequence[ProgramGraph], request: Request) -> Legalised:
    """A graph with named dimensions is judged with the sizes they take in each profile."""
    if group.dynamic:
        for program in programs:
            lint(program.model, request)
    return legalise(group.model, dataclasses.replace(request, dynamic=group.dynamic))


def _request(flavour: Flavour, sms: tuple[int, ...], context: BuildContext) -> Request:
    return Request(precision=context.precision, sms=sms, flavour=flavour.name, ranges=context.ranges, mask=context.mask,
                   masked=masked_outputs(context.interface, context.mask), sparsity=context.gpu.sparsity, log=context.log)


def _engine_request(flavour: Flavour, sms: tuple[int, ...], group: _Group, legal: Legalised, context: BuildContext) -> EngineRequest:
    shapes = [{t.name: context.interface.shape(t, i) for t in context.interface.inputs} for i in group.profiles] if group.dynamic else []
    return EngineRequest(sms, shapes, sparse=_may_be_sparse(legal.weights, context), timings=_timings(flavour, sms, context),
                         timeout=context.gpu.timeout, memory=context.gpu.memory)


def _may_be_sparse(weights: Sequence[SparseWeight], context: BuildContext) -> bool:
    return "sparse-weights" not in context.disabled and any(w.state == "eligible" for w in weights)


def _timings(flavour: Flavour, sms: tuple[int, ...], context: BuildContext) -> Path | None:
    """The builder's own timing cache. It checks the library's version and the device itself and drops what does not fit."""
    if not flavour.timings or context.cache is None:
        return None
    context.cache.mkdir(parents=True, exist_ok=True)
    return context.cache / f"{flavour.name}-sm{'+'.join(map(str, sms))}.timings"


def _check_interface(result: EngineResult, interface: IoSpec) -> None:
    """Raises InternalError E0736 unless the parsed network takes and gives what the artifact says it does."""
    for kind, found, wanted in (("inputs", result.inputs, interface.inputs), ("outputs", result.outputs, interface.outputs)):
        has = [(t["name"], _TYPES.get(t["dtype"], t["dtype"])) for t in found]
        needs = [(t.name, t.dtype) for t in wanted]
        if has != needs:
            raise InternalError("E0736", f"the engine's {kind} are {has}, the artifact's are {needs}", where="legalisation")


def _add(compiled: Compiled, flavour: Flavour, sms: tuple[int, ...], group: _Group, legal: Legalised, result: EngineResult,
         context: BuildContext) -> None:
    """Appends an engine's section, layers and facts."""
    numbers = list(group.profiles)
    label = f"sm{'+'.join(map(str, sms))}"
    engine = TensorRtEngine(flavour.name, result.version, flavour.cuda, sms, tuple(numbers), context.command, result.plan)
    compiled.sections.append(Section("TENSORRT", encode(engine), f"{flavour.name.removeprefix('tensorrt-')} {label}"[:31],
                                     len(compiled.sections)))
    found = built.parse(result.log, len(numbers), _sources(legal.model))
    programs = {f"{p}/{flavour.name}/{label}": steps for p, steps in zip(group.profiles.values(), found.layers, strict=True)}
    compiled.layers |= programs
    compiled.handed.append(Handed(f"{group}/{flavour.name}/{label}", tuple(group.profiles.values()), legal.model))
    compiled.memory["engines"][f"{group}/{flavour.name}/{label}"] = len(result.plan)
    compiled.memory["activations"] |= dict(zip(programs, found.activations, strict=False))
    compiled.notes += [*legal.notes, *found.notes, *_notes(group, result, programs)]
    compiled.engines.append({
        "flavour": flavour.name, "version": ".".join(map(str, result.version)), "sms": list(sms),
        "profiles": [str(p) for p in group.profiles.values()], "precision": context.precision, "size": len(result.plan),
        "weights": found.weights, "attentions": result.attentions, "attention_may_split": result.decomposed,
        "programs": {name: _facts(steps) for name, steps in programs.items()},
        "sparsity": [_sparse_fact(flavour, w, context) for w in legal.weights]})


def _facts(steps: Sequence[Layer]) -> dict[str, Any]:
    """``launches`` counts kernels in one run: every layer but those that order streams or compute sizes on the host."""
    return {"layers": len(steps), "launches": built.launched(steps), "fused_attentions": built.fused_attentions(steps),
            "products": built.products(steps)}


def _notes(group: _Group, result: EngineResult, programs: Mapping[str, Sequence[Layer]]) -> list[str]:
    notes = []
    if result.decomposed:
        fused = ", ".join(f"{built.fused_attentions(steps)} of {result.attentions}" for steps in programs.values())
        notes.append(f"{group}: not every attention has a fused kernel for its shape and type, so they may be split: {fused} are fused")
    return notes


def _sparse_fact(flavour: Flavour, weight: SparseWeight, context: BuildContext) -> dict[str, Any]:
    """An eligible weight may be multiplied by sparse kernels. Which ones are is decided on the device, or by measuring."""
    state = weight.state
    if state == "eligible":
        state = "refused" if "sparse-weights" in context.disabled else flavour.sparsity
    return {**dataclasses.asdict(weight), "state": state}


def _sources(model: ir.Model) -> dict[str, Sequence[str]]:
    return {node.name or "": node.metadata_props[_FUSED].split() for node in model.graph.all_nodes() if node.metadata_props.get(_FUSED)}
