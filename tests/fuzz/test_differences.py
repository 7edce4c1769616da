"""When nobody can say what a model computes, and when the engine is at fault."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from tests.fuzz import differences


@pytest.mark.parametrize(("node", "why"), [
    ("Softmax (x)", differences.MISCOMPILED),  # an engine that differs there is wrong
    ("LpPool <kernel_shape = [2, 2], p = 255> (x)", differences.DISPUTED),  # powers below float32's
    ("LpPool <kernel_shape = [2, 2], p = 2> (x)", differences.MISCOMPILED),
    ("Mul (x, large)", differences.UNSTABLE),
    ("Sqrt (x)", differences.NO_NUMBERS),
])
def test_who_is_at_fault(node: str, why: str, tmp_path: Path) -> None:
    text = f"""<ir_version: 9, opset_import: ["": 18]>
    g (float[1, 1, 4, 4] x) => (float[a, b, c, d] y) <float large = {{1e30}}> {{ z = {node}  y = Cos (z) }}"""
    (tmp_path / "model.onnx").write_bytes(onnx.parser.parse_model(text).SerializeToString())
    assert differences.explain(tmp_path / "model.onnx") == why


@pytest.mark.parametrize(("weight", "why"), [("1e30", differences.UNSTABLE), ("1.5", differences.MISCOMPILED)])
def test_weights_decide_where_inputs_are_integers(weight: str, why: str, tmp_path: Path) -> None:
    text = f"""<ir_version: 9, opset_import: ["": 18]>
    g (int64[4] x) => (float[4] y) <float w = {{{weight}}}> {{ f = Cast <to = 1> (x)  z = Mul (f, w)  y = Cos (z) }}"""
    (tmp_path / "model.onnx").write_bytes(onnx.parser.parse_model(text).SerializeToString())
    assert differences.explain(tmp_path / "model.onnx") == why
