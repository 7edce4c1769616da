"""Graphs handed to a builder whose engine cannot run here, replayed in ONNX Runtime on the golden cases.

What is found is about the graph that the builder was given. It says nothing about the engine that the builder made of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from infc.compiler.artifact.golden import GoldenCase
from infc.compiler.errors import CheckError, InfcError
from infc.compiler.interface import Interface
from infc.compiler.profiles import Profile
from infc.compiler.reference import Arrays, OnnxReference, compare, masked
from infc.compiler.target import Handed

LEAST_COSINE = 0.9  # of an output in a precision below f32: what is further off is broken, not rounded
_HINT = "build with --check-passes, which tells whether a graph pass is at fault, or in another precision; please report it"


def handed(graph: Handed, target: str, precision: str, cases: Iterable[GoldenCase], interface: Interface,
           profiles: Sequence[Profile], pads: bool, prepare: Callable[[ir.Model], object]) -> dict[str, Any]:
    """The figures of one graph, as META holds them: by output the largest difference and the least cosine, two digits each.

    ``pads``: dimensions may be smaller than a profile's, and are padded with zeros as the runtime does. ``prepare`` gives the
    graph what it needs to run in ONNX Runtime, in place. Raises CheckError E0767 for an output in f32 that differs by more than
    the tolerance, E0768 for one that is not finite or has a cosine below 0.9 in any other precision.
    """
    found: dict[str, Any] = {"graph": graph.label, "target": target, "precision": precision, "by": "onnxruntime", "cases": 0,
                             "outputs": {}, "note": ""}
    try:
        copy = graph.model.clone()
        prepare(copy)
        session = OnnxReference(copy, threads=1)  # of more threads the sums may depend on their number
    except Exception as error:  # ONNX Runtime's exceptions have no common class of their own
        return found | {"note": f"not replayed: ONNX Runtime cannot run the graph: {_reason(error)}"}
    where = f"{target}, {graph.label}"
    for number, case in enumerate(cases):
        profile = _profile(case, interface, profiles)
        if profile not in graph.profiles:
            continue
        try:
            got = _run(session, case.inputs, interface, profile, pads)
        except InfcError as error:
            return found | {"note": f"not replayed: {error.message}"}
        found["cases"] += 1
        for name, figures in _figures(got, case, interface, precision, f"{where}, golden case {number}").items():
            worst = found["outputs"].setdefault(name, figures)
            found["outputs"][name] = {"difference": max(worst["difference"], figures["difference"]),
                                      "cosine": min(worst["cosine"], figures["cosine"])}
    for figures in found["outputs"].values():
        figures["difference"], figures["cosine"] = float(f"{figures['difference']:.2g}"), float(f"{figures['cosine']:.6f}")
    return found


def _reason(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].split(" : ")[-1]


def _profile(case: GoldenCase, interface: Interface, profiles: Sequence[Profile]) -> Profile:
    """The smallest profile that takes the case, as the runtime chooses."""
    sizes = _sizes(case.inputs, interface)
    return next(p for p in profiles if all(p[name] >= size for name, size in sizes.items()))


def _sizes(inputs: Mapping[str, np.ndarray], interface: Interface) -> dict[str, int]:
    return {d: n for t in interface.inputs if t.name in inputs for d, n in zip(t.dims, inputs[t.name].shape, strict=True)
            if isinstance(d, str)}


def _run(session: OnnxReference, inputs: Arrays, interface: Interface, profile: Profile, pads: bool) -> Arrays:
    """Inputs at the profile's sizes, zeros where there is more than the case has; outputs cut to the case's sizes."""
    if not pads:
        return session.run(inputs)
    sizes, full = _sizes(inputs, interface), profile.as_dict()
    padded = {t.name: _padded(inputs[t.name], t.shape(full)) for t in interface.inputs if t.name in inputs}
    outputs = session.run(padded)
    return {t.name: outputs[t.name][tuple(slice(n) for n in t.shape(sizes))] for t in interface.outputs if t.name in outputs}


def _padded(array: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    return np.pad(array, [(0, size - n) for size, n in zip(shape, array.shape, strict=True)])


def _figures(got: Arrays, case: GoldenCase, interface: Interface, precision: str, where: str) -> dict[str, dict[str, float]]:
    figures = {}
    hidden, wanted = (masked(arrays, case.inputs, interface) for arrays in (got, case.outputs))
    for result in compare(got, case.outputs, case.inputs, interface):
        name = result.output
        if precision == "f32" and not result.ok:
            raise CheckError("E0767", f"the graph handed to the builder computes something else than the model: {result}",
                             where=where, hint=_HINT)
        if name not in got or got[name].shape != wanted[name].shape:
            raise CheckError("E0767", f"the graph handed to the builder gives another output than the model: {result}",
                             where=where, hint=_HINT)
        if not np.isfinite(hidden[name])[np.isfinite(wanted[name])].all():
            raise CheckError("E0768", f"output '{name}' of the graph handed to the builder is not finite in {precision}",
                             where=where, hint="values leave the range of the type: build in bf16 or f32, or give --ranges")
        close = cosine(hidden[name], wanted[name])
        if close < LEAST_COSINE:
            raise CheckError("E0768", f"output '{name}' of the graph handed to the builder has a cosine of {close:.3f} with the "
                             f"model's in {precision}", where=where, hint=_HINT)
        figures[name] = {"difference": result.difference, "cosine": close}
    return figures


def closeness(got: np.ndarray, want: np.ndarray) -> float:
    """The cosine where ``want`` is finite; 0 unless ``got`` is finite there, and has the same infinities elsewhere."""
    odd = ~np.isfinite(want)
    if not np.array_equal(got[odd], want[odd], equal_nan=True) or not np.isfinite(got[~odd]).all():
        return 0.0
    return cosine(got, want)


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    """Of two arrays as one long vector each; 1 for two of zeros."""
    finite = np.isfinite(b)
    x, y = (v[finite].astype(np.float64) for v in (a, b))
    if not x.any() and not y.any():
        return 1.0
    norms = float(np.linalg.norm(x) * np.linalg.norm(y))
    return float(x @ y) / norms if norms else 0.0
