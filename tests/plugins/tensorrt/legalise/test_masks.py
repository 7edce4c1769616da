from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from infc.compiler.artifact.io import IoSpec, IoTensor
from infc.plugins.tensorrt.legalise import Request, legalise, masked_outputs
from tests.plugins.tensorrt.legalise.support import build, graph, run


def _spec(*outputs: tuple[int | str, ...]) -> IoSpec:
    return IoSpec([IoTensor("ids", "i64", ("B", "S")), IoTensor("mask", "i64", ("B", "S"))],
                  [IoTensor(f"o{i}", "f32", dims) for i, dims in enumerate(outputs)])


def test_outputs_are_told_by_the_names_of_their_dimensions() -> None:
    spec = _spec(("B", "S", 384), ("B", 384), ("B", "S"), ("S", "B"), ("B", 3, "S"))
    assert masked_outputs(spec, "mask") == ("o0", "o2")
    assert masked_outputs(spec, None) == masked_outputs(spec, "other") == ()


@pytest.mark.parametrize("precision", ["f32", "f16"])
def test_padding_is_zero(precision: str, tmp_path: Path) -> None:
    model = graph("(float[2, 4, 3] x, int64[2, 4] mask) => (float[2, 4, 3] y, float[2, 4] z, float[2, 3] p) "
                  "{ y = Neg(x) z = ReduceSum<keepdims = 0>(x, a) p = ReduceMean<keepdims = 0>(x, b) }",
                  {"a": np.array([2]), "b": np.array([1])})
    found = legalise(model, Request(precision, sms=(89,), mask="mask", masked=("y", "z"))).model
    assert [v.name for v in found.graph.outputs] == ["y", "z", "p"]
    feeds = {"x": np.random.default_rng(0).standard_normal((2, 4, 3)).astype(np.float32),
             "mask": np.array([[1, 1, 0, 0], [0, 1, 1, 1]])}
    kept = feeds["mask"] != 0
    before, after = run(model, feeds), run(found, feeds)
    for wanted, got in zip(before[:2], after[:2], strict=True):
        assert (got[~kept] == 0).all()
        np.testing.assert_allclose(got[kept], wanted[kept], atol=5e-3)
    np.testing.assert_allclose(after[2], before[2], atol=5e-3)
    feeds["x"][0, 2] = np.nan
    assert np.isfinite(run(found, feeds)[0]).all()
    assert build(tmp_path, found) == [""]
