"""The CUDA sources as C++ against the NumPy reference, through the fake driver: every kernel, and the whole of `make gpu-check`."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.gpu import cases, emulated, kernels
from tests.gpu.operators import OPERATORS, dtypes, int4_mat_vec

ROOT = Path(__file__).parents[4]
Run = Callable[[cases.Case], str]
floats = st.floats(width=32, allow_nan=True, allow_infinity=True) | st.floats(-4, 4, width=32)


@pytest.fixture(scope="session")
def fake_driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return emulated.build(tmp_path_factory.mktemp("emulated"))


@pytest.fixture(scope="module")
def run(fake_driver: Path) -> Iterator[Run]:
    """What is wrong with the outputs of a case, or ""."""
    from tests.gpu import driver

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver, "LIBRARY", str(fake_driver))
        with driver.Device() as device:
            library = device.load(b"emulated")
            yield lambda case: case.wrong(kernels.run(device, library, case.op, case.inputs, case.attributes))


@pytest.mark.parametrize("case", cases.small(), ids=lambda case: f"{case.op.name} {case.text}")
def test_case(run: Run, case: cases.Case) -> None:
    assert run(case) == ""


def test_the_cases_reach_every_kernel() -> None:
    reached = set()
    for case in cases.small():
        shapes = {name: array.shape for name, array in case.inputs.items()}
        reached.add(
            case.op.kernel(case.op.bind(shapes, case.attributes), kernels.types_of(case.op, case.inputs, case.attributes)).name
        )
    assert reached == {k.name for op in OPERATORS for k in op.entries()}


@settings(deadline=None, max_examples=40)
@given(
    st.integers(1, 5),
    st.integers(1, 160),
    st.sampled_from(["f16", "bf16"]),
    st.sampled_from(["int8", "fp8"]),
    st.integers(0, 99),
    st.floats(1e-4, 1e4),
    st.floats(1e-3, 1e3),
)
def test_norm(run: Run, rows: int, vectors: int, dtype: str, output: str, seed: int, spread: float, scale: float) -> None:
    assert run(cases.norm((rows,), 8 * vectors, dtype, output, seed, spread, scale)) == ""


@settings(deadline=None, max_examples=40)
@given(st.lists(floats, min_size=48, max_size=48), st.sampled_from(["f16", "bf16"]), st.sampled_from(["int8", "fp8"]))
def test_norm_of_any_values(run: Run, values: list[float], dtype: str, output: str) -> None:
    case = cases.norm((2,), 16, dtype, output)
    with np.errstate(all="ignore"):
        x, residual, gamma = np.split(dtypes.from_f32(np.float32(values), dtype), [16, 32])
        total = dtypes.to_f32(x, dtype).astype(np.float64) + dtypes.to_f32(residual, dtype)
        squares = np.square(total).sum()
        off = squares / float(np.finfo(np.float32).max) - 1
    assume(not abs(off) < 0.01)  # kernels add squares in f32: there it depends on their order whether that overflows
    inputs = {**case.inputs, "x": np.stack([x, x]), "residual": np.stack([residual, residual]), "gamma": gamma}
    assert run(cases.Case(case.op, "", inputs, case.attributes)) == ""


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 8), st.integers(1, 40), st.integers(1, 11), st.sampled_from([32, 64, 128]), st.booleans(), st.integers(0, 99))
def test_mat_vec(run: Run, rows: int, groups: int, n: int, group: int, zeros: bool, seed: int) -> None:
    assert run(cases.mat_vec(rows, groups * group, n, group, zeros, seed)) == ""


@given(st.integers(1, 5), st.integers(1, 600), st.integers(0, 99))
def test_packing_is_undone_by_unpacking(n: int, k: int, seed: int) -> None:
    weights = np.random.default_rng(seed).integers(0, 16, (n, k), np.uint8)
    packed = int4_mat_vec.pack(weights)
    assert (packed.dtype, packed.shape) == (np.int32, (n, -(-k // 256) * 32))
    np.testing.assert_array_equal(int4_mat_vec.unpack(packed, k), weights)


def test_the_layout_of_weights() -> None:
    """As pack() tells it: word 4·lane + part holds k = 64·part + 8·lane + 0..7, nibbles in the order 0, 2, 4, 6, 1, 3, 5, 7."""
    for k, word, nibble in (
        (0, 0, 0),
        (1, 0, 4),
        (2, 0, 1),
        (7, 0, 7),
        (8, 4, 0),
        (63, 28, 7),
        (64, 1, 0),
        (130, 2, 1),
        (255, 31, 7),
        (256, 32, 0),
    ):
        weights = np.zeros((1, 512), np.uint8)
        weights[0, k] = 15
        packed = int4_mat_vec.pack(weights).view(np.uint32)[0]
        assert packed[word] == 15 << 4 * nibble
        assert np.count_nonzero(packed) == 1


def test_signed_weights_are_refused() -> None:
    with pytest.raises(ValueError, match="add 8"):
        int4_mat_vec.pack(np.full((1, 32), -1))


def test_a_barrier_that_not_all_threads_reach_is_found(tmp_path: Path) -> None:
    """The emulation would hang on what hangs a GPU; it says so instead."""
    source = tmp_path / "k.cpp"
    source.write_text(
        '#include "device.h"\nvoid kernel() { if (threadIdx.x % 2) __syncthreads(); }\n'
        "int main() { emulate::launch(1, 64, kernel); }\n"
    )
    subprocess.run(["g++", "-std=c++17", f"-I{emulated.OPS}", "-o", str(tmp_path / "k"), str(source)], check=True)
    done = subprocess.run([str(tmp_path / "k")], capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert "a barrier that not all threads reach" in done.stderr


UNDER_ASAN = """
import sys
from tests.gpu import cases, driver, kernels
driver.LIBRARY = sys.argv[1]
with driver.Device() as device:
    library = device.load(b"emulated")
    for case in cases.small():
        assert not case.wrong(kernels.run(device, library, case.op, case.inputs, case.attributes)), case.text
print("passed")
"""


def test_no_kernel_goes_outside_of_its_tensors(tmp_path: Path) -> None:
    """Under AddressSanitizer and UndefinedBehaviorSanitizer."""
    found = []
    for name in ("libasan.so", "libubsan.so"):
        done = subprocess.run(["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=True)
        found.append(done.stdout.strip())
    if not all(Path(f).is_absolute() for f in found):
        pytest.skip("gcc has no libasan or no libubsan")
    driver = emulated.build(tmp_path, "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined")
    options = "detect_leaks=0:detect_stack_use_after_return=0"
    environment = {**os.environ, "LD_PRELOAD": " ".join(found), "ASAN_OPTIONS": options}
    command = [sys.executable, "-c", UNDER_ASAN, str(driver)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.stdout == "passed\n", done.stderr


def check(fake_driver: Path, *statements: str) -> subprocess.CompletedProcess[str]:
    """tests/gpu/check.py on the fake driver, after ``statements`` that make it small."""
    script = "\n".join(
        (
            "import sys",
            "sys.argv = ['check.py', '--fatbins', sys.argv[1], *sys.argv[2:]]",
            "from tests.gpu import cases, check, executor",
            *statements,
            "check.main()",
        )
    )
    for op in OPERATORS:
        (fake_driver.parent / f"{op.name}.fatbin").write_bytes(b"emulated")
    return subprocess.run(
        [sys.executable, "-c", script, str(fake_driver.parent)],
        cwd=ROOT,
        env=emulated.environment(fake_driver.parent),
        capture_output=True,
        text=True,
        timeout=300,
    )


SMALL = (
    "cases.large = lambda: [cases.norm((4,), 64, 'f16', 'int8')]",
    "few = cases.small()[::20]",
    "cases.small = lambda: few",
    "executor.RUNS = 2",
    "check.LAUNCHES = check.REPLAYS = 2",
)


def test_gpu_check_passes_without_tensorrt(fake_driver: Path) -> None:
    done = check(fake_driver, *SMALL)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "gpu-check: Fake GPU, SM 89, driver for CUDA 13.0" in done.stdout
    passed, not_run = done.stdout.splitlines()[-1].split("; ")
    expected = {"kernels", "times", "graph"} | ({"executor"} if importlib.util.find_spec("infc.runtime._rt") else set())
    assert expected <= set(passed.removeprefix("gpu-check: passed: ").split(", "))
    assert "engine" in not_run
    assert "engine    not run    0.0 s  no --model" in done.stdout


def test_gpu_check_goes_on_without_the_kernels(fake_driver: Path) -> None:
    """With a driver that lacks a function, and where the kernels do not compile."""
    executor = "check.check_executor = lambda *a: ''"
    for cause, outcome, status in (("driver.Device.load = lambda self, code: self.call('cuFunctionOfTomorrow')", "not run", 0),
                                   ("def load(self, code): raise driver.CudaError('cuLibraryLoadData: ?')\n"
                                    "driver.Device.load = load", "failed", 1)):
        done = check(fake_driver, "from tests.gpu import driver", cause, executor)
        assert done.returncode == status, done.stdout + done.stderr
        assert f"kernels, times, graph: {outcome}: " in done.stdout
        assert "executor  passed" in done.stdout


def test_gpu_check_fails_with_a_kernel_that_is_wrong(fake_driver: Path) -> None:
    done = check(
        fake_driver,
        *SMALL,
        "few[0].inputs['gamma'][:] = 3",
        "check.check_executor = lambda *a: ''",
        "cases.CHECKS['AddRMSNormQuantize'] = lambda case, outputs: 'y differs'",
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "failed: kernels, times, graph" in done.stdout
    assert "AddRMSNormQuantize f16 int8 [1, 8]: y differs" in done.stdout


@pytest.mark.parametrize(("arguments", "status"), [((), 0), (("--require-gpu",), 3)])
def test_gpu_check_says_that_nothing_was_run(arguments: tuple[str, ...], status: int) -> None:
    """Without a driver; with one, only that it says what it does."""
    script = "from tests.gpu import check, driver; driver.LIBRARY = 'libcuda-of-nobody.so'; check.main()"
    done = subprocess.run([sys.executable, "-c", script, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == status
    assert "gpu-check: nothing was run: no NVIDIA driver" in done.stdout
