"""Time to the first output and peak memory, in C and in Python: ``python bench/first_output.py ARTIFACT [--rounds 15]``.

Fresh processes take turns, so that drift hits all alike; medians and minima are printed. "above" is what remains of a median
or minimum after those of ``python -c "import numpy"`` and one inference are taken off (Python), or of one inference (C).
Needs gcc and build/c, which `make test-c` leaves.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NUMPY = "import numpy"
PYTHON = """
import infc, numpy as np, sys
engine = infc.Engine(sys.argv[1], threads=int(sys.argv[2]))
ids = np.ones((int(sys.argv[3]), int(sys.argv[4])), np.int64)
inputs = {t.name: ids for t in engine.inputs}
engine.run(inputs)
"""


def seconds(command: list[str]) -> float:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    start = time.perf_counter()
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def measure(artifact: Path, rounds: int, threads: int, batch: int, seq: int, library: Path) -> dict[str, dict[str, float]]:
    """Milliseconds and KiB by name, each with ``median`` and ``min``."""
    arguments = [str(artifact), str(threads), str(batch), str(seq)]
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "first_output"
        subprocess.run(["gcc", "-O2", "-std=c11", "-D_GNU_SOURCE", "-I", ROOT / "runtime" / "include",
                        ROOT / "bench" / "first_output.c", "-o", program, library, "-lm", "-lpthread"], check=True)
        for _ in range(rounds):
            said = subprocess.run([program, *arguments], check=True, capture_output=True, text=True).stdout.split()
            first, inference, peak, context = map(float, said)
            bare = seconds([sys.executable, "-c", NUMPY]) * 1e3
            python = seconds([sys.executable, "-c", PYTHON, *arguments]) * 1e3
            row = {"inference_ms": inference, "c_first_output_ms": first, "c_peak_kib": peak, "c_context_kib": context / 1024,
                   "import_numpy_ms": bare, "python_first_output_ms": python}
            for name, value in row.items():
                found.setdefault(name, []).append(value)
    done = {name: {"median": statistics.median(values), "min": min(values)} for name, values in found.items()}
    for of in ("median", "min"):
        inference = done["inference_ms"][of]
        done.setdefault("c_above_ms", {})[of] = done["c_first_output_ms"][of] - inference
        python_above = done["python_first_output_ms"][of] - done["import_numpy_ms"][of] - inference
        done.setdefault("python_above_ms", {})[of] = python_above
    return done


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("artifact", type=Path)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--seq", type=int, default=128)
    parser.add_argument("--library", type=Path, default=ROOT / "build" / "c" / "libinfc.a")
    a = parser.parse_args()
    print(json.dumps(measure(a.artifact, a.rounds, a.threads, a.batch, a.seq, a.library), indent=1))


if __name__ == "__main__":
    main()
