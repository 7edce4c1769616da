"""A model of BERT's kind on the fake GPU: its engine is its own artifact for the CPU, so that what the executor pads, copies
and cuts off must give the CPU's results to the bit. See tests/fake_gpu/fake.h."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from infc.compiler.artifact import tensorrt, writer
from infc.compiler.artifact.reader import Artifact
from infc.compiler.target import Section
from tests.e2e.conftest import environment

FAKES = os.environ.get("INFC_FAKE_GPU", "")
COMMAND = "infc build tiny --profile batch=1,seq=8 --profile batch=3,seq=24"
SIZES = ((1, 8), (1, 5), (2, 8), (3, 24), (3, 7), (2, 23), (1, 24), (1, 1))

pytestmark = pytest.mark.skipif(not FAKES, reason="INFC_FAKE_GPU does not name the folder of the fake driver; `make test` sets it")

RUN = """
import sys
import numpy as np
import infc

def main(artifact, cases, results):
    engine = infc.Engine(artifact)
    assert engine.device == "cuda:0" and not engine.note, (engine.device, engine.note)
    found = {}
    with np.load(cases) as arrays:
        for case in range(int(arrays["count"])):
            inputs = {key.split("/")[1]: arrays[key] for key in arrays.files if key.startswith(f"{case}/")}
            found |= {f"{case}/{name}": array for name, array in engine.run(inputs).items()}
    np.savez(results, **found)

main(*sys.argv[1:])
"""

DESCRIBE = """
import sys
import infc

engine = infc.Engine(sys.argv[1])
print(engine.device, engine.note)
try:
    infc.Engine(sys.argv[1], device="cuda")
    print("cuda runs")
except infc.Error as error:
    print(error)
"""


def _python(script: str, *arguments: Path, **settings: str) -> str:
    done = subprocess.run([sys.executable, "-c", script, *arguments], env=environment(LD_LIBRARY_PATH=FAKES, **settings),
                          capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def artifacts(bert: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The model for the CPU, and with an engine for the fake GPU beside."""
    import infc

    folder = tmp_path_factory.mktemp("fake_gpu")
    cpu, gpu = folder / "cpu.infc", folder / "gpu.infc"
    infc.build(bert, cpu, profiles=["batch=1,seq=8", "batch=3,seq=24"], tune=False, isa=["scalar"])
    data = cpu.read_bytes()
    plan = struct.pack("<8sQI44x", b"FAKEPLAN", len(data), 2) + data
    engine = tensorrt.TensorRtEngine("tensorrt-rtx", (1, 7, 1, 116), 13000, (86, 89), (0, 1), COMMAND, plan)
    found = Artifact.open(cpu)
    sections = [Section(s.kind, bytes(found.section(s.kind, s.ordinal) or b""), ordinal=s.ordinal, required=s.required, name=s.name)
                for s in found.sections]
    writer.write(gpu, [*sections, Section("TENSORRT", tensorrt.encode(engine), required=False)])
    return cpu, gpu


def _cases() -> list[dict[str, np.ndarray[Any, Any]]]:
    """Sizes that fill a profile and that do not, with and without a mask."""
    rng = np.random.default_rng(0)
    cases = []
    for batch, seq in SIZES:
        inputs = {"input_ids": rng.integers(1, 64, (batch, seq))}
        lengths = rng.integers(1, seq + 1, batch)
        mask = (np.arange(seq) < lengths[:, None]).astype(np.int64)
        cases += [inputs, {**inputs, "attention_mask": mask, "token_type_ids": rng.integers(0, 2, (batch, seq))}]
    return cases


@pytest.mark.parametrize("settings", ["", "async=1,delay=300"], ids=["at once", "later"])
def test_results_are_the_cpus(settings: str, artifacts: tuple[Path, Path], tmp_path: Path) -> None:
    import infc

    cpu, gpu = artifacts
    cases = _cases()
    arrays: dict[str, Any] = {f"{i}/{name}": array for i, inputs in enumerate(cases) for name, array in inputs.items()}
    np.savez(tmp_path / "cases.npz", count=len(cases), **arrays)
    _python(RUN, gpu, tmp_path / "cases.npz", tmp_path / "results.npz", FAKE_CUDA=settings)
    engine = infc.Engine(cpu, threads=1, isa="scalar")
    with np.load(tmp_path / "results.npz") as results:
        for i, inputs in enumerate(cases):
            for name, wanted in engine.run(inputs).items():
                np.testing.assert_array_equal(results[f"{i}/{name}"], wanted, err_msg=f"{name} of case {i}")


@pytest.mark.parametrize(("settings", "said"), [
    ("devices=0", ["found a driver, but no GPU"]),
    ("sm=120", ["SM 120", "infc build tiny", "--target cpu,tensorrt-rtx --sm 86,89,120"]),
    ("driver=12040", ["CUDA 12.4", "CUDA 13.0"]),
    ("memory=1000", ["do not fit"]),
])
def test_without_a_fitting_gpu_the_cpu_runs(settings: str, said: list[str], artifacts: tuple[Path, Path]) -> None:
    """The engine says why, and a GPU that was asked for is an error of the same words."""
    automatic, refusal = _python(DESCRIBE, artifacts[1], FAKE_CUDA=settings).splitlines()
    device, note = automatic.split(" ", 1)
    assert device == "cpu"
    assert note
    assert note in refusal
    assert all(words in note for words in said), note


def test_the_cpus_artifact_needs_no_excuse(artifacts: tuple[Path, Path]) -> None:
    assert _python(DESCRIBE, artifacts[0]).splitlines()[0] == "cpu "
