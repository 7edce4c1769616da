"""The TensorRT targets: graphs are legalised, grouped into engines, built one after the other, and described."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from infc.compiler.artifact.io import IoSpec
from infc.compiler.artifact.layout import DTYPE_SIZES, STATE_HEADER
from infc.compiler.artifact.tensorrt import TensorRtEngine, encode
from infc.compiler.errors import InternalError, UnsupportedError, UsageError
from infc.compiler.profiles import Profile
from infc.compiler.target import PRECISIONS, BuildContext, Compiled, Handed, Layer, ProgramGraph, Section
from infc.plugins.tensorrt import layers as built
from infc.plugins.tensorrt.build import EngineRequest, EngineResult, build
from infc.plugins.tensorrt.flavour import ENTERPRISE, RTX, Flavour, check_type, choose_sms, machine_sm
from infc.plugins.tensorrt.legalise import Legalised, Request, SparseWeight, legalise
from infc.plugins.tensorrt.legalise.cache import NEW, closed
from infc.plugins.tensorrt.legalise.emulate import emulate
from infc.plugins.tensorrt.legalise.masks import masked_outputs

TECHNIQUES = {
    "sparse-weights": "weights that hold the 2:4 pattern may be multiplied by sparse tensor cores",
}
_FUSED = "infc.fused"  # node metadata: the model's nodes it stands for
_TYPES = {"FLOAT": "f32", "HALF": "f16", "BF16": "bf16", "INT8": "i8", "UINT8": "u8", "INT32": "i32", "INT64": "i64",
          "BOOL": "bool"}


@dataclass
class _Group:
    """The graph of one engine and the profiles it serves, by their numbers in the artifact."""

    model: ir.Model
    profiles: dict[int, Profile]
    dynamic: bool

    def __str__(self) -> str:
        return "; ".join(map(str, self.profiles.values()))


@dataclass(frozen=True)
class _Wanted:
    flavour: Flavour
    sms: tuple[int, ...]
    context: BuildContext


@dataclass(frozen=True)
class _Engine:
    group: _Group
    legal: Legalised
    result: EngineResult


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
        wanted = _Wanted(flavour, sms, context)
        together = _together(programs, context)
        try:
            made = [_engine(together, wanted)] if together else []
        except UnsupportedError as refusal:
            # Sizes known, more can be written: whatever else is wrong is said again.
            compiled.notes.append(f"every profile has an engine of its own: {refusal.message}")
            made = []
        for engine in made or (_engine(group, wanted) for group in _each(programs)):
            _add(compiled, engine, wanted)
        return compiled


class TensorRtRtxTarget(_Target):
    """Engines for GeForce and RTX GPUs, built on any machine."""

    flavour = RTX
    name = RTX.name


class TensorRtTarget(_Target):
    """Engines for this machine's GPU."""

    flavour = ENTERPRISE
    name = ENTERPRISE.name


def _together(programs: Sequence[ProgramGraph], context: BuildContext) -> _Group | None:
    """The graph for all profiles, if there are several: its dimensions keep their names, and the builder folds shapes."""
    if context.gpu.layout not in ("one", "each"):
        raise UsageError("E0750", f"'{context.gpu.layout}' is no layout of engines", where="--engine-layout",
                         hint="one engine for all profiles: one; an engine for each: each")
    if context.gpu.layout == "each" or len(programs) == 1 or context.symbolic is None:
        return None
    return _Group(context.symbolic, {i: p.profile for i, p in enumerate(programs)}, dynamic=True)


def _each(programs: Sequence[ProgramGraph]) -> list[_Group]:
    return [_Group(p.model, {i: p.profile}, dynamic=False) for i, p in enumerate(programs)]


def _engine(group: _Group, wanted: _Wanted) -> _Engine:
    """Legalises and builds."""
    flavour, sms, context = wanted.flavour, wanted.sms, wanted.context
    spec = context.interface
    legal = legalise(group.model, Request(
        precision=context.precision, sms=sms, ranges=context.ranges, mask=context.mask,
        masked=masked_outputs(spec, context.mask), sparsity=context.gpu.sparsity, dynamic=group.dynamic,
        capacity=_capacity(context), log=context.log))
    shapes = [{t.name: spec.shape(t, i) for t in spec.inputs} for i in group.profiles] if group.dynamic else []
    context.log(f"{flavour.title} for SM {', '.join(map(str, sms))}: {str(group) or 'constant sizes'}")
    result = build(legal.model, flavour, EngineRequest(
        sms, shapes, sparse=_may_be_sparse(legal.weights, context), timings=_timings(flavour, sms, context),
        timeout=context.gpu.timeout, memory=context.gpu.memory), context.log)
    context.log(f"engine of {len(result.plan) / 1e6:.1f} MB after {result.seconds:.1f} s, {result.peak / 1e6:.0f} MB of memory")
    _check_interface(result, spec, min(group.profiles), legal.state)
    return _Engine(group, legal, result)


def _may_be_sparse(weights: Sequence[SparseWeight], context: BuildContext) -> bool:
    return "sparse-weights" not in context.disabled and any(w.state == "eligible" for w in weights)


def _timings(flavour: Flavour, sms: tuple[int, ...], context: BuildContext) -> Path | None:
    """Where the builder keeps the times it measured."""
    if not flavour.timings or context.cache is None:
        return None
    with contextlib.suppress(OSError):  # the worker does without a directory that cannot be written
        context.cache.mkdir(parents=True, exist_ok=True)
    return context.cache / f"{flavour.name}-sm{'+'.join(map(str, sms))}"


def _capacity(context: BuildContext) -> int:
    """Tokens that the cache of one sequence has room for: a context, and a run of the largest profile; 0 of a model without."""
    if not context.state:
        return 0
    spec = context.interface
    positions = next(t for t in spec.inputs if t.name == "position_ids")
    return int(_state(context)["context"]) + max(max(spec.shape(positions, i)) for i in range(len(spec.profiles)))


def _state(context: BuildContext) -> np.void:
    """The header of STATE."""
    header: np.void = np.frombuffer(context.state[0].data, STATE_HEADER.dtype, 1)[0]
    return header


def _check_interface(result: EngineResult, interface: IoSpec, profile: int, state: tuple[str, ...]) -> None:
    """Raises InternalError E0736 unless the parsed network takes and gives what the artifact says it does in a profile, and the
    caches."""
    own = {*state, *(f"{name}{NEW}" for name in state)}
    for kind, every, wanted in (("inputs", result.inputs, interface.inputs), ("outputs", result.outputs, interface.outputs)):
        found = [f for f in every if f["name"] not in own]
        needs = [(t.name, t.dtype, interface.shape(t, profile)) for t in wanted]
        if len(found) != len(needs) or not all(_agrees(f, *n) for f, n in zip(found, needs, strict=True)):
            raise InternalError("E0736", f"the engine's {kind} are {found}, the artifact's are {needs}", where="legalisation")


def _agrees(found: Mapping[str, Any], name: str, dtype: str, shape: Sequence[int]) -> bool:
    """A size that the network leaves open, -1, is the profile's to say."""
    sizes = found["shape"]
    return (found["name"] == name and _TYPES.get(found["dtype"]) == dtype and len(sizes) == len(shape)
            and all(size in (-1, wanted) for size, wanted in zip(sizes, shape, strict=True)))


def _add(compiled: Compiled, engine: _Engine, wanted: _Wanted) -> None:
    """Appends an engine's section, layers and facts."""
    flavour, context, group, result = wanted.flavour, wanted.context, engine.group, engine.result
    numbers = list(group.profiles)
    label = f"sm{'+'.join(map(str, wanted.sms))}"
    section = TensorRtEngine(flavour.name, result.version, flavour.cuda, wanted.sms, tuple(numbers), context.command, result.plan)
    compiled.sections.append(Section("TENSORRT", encode(section), f"{flavour.name.removeprefix('tensorrt-')} {label}"[:31],
                                     len(compiled.sections)))
    found = built.parse(result.log, len(numbers), _sources(engine.legal.model, result.names))
    programs = {f"{p}/{flavour.name}/{label}": steps for p, steps in zip(group.profiles.values(), found.layers, strict=True)}
    compiled.layers |= programs
    whole = f"{group}/{flavour.name}/{label}"
    compiled.handed.append(Handed(whole, tuple(group.profiles.values()), closed(emulate(engine.legal.model), engine.legal.state)))
    compiled.memory["engines"][whole] = len(result.plan)
    compiled.memory["activations"] |= dict(zip(programs, found.activations, strict=False))
    notes = [*engine.legal.notes, *found.notes, *_notes(engine, programs), *_cache_notes(engine.legal, context)]
    compiled.notes += [note for note in notes if note not in compiled.notes]
    compiled.engines.append({
        "flavour": flavour.name, "version": ".".join(map(str, result.version)), "sms": list(wanted.sms),
        "profiles": [str(p) for p in group.profiles.values()], "precision": context.precision, "size": len(result.plan),
        "weights": found.weights, "attentions": result.attentions, "attentions_may_split": result.decomposed,
        "programs": {name: _facts(steps) for name, steps in programs.items()},
        "sparsity": [_sparse_fact(flavour, w, context) for w in engine.legal.weights]})


def _cache_notes(legal: Legalised, context: BuildContext) -> list[str]:
    """A cache in fewer bits is the CPU's: an engine keeps keys and values as it computes them."""
    if not legal.state or DTYPE_SIZES[int(_state(context)["dtype"])] > 1:
        return []
    kept = next(v.dtype for v in legal.model.graph.inputs if v.name == legal.state[1])
    return [f"keys and values are kept in {kept.name.lower() if kept else ''} on a GPU: --kv-cache is for the CPU"]


def _facts(steps: Sequence[Layer]) -> dict[str, Any]:
    """``launches`` counts kernels in one run: every layer but those that order streams or compute sizes on the host."""
    return {"layers": len(steps), "launches": built.launched(steps), "fused_attentions": built.fused_attentions(steps),
            "products": built.products(steps)}


def _notes(engine: _Engine, programs: Mapping[str, Sequence[Layer]]) -> list[str]:
    if not engine.result.decomposed:
        return []
    fused = ", ".join(f"{built.fused_attentions(steps)} of {engine.result.attentions}" for steps in programs.values())
    return [f"{engine.group}: not every attention has a fused kernel for its shape and type, so some are split: {fused} are fused"]


def _sparse_fact(flavour: Flavour, weight: SparseWeight, context: BuildContext) -> dict[str, Any]:
    """An eligible weight may be multiplied by sparse kernels. Which ones are is decided on the device, or by measuring."""
    state = weight.state
    if state == "eligible":
        state = "refused" if "sparse-weights" in context.disabled else flavour.sparsity
    return {**dataclasses.asdict(weight), "state": state}


def _sources(model: ir.Model, names: Mapping[str, str]) -> dict[str, Sequence[str]]:
    """What each node in the builder's log stands for."""
    nodes = model.graph.all_nodes()
    fused = {node.name or "": node.metadata_props[_FUSED].split() for node in nodes if node.metadata_props.get(_FUSED)}
    return {**fused, **{given: fused.get(own, [own]) for given, own in names.items()}}
