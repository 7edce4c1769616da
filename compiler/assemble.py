"""What targets made, put together into the sections of one artifact."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from infc.compiler import golden, report, tokenizer
from infc.compiler.artifact import golden as golden_section
from infc.compiler.artifact import io
from infc.compiler.artifact.golden import GoldenCase
from infc.compiler.artifact.layout import DIM_EXACT, DIM_PADS
from infc.compiler.errors import UnsupportedError
from infc.compiler.interface import Interface, TensorSpec
from infc.compiler.options import BuildOptions
from infc.compiler.profiles import Profile
from infc.compiler.source import Source
from infc.compiler.target import Compiled, Section


def io_spec(interface: Interface, wanted: Sequence[Profile], pads: Collection[str]) -> io.IoSpec:
    """The IO section: the dimensions in ``pads`` take any size up to a profile's, any other must match one exactly.

    Raises UnsupportedError E0415 for more inputs and outputs than an artifact has.
    """
    count = len(interface.inputs) + len(interface.outputs)
    if count > io.MAX_TENSORS:
        raise UnsupportedError("E0415", f"{len(interface.inputs)} inputs and {len(interface.outputs)} outputs, together at most "
                               f"{io.MAX_TENSORS} are allowed", where="the model's inputs and outputs",
                               hint="join them with Concat, or leave out those that nobody reads")
    symbols = [io.IoSymbol(s, DIM_PADS if s in pads else DIM_EXACT) for s in interface.symbols + interface.derived]
    inputs, outputs = ([_io_tensor(t) for t in side] for side in (interface.inputs, interface.outputs))
    return io.IoSpec(inputs, outputs, symbols, [p.as_dict() for p in wanted])


def _io_tensor(spec: TensorSpec) -> io.IoTensor:
    return io.IoTensor(spec.name, spec.dtype, spec.dims, spec.fill is not None, spec.fill or 0, spec.range)


def combine(parts: Mapping[str, Compiled]) -> Compiled:
    """What all targets made. Sections are numbered by kind; a TENSORRT one is required only where there is nothing else to run."""
    several = len(parts) > 1
    whole = Compiled([], {}, {})
    for target, part in parts.items():
        whole.sections += part.sections
        whole.layers |= part.layers
        for kind, size in part.memory.items():
            whole.memory[kind] = {**whole.memory[kind], **size} if isinstance(whole.memory.get(kind), dict) else size
        whole.notes += [f"{target}: {note}" if several else note for note in part.notes]
        whole.engines += part.engines
        whole.handed += part.handed
    kinds = {s.kind for s in whole.sections}
    count: Counter[str] = Counter()
    numbered = []
    for section in whole.sections:
        required = "PROGRAM" not in kinds if section.kind == "TENSORRT" else section.required
        numbered.append(replace(section, ordinal=count[section.kind], required=required))
        count[section.kind] += 1
    whole.sections = numbered
    return whole


def meta(found: Source, interface: Interface, wanted: Sequence[Profile], options: BuildOptions, isas: Sequence[str],
         compiled: Compiled, graphs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Where the artifact comes from and what it is; no time, no path, nothing measured."""
    return {
        "source": {"name": found.name, "sha256": found.hash, "architecture": found.architecture, "revision": found.revision},
        **({"config": dict(found.config or {})} if interface.context else {}),
        "task": interface.task,
        "mask": interface.mask,
        "options": _options(options, bool(isas), bool(compiled.engines)),
        "profiles": [str(p) for p in wanted],
        "isas": list(isas),
        "versions": report.versions(),
        "layers": report.layers(compiled),
        "engines": compiled.engines,
        "graphs": list(graphs),
    }


def _options(options: BuildOptions, cpu: bool, gpu: bool) -> dict[str, Any]:
    """Those that decide what an artifact holds."""
    found: dict[str, Any] = {
        "targets": list(options.targets), "precision": {t: options.precision_of(t) for t in options.targets}, "tune": options.tune,
        "disable": sorted(options.disable), "only": sorted(options.only) if options.only else None,
        "trust_remote_code": options.trust_remote_code, "set": dict(options.set)}
    if options.sparsity:
        found |= {"sparsity": options.sparsity, "sparsity_method": options.sparsity_method}
    if options.watch_ranges:
        found["watch_every"] = options.watch_every
    if cpu:
        found["threads"] = options.resolved_threads()
    if gpu:
        ranges = hashlib.sha256(Path(options.ranges).read_bytes()).hexdigest() if options.ranges else None
        found |= {"sms": list(options.sms), "engine_layout": options.engine_layout, "sparsity": options.sparsity, "ranges": ranges}
    return found


def sections(found: Source, spec: io.IoSpec, about: Mapping[str, Any], details: Mapping[str, Any], cases: Sequence[GoldenCase],
             compiled: Compiled, state: Sequence[Section] = ()) -> list[Section]:
    """All sections, in the file's order: weights are last, for they are aligned to pages. ``state``: a language model's own."""
    tokens = tokenizer.archive(found)
    made = [Section("META", report.encode(about)), Section("IO", io.encode(spec)), *state,
            *(s for s in compiled.sections if s.kind != "WEIGHTS"),
            *([Section("TOKENIZER", tokens, required=False)] if tokens else []),
            Section("GOLDEN", golden_section.encode(golden.stored(cases), spec), required=False),
            Section("REPORT", report.encode(details), required=False)]
    return [*made, *(s for s in compiled.sections if s.kind == "WEIGHTS")]
