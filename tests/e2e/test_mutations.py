"""Mutated artifacts of real models: a status each, no crash, no hang, no write outside a buffer. See tests/c/fuzz/mutate.c."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from tests.fuzz import folders, subjects

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


@pytest.fixture(scope="module")
def every_operator(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return subjects.write(tmp_path_factory.mktemp("subjects"))


def test_the_subjects_have_every_operator(every_operator: list[Path]) -> None:
    from infc import runtime
    from infc.compiler.artifact.ops import OPS
    from infc.compiler.artifact.reader import Artifact

    operator = {name: op for name, op, _ in runtime.kernels()}
    programs = [program for path in every_operator for program in Artifact.open(path).programs()]
    found = {operator[step.kernel] for program in programs for step in program.steps}
    assert set(OPS) - found <= subjects.OF_TEXT | subjects.OF_LANGUAGE


def test_mutated_kernels_never_crash(every_operator: list[Path]) -> None:
    _mutate(*every_operator)


def test_each_allocation_may_fail(every_operator: list[Path]) -> None:
    done = subprocess.run([PROGRAM.with_name("alloc"), *every_operator], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_mutated_headers_and_tables_never_crash(every_operator: list[Path]) -> None:
    done = subprocess.run([PROGRAM.with_name("fuzz_artifact"), str(COUNT), "1", *every_operator], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("count", [100, pytest.param(20_000, marks=pytest.mark.slow)])
def test_mutated_models_are_built_or_refused(count: int, tmp_path: Path) -> None:
    folders.write(tmp_path)
    command = [sys.executable, "-m", "tests.fuzz.mutate_models", "--count", str(count), "--folders", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stdout + done.stderr


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
