"""Builds mutated models: ``python -m tests.fuzz.mutate_models [--count N] [--seed S] [--folder MODEL_DIRECTORY] [--only NUMBER]``.

Each is a file of one of onnx's node cases, or a copy of the model directory, with a few changes, and goes through ``infc build`` as
a user's does, in a process that lives on. It must be built or be refused with an error that is not ours, within a time and a memory
limit. Prints how many ended how, and what is wrong by the number that makes it again; exits with 1 if anything is.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import io
import random
import re
import resource
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from infc.compiler.cli import group
from tests.conformance import workers
from tests.conformance.node_cases import collect
from tests.fuzz import folder_mutations, onnx_mutations

SECONDS = 60.0  # a build may take; the inputs are tiny, the machine may be busy
MEMORY = 6 << 30  # bytes of address space a process may add
FOLDERS = 8  # one model in so many is a directory: they take much longer
_ALLOWED = {0: "built", 1: "refused (engine and model differ)", 2: "refused (input)", 3: "refused (unsupported)"}


@dataclass(frozen=True)
class Attempt:
    """``problem`` is empty if all is well; ``peak`` in bytes, of the process so far."""

    number: int
    outcome: str
    problem: str = ""
    seconds: float = 0.0
    peak: int = 0


def attempt(number: int, seed: int, folder: Path | None) -> Attempt:
    """Makes and builds model ``number``."""
    rng = random.Random(f"{seed}/{number}")
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as place:
        model, what = _model(Path(place), number, rng, folder)
        out, errors = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
            code = group.run(["build", str(model), "-o", f"{place}/out.infc", "--no-tune", "--isa", "scalar", "--debug"])
        left = sorted(p.name for p in Path(place).iterdir() if p != model and p.name not in ("out.infc", "model"))
    text, said = errors.getvalue(), re.search(r"INFC-(E\d+)", errors.getvalue())
    outcome = f"{_ALLOWED.get(code, f'exit {code}')}{' ' + said[1] if said and code else ''}"
    problem = "" if code in _ALLOWED else f"{what}: {text}"
    if not problem and code and not said:
        problem = f"{what}: no code in {text!r}"
    if not problem and re.search(r"[\x00-\x08\x0b-\x1f\x7f]", text.split("\nTraceback")[0]):
        problem = f"{what}: control characters in {text!r}"
    if not problem and left:
        problem = f"{what}: left {left}"
    return Attempt(number, outcome, problem, time.monotonic() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10)


def _model(place: Path, number: int, rng: random.Random, folder: Path | None) -> tuple[Path, str]:
    if folder and number % FOLDERS == 0:
        copy = place / "model"
        shutil.copytree(folder, copy)
        return copy, folder_mutations.mutate(copy, rng)
    case = rng.choice(_cases())
    path = place / "model.onnx"
    path.write_bytes(onnx_mutations.mutate(case.model, rng))
    return path, case.name


_cases = functools.cache(collect)


def _work(number: int, seed: int, folder: Path | None) -> Attempt:
    _limit_memory()
    found = attempt(number, seed, folder)
    if found.problem:  # at once: the run may be cut short
        print(f"--only {number} --seed {seed}: {found.outcome}: {found.problem}", flush=True)
    return found


@functools.cache
def _limit_memory() -> None:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, resource.RLIM_INFINITY))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.mutate_models")
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--jobs", type=int)
    parser.add_argument("--only", type=int)
    chosen = parser.parse_args(arguments)
    if chosen.only is not None:
        print(attempt(chosen.only, chosen.seed, chosen.folder))
        return 0
    _cases()
    workers.SECONDS = SECONDS
    start = time.monotonic()
    work = functools.partial(_work, seed=chosen.seed, folder=chosen.folder)
    done = workers.run(work, range(chosen.count), lambda number, why: Attempt(number, "died", why), chosen.jobs)
    for outcome, count in sorted(Counter(a.outcome for a in done).items()):
        print(f"{count:7} {outcome}")
    problems = [a for a in done if a.problem]
    for a in problems:
        if a.outcome == "died":
            print(f"--only {a.number} --seed {chosen.seed}: {a.problem}")
    print(f"{len(done)} models, {len(problems)} problems, {time.monotonic() - start:.0f} s, "
          f"the slowest {max(a.seconds for a in done):.1f} s, peak {max(a.peak for a in done) >> 20} MiB")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
