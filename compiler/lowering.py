"""From an exported graph to what targets compile: the passes of each target's pipeline, and one graph a profile."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import onnx_ir as ir

from infc.compiler import profiles
from infc.compiler.errors import UnsupportedError
from infc.compiler.export import Exported
from infc.compiler.interface import Interface
from infc.compiler.options import BuildOptions
from infc.compiler.pipeline import FOLD, PIPELINES
from infc.compiler.profiles import Profile
from infc.compiler.reference import PassChecker
from infc.compiler.target import ProgramGraph, Target
from infc.passes.base import PassManager, PassRecord
from infc.passes.domain import add_functions as add_functions  # the command line exports graphs with it

PACKED = "infc.packed"  # graph metadata of the pass pack_tokens: run-time scalars and the dimensions they count
PROOF = "cpu"  # the pipeline that finds out whether dimensions pad


def optimise(exported: Exported, options: BuildOptions, pipeline: str = "cpu") -> list[PassRecord]:
    """Runs the graph passes of a pipeline over the exported graph, in place."""
    check = PassChecker(exported.interface, add_functions) if options.check_passes else None
    names = {p.name for p in PIPELINES[pipeline]}
    manager = PassManager(PIPELINES[pipeline], disabled=[n for n in options.disable if n in names],
                          only=None if options.only is None else [n for n in options.only if n in names],
                          dump_dir=options.dump_graphs, check=check)
    return manager.run(exported.model)


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

    Dimensions pad if the pass pack_tokens proves that padding is hidden: that no position reads another one that the mask hides.
    The proof is about the model, not about the packed graph, so it serves every target: the CPU runs that packed graph, the others
    run rectangles and fill them up with zeros. A build without the CPU target runs its passes for the proof alone.
    """
    graphs, records = {}, {}
    for plugin in plugins:
        own = replace(exported, model=exported.model.clone())
        folder = options.dump_graphs
        if folder and len(plugins) > 1:
            folder = os.path.join(folder, plugin.name)
        records[plugin.name] = optimise(own, replace(options, dump_graphs=folder), plugin.pipeline)
        graphs[plugin.name] = own.model
    proven = next((p.name for p in plugins if p.pipeline == PROOF), None)
    if proven is None:
        own = replace(exported, model=exported.model.clone())
        packing = optimise(own, replace(options, dump_graphs=None, check_passes=False), PROOF)
        packed = own.model
    else:
        packed, packing = graphs[proven], records[proven]
    record = next((r for r in packing if r.name == "pack_tokens"), None)
    mask = record.matches[0] if record and record.matches else None
    reasons = [f"dimensions are exact: {miss.reason}" for miss in (record.near_misses if record else ())]
    pads = frozenset(name for names in run_time_dims(packed).values() for name in names)
    return Lowered(graphs, records, _settled(exported.interface, packed), pads, mask, [] if proven else reasons)


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


def _settled(interface: Interface, model: ir.Model) -> Interface:
    """With the outputs' dimensions as the passes inferred them. Raises UnsupportedError E0405 for one that is no input's."""
    outputs = []
    for spec, value in zip(interface.outputs, model.graph.outputs, strict=True):
        dims = tuple(d if isinstance(d, int) else str(d.value) for d in value.shape or ())
        for d in dims:
            if isinstance(d, str) and d not in interface.symbols:
                raise UnsupportedError("E0405", f"output '{spec.name}' has the size {d}, which is not that of an input's dimension",
                                       where=spec.name, hint="export the model with constant sizes")
        outputs.append(replace(spec, dims=dims))
    return replace(interface, outputs=tuple(outputs))
