"""Golden cases: what the engine must compute, from the model itself; replayed at the end of a build and by ``infc verify``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

import numpy as np
import onnx_ir as ir

from infc.compiler import samples
from infc.compiler.artifact import golden as section
from infc.compiler.artifact.golden import GoldenCase
from infc.compiler.artifact.reader import Artifact
from infc.compiler.errors import CheckError, UsageError
from infc.compiler.interface import Interface, TensorSpec
from infc.compiler.profiles import Profile
from infc.compiler.reference import Arrays, Comparison, Other, compare, masked, numbers, tolerance

if TYPE_CHECKING:
    from infc.compiler.export import Exported

class Engine(Protocol):
    """As infc.runtime.Engine."""

    def run(self, inputs: Arrays) -> Arrays: ...


_STORED = 1 << 20  # bytes of one case's outputs that the artifact carries at most; larger ones are replayed by the build alone
_EVERY_PROFILE = ("full", "mixed lengths", "shorter")


def make(exported: Exported, profiles: Sequence[Profile], tokenize: samples.Tokenizer | None, trim: bool) -> list[GoldenCase]:
    """All cases for the smallest profile; the full size and a batch of mixed lengths for the others."""
    made = []
    for number, profile in enumerate(profiles):
        for case in samples.cases(exported.interface, profile.as_dict(), tokenize, trim=trim):
            if number == 0 or case.name in _EVERY_PROFILE:
                outputs = masked(exported.reference(case.inputs), case.inputs, exported.interface)
                accepted = max(tolerance(o, exported.interface.rounding) for o in numbers(outputs, exported.interface).values())
                made.append(GoldenCase(case.inputs, outputs, accepted))
    return made


def nothing_but_nan(cases: Iterable[GoldenCase], graphs: Iterable[ir.Model]) -> None:
    """Raises UsageError E0504 if the model gives NaN wherever floats come out of it, and has NaN among its weights: no engine of
    it is of use, whatever it agrees with."""
    outputs = [output for case in cases for output in case.outputs.values() if output.dtype.kind == "f"]
    if not outputs or not all(np.isnan(output).all() for output in outputs):
        return
    for node in (node for model in graphs for node in ir.traversal.RecursiveGraphIterator(model.graph)):
        for constant in (value.const_value for value in node.inputs if value is not None):
            if constant is None or not constant.dtype.is_floating_point():
                continue
            if broken := int(np.isnan(constant.numpy()).sum()):
                raise UsageError("E0504", f"the model gives nothing but NaN: {broken} of {constant.size} of its weights are NaN",
                                 where=node.name or node.op_type,
                                 hint="give a checkpoint without: its training may have diverged, or a conversion overflowed")


def otherwise(exported: Exported, profiles: Sequence[Profile], tokenize: samples.Tokenizer | None,
              trim: bool) -> Iterator[tuple[Other, list[GoldenCase]]]:
    """The cases as each of the others has them that know what the model computes. ONNX Runtime's optimisations change some
    models, and of some numbers ONNX does not say what they are."""
    for other in exported.others:
        try:
            made = make(replace(exported, reference=other.load()), profiles, tokenize, trim)
        except Exception:  # what it does not know, it does not say
            continue
        yield other, made


def stored(cases: Iterable[GoldenCase]) -> list[GoldenCase]:
    """The cases that an artifact carries."""
    return [c for c in cases if sum(o.nbytes for o in c.outputs.values()) <= _STORED]


def read(artifact: Artifact) -> list[GoldenCase]:
    """The cases that an artifact carries; none if it has no GOLDEN section."""
    data = artifact.section("GOLDEN")
    return section.decode(data, artifact.io) if data is not None else []


def interface_of(artifact: Artifact) -> Interface:
    """What the artifact's model takes and gives."""
    io = artifact.io
    inputs = tuple(TensorSpec(t.name, t.dtype, t.dims, t.fill if t.optional else None, t.range) for t in io.inputs)
    outputs = tuple(TensorSpec(t.name, t.dtype, t.dims) for t in io.outputs)
    return Interface(inputs, outputs, artifact.meta.get("task", ""), artifact.meta.get("mask"))


def with_steps(cases: Iterable[GoldenCase], interface: Interface) -> list[GoldenCase]:
    """Cases that accept a step of quantised outputs: on another machine others are halfway between two."""
    most = max(interface.steps.values(), default=0.0)
    return [replace(c, tolerance=c.tolerance + most) for c in cases]


def replay(engine: Engine, cases: Iterable[GoldenCase], interface: Interface) -> list[list[Comparison]]:
    """The comparisons of each case's outputs."""
    return [compare(engine.run(c.inputs), c.outputs, c.inputs, interface, c.tolerance) for c in cases]


def require(results: Iterable[Iterable[Comparison]], where: str) -> float:
    """The largest difference. Raises CheckError E0503 if any output differs, is NaN or all zero where it should not be."""
    largest = 0.0
    for number, case in enumerate(results):
        for comparison in case:
            if not comparison.ok:
                raise CheckError("E0503", f"the engine computes something else than the model: {comparison}",
                                 where=f"{where}, golden case {number}",
                                 hint="`infc build --check-passes` tells whether a graph pass is at fault; please report it")
            largest = max(largest, comparison.difference)
    return largest
