"""An assignment by a mask, as exporters write it, becomes a Where; what only looks like one stays."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from infc.passes.cleanup.constant_folding import ConstantFolding
from infc.passes.cleanup.dead_code import DeadCode
from infc.passes.cleanup.masked_assignment import MaskedAssignment
from tests.passes.support import apply, graph, misses, ops

PASSES = (ConstantFolding, MaskedAssignment, DeadCode)
FOUND = ("m = Greater(x, bound) nz = NonZero(m) at = Transpose<perm=[1,0]>(nz) "
         "mf = Cast<to=7>(m) n = ReduceSum<keepdims=0>(mf) n1 = Reshape(n, flat) ")
C = {"bound": np.float32(0.3), "flat": np.array([-1]), "number": np.float32(-2.5), "one": np.array([1]),
     "numbers": np.array([1, 2], np.float32), "two": np.array([2]), "row": np.array([[1]])}


def model(body: str) -> ir.Model:
    return graph(f"(float[batch,seq] x) => (float[batch,seq] y) {{ {FOUND} {body} }}", C)


@pytest.mark.parametrize("updates", ["u = Expand(number, n1)", "e = Expand(number, n1) u = Reshape(e, flat)"])
def test_a_number_where_a_mask_is_true(updates: str) -> None:
    made = model(f"{updates} y = ScatterND(x, at, u)")
    apply(made, *PASSES)
    assert dict(ops(made)) == {"Greater": 1, "Where": 1}


@pytest.mark.parametrize(("body", "reason"), [
    ("u = Expand(number, n1) y = ScatterND<reduction=\"add\">(x, at, u)", "not assigned as it is"),
    ("w = Compress(x, mr) u = Neg(w) y = ScatterND(x, at, u)", "more than one constant"),
])
def test_what_stays(body: str, reason: str) -> None:
    made = model(("mr = Reshape(m, flat) " if "mr" in body else "") + body)
    records = apply(made, *PASSES)
    assert ops(made)["ScatterND"] == 1
    assert any(reason in m for m in misses(records))


def test_a_mask_of_rows_stays() -> None:
    made = graph("(float[batch,seq] x) => (float[batch,seq] y) { top = ReduceMax<keepdims=0>(x, one) m = Greater(top, bound) "
                 "nz = NonZero(m) at = Transpose<perm=[1,0]>(nz) "
                 "s = Shape(x) n = Shape(at) n0 = Slice(n, zero, one) s1 = Slice(s, one, two) w = Concat<axis=0>(n0, s1) "
                 "u = Expand(number, w) y = ScatterND(x, at, u) }", {**C, "zero": np.array([0])})
    records = apply(made, *PASSES)
    assert ops(made)["ScatterND"] == 1
    assert any("no mask of the shape" in m for m in misses(records))
