"""Mutated artifacts of real models: a status each, no crash, no hang, no write outside a buffer. See tests/c/fuzz/mutate.c."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import onnx
import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(os.environ.get("INFC_MUTATE", ROOT / "build" / "c" / "mutate"))
COUNT = int(os.environ.get("INFC_MUTATIONS", "1000"))

# What BERT has none of: loop nests, casts, comparisons, gathers, reductions, batched products.
OPERATORS = """<ir_version: 9, opset_import: ["": 18]>
operators (float[2,9,17] x, float[2,17,9] w) =>
          (float[2,9,9] probabilities, int64[2,9,17] whole, float[2,17,27] tiled, float[2,9] most, float[2,3,17] taken,
           float[2,5,17] back)
<float[9,1] bias = {1, -2, 3, -4, 5, -6, 7, -8, 9}, int64[3] rows = {0, -1, 4}, int64[1] one = {1}, int64[1] last = {-1},
 int64[1] eight = {8}, int64[1] none = {-100}, int64[1] step = {-2}, int64[3] repeats = {1, 17, 3}>
{
  product = MatMul(x, w)
  shifted = Add(product, bias)
  probabilities = Softmax<axis: int = -1>(shifted)
  turned = Transpose<perm: ints = [0, 2, 1]>(x)
  summed = ReduceSum<keepdims: int = 1>(turned, one)
  tiled = Tile(summed, repeats)
  most = ReduceMax<keepdims: int = 0>(x, last)
  taken = Gather<axis: int = 1>(x, rows)
  back = Slice(x, eight, none, one, step)
  scaled = Mul(x, bias)
  greater = Greater(scaled, x)
  chosen = Where(greater, scaled, x)
  whole = Cast<to: int = 7>(chosen)
}
"""


def _mutate(*artifacts: Path) -> None:
    done = subprocess.run([PROGRAM, str(COUNT), "1", *artifacts], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(autouse=True)
def program() -> None:
    if "INFC_MUTATE" not in os.environ and not PROGRAM.exists():
        pytest.skip("the C tests are not built: make test-c")


def test_mutated_artifacts_never_crash(bert: Path, tmp_path: Path) -> None:
    import infc

    infc.build(bert, tmp_path / "tiny.infc", profiles=["batch=1,seq=8", "batch=2,seq=24"], tune=False, isa=["scalar", "native"])
    _mutate(tmp_path / "tiny.infc")


def test_mutated_operators_never_crash(tmp_path: Path) -> None:
    import infc

    onnx.save(onnx.parser.parse_model(OPERATORS), tmp_path / "operators.onnx")
    artifacts = [tmp_path / f"{isa}.infc" for isa in ("scalar", "native")]
    for artifact in artifacts:
        infc.build(tmp_path / "operators.onnx", artifact, tune=False, isa=[artifact.stem])
    _mutate(*artifacts)
