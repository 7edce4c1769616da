"""From an exported graph to what targets compile: the passes of each target's pipeline, and one graph a profile."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx_ir as ir

from infc.compiler import profiles, refusals, residence
from infc.compiler.errors import UnsupportedError
from infc.compiler.export import Exported
from infc.compiler.interface import Interface
from infc.compiler.options import BuildOptions
from infc.compiler.output import dumps
from infc.compiler.pipeline import FOLD, PIPELINES
from infc.compiler.profiles import Profile
from infc.compiler.reference import PassChecker
from infc.compiler.target import BuildContext, Compiled, ProgramGraph, Target
from infc.passes.base import Pass, PassManager, PassRecord
from infc.passes.cleanup.expand_functions import expand_functions
from infc.passes.domain import add_functions as add_functions  # the command line exports graphs with it
from infc.passes.graph import dims
from infc.passes.rectangles import open_rectangles
from infc.passes.shapes import infer_anew

PADDED = "infc.padded"  # graph metadata of the pass prove_padding: names of dimensions
PACKED = "infc.packed"  # graph metadata of the pass pack_tokens: run-time scalars and the dimensions they count
PROOF = "cpu"  # the pipeline that finds out whether dimensions pad


def optimise(exported: Exported, options: BuildOptions, pipeline: str = "cpu") -> list[PassRecord]:
    """Runs the graph passes of a pipeline over the exported graph, in place. Sizes of values within are believed of exporters, but
    not of files."""
    if exported.interface.task == "onnx":
        infer_anew(exported.model)
    check = PassChecker(exported.interface, add_functions) if options.check_passes else None
    return manager(PIPELINES[pipeline], options, dump=dumps(options.dump_graphs), check=check).run(exported.model)


def manager(passes: Sequence[type[Pass]], options: BuildOptions, **more: Any) -> PassManager:
    """Of those passes that the options leave."""
    names = {p.name for p in passes}
    return PassManager(passes, disabled=[n for n in options.disable if n in names],
                       only=None if options.only is None else [n for n in options.only if n in names], **more)


@dataclass
class Lowered:
    """A graph and the records of its passes for each target, by name. ``interface`` has the outputs' dimensions as they were
    inferred; ``pads`` names the dimensions whose padding is hidden, ``mask`` the input that tells where it is."""

    graphs: dict[str, ir.Model]
    records: dict[str, list[PassRecord]]
    interface: Interface
    pads: frozenset[str]
    mask: str | None
    notes: list[str] = field(default_factory=list)


def lower(exported: Exported, options: BuildOptions, plugins: Sequence[Target]) -> Lowered:
    """Runs each target's pipeline over a graph of its own.

    Dimensions pad if the pass pack_tokens or prove_padding proves that padding is hidden: that no position reads another one that
    the mask hides. The proof is about the model, not about the packed graph, so it serves every target: the CPU runs that packed
    graph, or rectangles that Grow fills up with zeros; the others run rectangles. A build without the CPU target runs its passes
    for the proof alone.
    """
    graphs, records = {}, {}
    for plugin in plugins:
        own = replace(exported, model=exported.model.clone())
        folder = options.dump_graphs
        if folder and len(plugins) > 1:
            folder = os.path.join(folder, plugin.name)
        records[plugin.name] = optimise(own, replace(options, dump_graphs=folder), plugin.pipeline)
        residence.shelve(own.model)
        graphs[plugin.name] = own.model
    proven = next((p.name for p in plugins if p.pipeline == PROOF), None)
    if proven is None:
        own = replace(exported, model=exported.model.clone())
        packing = optimise(own, replace(options, dump_graphs=None, check_passes=False), PROOF)
        packed = own.model
    else:
        packed, packing = graphs[proven], records[proven]
    proofs = {r.name: r for r in packing if r.name in ("pack_tokens", "prove_padding")}
    mask = next((r.matches[0] for r in proofs.values() if r.name == "pack_tokens" and r.matches), None)
    pads = frozenset(padded_dims(packed)).union(*run_time_dims(packed).values())
    reasons = [f"dimensions are exact: {miss.reason}" for r in proofs.values() for miss in r.near_misses if not pads]
    return Lowered(graphs, records, _settled(exported.interface, packed), pads, mask,
                   [*([] if proven else reasons), *exported.interface.notes])


def run_time_dims(model: ir.Model) -> dict[str, list[str]]:
    """Run-time scalars of a packed graph and the named dimensions whose product bounds each; empty for other graphs."""
    found: dict[str, list[str]] = json.loads(model.metadata_props.get(PACKED, "{}"))
    return found


def padded_dims(model: ir.Model) -> list[str]:
    """Dimensions of the inputs that may be filled up with zeros: what the pass prove_padding found."""
    found: list[str] = json.loads(model.metadata_props.get(PADDED, "[]"))
    return found


def specialise(model: ir.Model, wanted: Sequence[Profile]) -> list[ProgramGraph]:
    """One graph a profile. Dimensions that a packed graph counts at run time stay symbolic, with bounds; all others are sizes.
    Those that pad stay symbolic at the inputs and outputs.

    Raises UnsupportedError E0410 to E0414 for what no target takes.
    """
    counted, padded = run_time_dims(model), padded_dims(model)
    counting = {name for names in counted.values() for name in names}
    inputs, outputs = ([dims(v) or () for v in side] for side in (model.graph.inputs, model.graph.outputs))
    graphs = []
    for profile in wanted:
        keep = {name for name in counting if profile[name] > 1 or name not in counted}  # of one token there is always one
        graph = profiles.specialise(model, profile, keep | {scalar for scalar in counted if scalar not in counting})
        PassManager(FOLD).run(graph)
        refusals.refuse(graph)
        open_rectangles(graph.graph, inputs, outputs, padded)
        bounds = {name: size for name, size in profile.sizes if name in keep or name in padded}
        bounds |= {scalar: int(np.prod([profile[n] for n in names])) for scalar, names in counted.items()
                   if scalar in keep or scalar not in counting}
        graphs.append(ProgramGraph(profile, graph, bounds))
    return graphs


def settle(lowered: Lowered, wanted: Sequence[Profile]) -> tuple[Lowered, list[Profile]]:
    """Gives a size to the outputs' dimensions that are no input's: a constant if it is the same in all profiles, else a dimension
    of its own, which the profiles get. Raises UnsupportedError E0405 if a size cannot be told, and as ``specialise`` does."""
    interface = lowered.interface
    derived = interface.derived
    if not derived:
        return lowered, list(wanted)
    sizes: dict[str, list[int]] = {}
    for program in specialise(next(iter(lowered.graphs.values())), wanted):
        for spec, value in zip(interface.outputs, program.model.graph.outputs, strict=True):
            for name, size in zip(spec.dims, value.shape or [None] * len(spec.dims), strict=True):
                if name in derived and not isinstance(size, int):
                    raise UnsupportedError("E0405", f"the size of output '{spec.name}' cannot be told before it is computed",
                                           where=f"output '{spec.name}', {program.profile}".rstrip(", "),
                                           hint="export the model with constant sizes")
                if name in derived:
                    sizes.setdefault(str(name), []).append(int(size))  # type: ignore[arg-type]
    constant = {name: found[0] for name, found in sizes.items() if len(set(found)) == 1}
    outputs = tuple(replace(t, dims=tuple(constant.get(str(d), d) for d in t.dims)) for t in interface.outputs)
    varying = {name: sizes[name] for name in derived if name not in constant}
    profiles_now = [Profile((*p.sizes, *((name, found[i]) for name, found in varying.items()))) for i, p in enumerate(wanted)]
    return replace(lowered, interface=replace(interface, outputs=outputs)), profiles_now


def compile_written_out(plugin: Target, programs: Sequence[ProgramGraph], context: BuildContext) -> Compiled:
    """What the target makes of the graphs. A node that it refuses is replaced by its definition in other operators, where ONNX has
    one, and the rest tried again: all nodes of an operator that the target lacks (E0401), else the one."""
    while True:
        try:
            return plugin.compile(programs, context)
        except UnsupportedError as error:
            written_out = [_write_out(p.model, error) for p in programs]  # in all of them
            if not any(written_out):
                raise


def _write_out(model: ir.Model, error: UnsupportedError) -> bool:
    refused = next((n for n in model.graph.all_nodes() if n.name == error.node and error.node), None)
    if refused is None:
        return False
    every = error.code == "INFC-E0401"
    kind = (refused.domain, refused.op_type)
    if not expand_functions(model, lambda node: node is refused or (every and (node.domain, node.op_type) == kind)):
        return False
    PassManager(FOLD).run(model)
    return True


def _settled(interface: Interface, model: ir.Model) -> Interface:
    """With the outputs' dimensions as the passes inferred them; one that is no input's has a name made of the output's."""
    outputs = []
    for spec, value in zip(interface.outputs, model.graph.outputs, strict=True):
        dims = [d if isinstance(d, int) else str(d.value) for d in value.shape] if value.shape is not None else spec.dims
        own = re.sub(r"\W", "_", f"dim_{spec.name}")
        outputs.append(replace(spec, dims=tuple(d if isinstance(d, int) or d in interface.symbols else f"{own}.{i}"
                                                for i, d in enumerate(dims))))
    return replace(interface, outputs=tuple(outputs))
