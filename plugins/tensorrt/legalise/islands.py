"""Which nodes stay in float32 when a graph is lowered to a 16-bit type: where 16 bits lose the result, not just its last digits."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from infc.plugins.tensorrt.legalise.graph import array, attribute, is_op

# They add many numbers (float16 ends at 65504, bfloat16 has 8 bits), or raise one to a power.
ACCUMULATES = ("ReduceSum", "ReduceMean", "ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp",
               "ReduceProd", "CumSum", "LpNormalization", "Pow")
# They go on with such results until something shrinks them.
_POINTWISE = ("Add", "Sub", "Mul", "Div", "Sqrt", "Reciprocal", "Clip", "Max", "Min", "Pow", "Abs", "Neg", "Log", "Exp", "Expand",
              "Reshape", "Unsqueeze", "Squeeze", "Transpose", "Identity")
_PERIODIC = ("Sin", "Cos")
# Operators that RTX 1.7's parser takes in float32 and float16 only, though ONNX allows bfloat16.
_NOT_BF16 = ("HardSwish", "Mish", "LpNormalization")


def islands(graph: ir.Graph, wanted: ir.DataType) -> set[ir.Node]:
    """The nodes that stay in float32."""
    kept = {n for n in graph if is_op(n, *ACCUMULATES) and _floats(n)}
    if wanted == ir.DataType.BFLOAT16:
        kept |= {n for n in graph if is_op(n, *_NOT_BF16)}
    else:
        kept |= {n for n in graph if _holds_tiny(n)}
    kept |= _angles(graph)
    for node in graph:
        if is_op(node, *_POINTWISE) and _goes_on(node, kept):
            kept.add(node)
    squares = [n for n in graph if is_op(n, "Mul") and n.inputs[0] is n.inputs[1]]
    kept |= {n for n in squares if n.outputs[0].uses() and all(u.node in kept for u in n.outputs[0].uses())}
    return kept


def _floats(node: ir.Node) -> list[ir.Value]:
    return [v for v in node.inputs if v is not None and v.dtype == ir.DataType.FLOAT]


def _goes_on(node: ir.Node, kept: set[ir.Node]) -> bool:
    variable = [v for v in _floats(node) if array(v) is None]
    inside = [v.producer() in kept for v in variable]
    return bool(inside) and (any(inside) if node.op_type == "Div" else all(inside))


def _holds_tiny(node: ir.Node) -> bool:
    """Whether a lone number, such as the epsilon of a division, would become zero or lose digits in float16."""
    if not is_op(node, "Add", "Sub", "Max", "Div", "Mul", "Clip"):
        return False
    numbers = [array(v) for v in _floats(node) if v.const_value is not None and v.const_value.size == 1]
    return any(n is not None and 0 < abs(float(n.reshape(()))) < float(np.finfo(np.float16).tiny) for n in numbers)


def _angles(graph: ir.Graph) -> set[ir.Node]:
    """Sines and cosines of positions, with all that computes the angle: float16 has no whole numbers past 2048."""
    from_integers: set[ir.Value] = set()
    for node in graph:
        if is_op(node, "Gather", "Conv"):  # looked up or learned, not a position
            continue
        variable = [v for v in node.inputs if v is not None and array(v) is None]
        if all((v.dtype is not None and not v.dtype.is_floating_point()) or v in from_integers for v in variable):
            from_integers.update(node.outputs)
    pending = [n for n in graph if is_op(n, *_PERIODIC) and n.inputs[0] in from_integers]
    found: set[ir.Node] = set()
    while pending:
        node = pending.pop()
        if node in found:
            continue
        found.add(node)
        makers = [v.producer() for v in node.inputs if v is not None and v.dtype == ir.DataType.FLOAT]
        pending += [m for m in makers if m is not None and not _is_explicit(m)]
    return found


def _is_explicit(node: ir.Node) -> bool:
    return is_op(node, "Cast") and attribute(node, "to") not in (ir.DataType.FLOAT, None)
