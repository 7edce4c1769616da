"""The ranges of activations that a build is given, from calibration elsewhere."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping

import onnx_ir as ir

from infc.compiler.errors import UsageError

_LEAST = 1e-30  # of a range's farther end: what its scale divides still is a float32 number of full precision
_EXAMPLE = 'a JSON object such as {"layer_norm": [-4.1, 3.9]}'


def check_ranges(graph: ir.Graph, ranges: Mapping[str, tuple[float, float]]) -> None:
    """Raises UsageError E0721 for a range that is not two finite numbers in order, or as good as zero, E0722 for names of no
    value."""
    for name, pair in ranges.items():
        if len(pair) != 2 or not all(isinstance(x, int | float) and math.isfinite(x) for x in pair) or pair[0] > pair[1]:
            raise UsageError("E0721", f"the range of '{name}' is {list(pair)}, not a least and a largest number", where="--ranges",
                             hint=f"give {_EXAMPLE}")
        if max(map(abs, pair)) < _LEAST:
            raise UsageError("E0721", f"the range of '{name}' is zero, or as good as that", where="--ranges",
                             hint="calibrate with real inputs")
    known = {v.name for v in graph.inputs} | {o.name for node in graph for o in node.outputs}
    strange = [n for n in ranges if n not in known]
    if strange:
        raise UsageError("E0722", f"{len(strange)} ranges are for no value of the graph: {_with_matches(strange, known)}",
                         where="--ranges", hint="names are those of values in the optimised graph, which --dump-graphs writes")


def _with_matches(strange: list[str], known: set[str | None]) -> str:
    lines = []
    for name in strange[:3]:
        near = difflib.get_close_matches(name, [k for k in known if k], 2)
        lines.append(f"'{name}'" + (f" (near: {', '.join(near)})" if near else ""))
    return ", ".join(lines) + (", …" if len(strange) > 3 else "")


def scale(pair: tuple[float, float], largest: float) -> float:
    """Symmetric: what ``largest``, the largest quantised number, stands for is the range's farther end."""
    return max(abs(pair[0]), abs(pair[1])) / largest
