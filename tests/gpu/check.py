"""Everything that needs a GPU, in less than four minutes: `make gpu-check`, or `python -m tests.gpu.check` in the root.

The operators' kernels and the graph launcher need a driver, NumPy, and nvcc or --fatbins; the executor needs libinfc as well,
and the engine TensorRT or TensorRT-RTX with its adapter. What cannot run here is named with the reason.

Exit status: 0 if nothing that ran failed, on a machine without a GPU too, where nothing runs (3 with --require-gpu); 1 if something
failed or the time was up.
"""

from __future__ import annotations

import argparse
import ctypes
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from tests.gpu import cases, kernels
from tests.gpu.driver import CudaError, Device, NoGpu
from tests.gpu.engine import check_engine, check_language
from tests.gpu.executor import check_executor
from tests.gpu.operators import OPERATORS, Operator, build
from tests.gpu.outcome import Failed, NotRun

LAUNCHES = 50  # of a kernel in a graph that is timed
REPLAYS = 1000  # of a graph, for the host's time
NO_GPU = 3


class Kernels:
    """The operators' modules on a device."""

    def __init__(self, device: Device, prebuilt: Path | None) -> None:
        self.device = device
        self._libraries: dict[str, ctypes.c_void_p] = {}
        for op in OPERATORS:
            self._libraries[op.name] = device.load(self._code(op, prebuilt))

    def _code(self, op: Operator, prebuilt: Path | None) -> bytes:
        if prebuilt:
            return (prebuilt / f"{op.name}.fatbin").read_bytes()
        with tempfile.TemporaryDirectory() as scratch:
            path = Path(scratch, "kernels.fatbin")
            try:
                build.fatbin(op, path, [self.device.sm])
            except FileNotFoundError as error:
                raise NotRun(f"{error}; or give --fatbins") from None
            except subprocess.CalledProcessError as error:
                raise Failed(f"nvcc for SM {self.device.sm}: exit status {error.returncode}\n{error.stderr or ''}") from None
            return path.read_bytes()

    def launch(self, case: cases.Case) -> kernels.Launch:
        return kernels.Launch(self.device, self._libraries[case.op.name], case.op, case.inputs, case.attributes)

    def check(self, case: cases.Case) -> kernels.Launch:
        launch = self.launch(case)
        launch.launch()
        wrong = case.wrong(launch.outputs())
        if wrong:
            raise Failed(f"{case.op.name} {case.text}: {wrong}")
        return launch


def check_kernels(loaded: Kernels) -> str:
    """Every kernel against the NumPy reference, at sizes on the edges and with special values."""
    ran = set()
    for case in cases.small():
        ran.add(loaded.check(case).name)
        loaded.device.free()
    return f"{len(cases.small())} cases, {len(ran)} kernels"


def check_times(loaded: Kernels) -> str:
    """Sizes of language models: right, and how fast. Launched from a graph, so that the host does not count."""
    lines = []
    for case in cases.large():
        launch = loaded.check(case)
        graph = loaded.device.graph(lambda launch=launch: [launch.launch() for _ in range(LAUNCHES)])  # type: ignore[misc]
        graph.launch()
        best = min(loaded.device.seconds(graph.launch) for _ in range(5)) / LAUNCHES
        graph.destroy()
        loaded.device.free()
        lines.append(f"  {launch.name:32} {case.text:42} {best * 1e6:9.1f} us {launch.bytes / best / 1e9:8.0f} GB/s")
    return f"{len(lines)} sizes; GB/s may exceed the memory's where all fits in the L2 cache\n" + "\n".join(lines)


def check_graph(loaded: Kernels) -> str:
    """A captured launch gives what a launch gives, as often as it is replayed, also after the inputs have changed."""
    device = loaded.device
    first, second = cases.norm((64,), 1024, "f16", "int8", seed=1), cases.norm((64,), 1024, "f16", "int8", seed=2)
    launch = loaded.check(first)
    graph = device.graph(launch.launch)
    for case in (first, second, first):
        launch.upload(case.inputs)
        for _ in range(3):
            graph.launch()
        wrong = case.wrong(launch.outputs())
        if wrong:
            raise Failed(f"replayed: {wrong}")
    started = time.perf_counter()
    for _ in range(REPLAYS):
        graph.launch()
    issued = (time.perf_counter() - started) / REPLAYS
    device.wait()
    graph.destroy()
    device.free()
    return f"replayed with three inputs; {issued * 1e6:.1f} us of the host a launch, from Python"


def run(options: argparse.Namespace) -> int:
    try:
        device = Device()
    except NoGpu as error:
        print(f"gpu-check: nothing was run: {error}")
        return NO_GPU if options.require_gpu else 0
    print(f"gpu-check: {device.name}, SM {device.sm}, driver for CUDA {device.driver}")
    outcomes: dict[str, list[str]] = {"passed": [], "failed": [], "not run": []}

    def attempt(name: str, check: Callable[[], str]) -> None:
        started = time.monotonic()
        try:
            outcome, text = "passed", check()
        except NotRun as error:
            outcome, text = "not run", str(error)
        except Failed as error:
            outcome, text = "failed", str(error)
        except Exception:  # a check that breaks is a check that fails; the others still run
            outcome, text = "failed", traceback.format_exc()
        outcomes[outcome].append(name)
        print(f"{name:9} {outcome:8} {time.monotonic() - started:5.1f} s  {text}", flush=True)

    with device:
        try:
            loaded = Kernels(device, options.fatbins)
        except (NotRun, Failed, CudaError, OSError) as error:
            outcomes["not run" if isinstance(error, NotRun) else "failed"] += ["kernels", "times", "graph"]
            print(f"kernels, times, graph: {'not run' if isinstance(error, NotRun) else 'failed'}: {error}", flush=True)
        else:
            attempt("kernels", lambda: check_kernels(loaded))
            attempt("times", lambda: check_times(loaded))
            attempt("graph", lambda: check_graph(loaded))
        device.free()
    attempt("executor", lambda: check_executor(device.sm, options.fatbins))
    attempt("engine", lambda: check_engine(device.sm, options.model))
    attempt("language", lambda: check_language(device.sm, options.language_model))
    print("gpu-check: " + "; ".join(f"{outcome}: {', '.join(names)}" for outcome, names in outcomes.items() if names))
    return 1 if outcomes["failed"] else 0


def too_slow(*_: object) -> None:
    print("gpu-check: failed: the time is up", flush=True)
    raise SystemExit(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fatbins", type=Path, help="folder with OPERATOR.fatbin, instead of nvcc")
    parser.add_argument(
        "--model", type=Path, help="folder of a sentence-transformers model such as all-MiniLM-L6-v2, for the engine"
    )
    parser.add_argument("--language-model", type=Path, help="folder of a causal language model such as SmolLM2-135M")
    parser.add_argument("--require-gpu", action="store_true", help=f"exit with {NO_GPU} where there is no GPU")
    parser.add_argument("--limit", type=int, default=240, help="seconds")
    options = parser.parse_args()
    signal.signal(signal.SIGALRM, too_slow)
    signal.alarm(options.limit)
    try:
        sys.exit(run(options))
    except CudaError as error:  # not even a context
        sys.exit(f"gpu-check: failed: {error}")


if __name__ == "__main__":
    main()
