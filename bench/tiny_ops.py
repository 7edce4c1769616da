"""What a run costs besides arithmetic: graphs of 1 and of 100 operators on 16 floats, beside ONNX Runtime in the same run.

``python bench/tiny_ops.py [--threads 2]``. Microseconds a run, medians of bursts that take turns: from C (infc_run), from Python
with bound arrays (infc.Context.run), and ONNX Runtime from Python with bound arrays (run_with_iobinding). Needs gcc and build/c,
which `make test-c` leaves.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

import infc

ROOT = Path(__file__).resolve().parents[1]
BURSTS, RUNS = 60, 300
FUNCTIONS = ("Add", "Mul", "Sub", "Max")  # neighbours differ, so that neither system folds two into one


def chain(path: Path, length: int) -> None:
    """y = a chain of ``length`` operators over x and constants, all [16] float."""
    values = np.random.default_rng(0).uniform(0.5, 1.5, (length, 16)).astype(np.float32)
    nodes, last = [], "x"
    for i in range(length):
        name = "y" if i == length - 1 else f"v{i}"
        nodes.append(helper.make_node(FUNCTIONS[i % len(FUNCTIONS)], [last, f"c{i}"], [name]))
        last = name
    vector = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [16]) for n in ("x", "y")]
    constants = [numpy_helper.from_array(v, f"c{i}") for i, v in enumerate(values)]
    graph = helper.make_graph(nodes, "chain", vector[:1], vector[1:], constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path)


def ours(artifact: Path, threads: int, x: np.ndarray[Any, Any]) -> tuple[Callable[[], Any], np.ndarray[Any, Any]]:
    context = infc.Engine(artifact, threads=threads).context()
    context.bind({"x": x})
    context.run()
    return context.run, context.outputs["y"]


def theirs(model: Path, threads: int, x: np.ndarray[Any, Any]) -> tuple[Callable[[], Any], np.ndarray[Any, Any]]:
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    y = np.zeros(16, np.float32)
    for bind, name, array in ((binding.bind_input, "x", x), (binding.bind_output, "y", y)):
        bind(name, "cpu", 0, np.float32, [16], array.ctypes.data)
    session.run_with_iobinding(binding)
    return lambda: session.run_with_iobinding(binding), y


def microseconds(run: Callable[[], Any]) -> float:
    start = time.perf_counter()
    for _ in range(RUNS):
        run()
    return (time.perf_counter() - start) / RUNS * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--library", type=Path, default=ROOT / "build" / "c" / "libinfc.a")
    options = parser.parse_args()
    x = np.ones(16, np.float32)
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "run_time"
        subprocess.run(["gcc", "-O2", "-std=c11", "-D_GNU_SOURCE", "-I", ROOT / "runtime" / "include",
                        ROOT / "bench" / "run_time.c", "-o", program, options.library, "-lm", "-lpthread"], check=True)
        for length in (1, 100):
            model, artifact = Path(folder) / f"chain{length}.onnx", Path(folder) / f"chain{length}.infc"
            chain(model, length)
            steps = infc.build(model, artifact, tune=False).report["layers"]
            run, y = ours(artifact, options.threads, x)
            run_theirs, y_theirs = theirs(model, options.threads, x)
            assert np.allclose(y, y_theirs, rtol=1e-5)
            times: dict[str, list[float]] = {"infc from C": [], "infc from Python": [], "ONNX Runtime from Python": []}
            for i in range(BURSTS):
                times["infc from Python"].append(microseconds(run))
                times["ONNX Runtime from Python"].append(microseconds(run_theirs))
                if i % 20 == 0:
                    said = subprocess.run([program, artifact, str(options.threads)], check=True, capture_output=True, text=True)
                    times["infc from C"].append(float(said.stdout.split()[0]) / 1e3)
            kernels = ", ".join(f"{len(v)} kernel calls" for v in steps.values())
            print(f"{length} operators ({kernels}): " + ", ".join(f"{k} {statistics.median(v):.2f} us" for k, v in times.items()))


if __name__ == "__main__":
    main()
