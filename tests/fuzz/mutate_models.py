"""Builds mutated models: ``python -m tests.fuzz.mutate_models [--count N] [--seed S] [--folders DIRECTORY] [--only NUMBER]``;
``--first N`` begins at that number.

Each is a file of one of onnx's node cases, or a copy of one of the model directories in ``DIRECTORY`` (``tests.fuzz.folders``
writes some), with a few changes, and goes through ``infc build`` as a user's does, in a process that lives on. It must be built, or
be refused with an error that is not ours, within limits of processor time and memory. An engine that computes something else than
the model is a fault, unless ``differences`` finds that nobody can say what the model computes. PyTorch's exporter is slow, and what
it reads is in memory by then: it runs for one in EXPORTED of the directories that load.

Prints how many ended how, and what is wrong by the number that makes it again; exits with 1 if anything is.
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
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from infc.compiler import isolated
from infc.compiler.cli import group
from tests.conformance import workers
from tests.conformance.node_cases import Case, collect, taken
from tests.fuzz import differences, folder_mutations, onnx_mutations

SECONDS = 60  # of processor time that a build may take: the inputs are tiny
WAIT = 20.0 * SECONDS  # for a machine that is busy
MEMORY = 6 << 30  # bytes of address space a process may add
FOLDERS = 4  # one model in so many is a directory
EXPORTED = 16  # one directory in so many is exported
_REFUSED = re.compile(r"INFC-(E0[1-4]\d\d|E0008|E0045)")  # what is wrong with a model, or too large in it
_LOADED = "loaded"


@dataclass(frozen=True)
class Attempt:
    """``problem`` is empty if all is well; ``peak`` in bytes, of the process so far."""

    number: int
    outcome: str
    problem: str = ""
    seconds: float = 0.0
    peak: int = 0


def attempt(number: int, seed: int, folders: Path | None) -> Attempt:
    """Makes and builds model ``number``."""
    rng = random.Random(f"{seed}/{number}")
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as place:
        model, what = _model(Path(place), number, rng, folders)
        export = model.is_file() or number // FOLDERS % EXPORTED == 0
        code, text = _build(model, Path(place, "out.infc")) if export else _load(model)
        outcome, problem = _judge(model, code, text, export)
        left = sorted(p.name for p in Path(place).iterdir() if p != model and p.name not in ("out.infc", "model"))
    if left and not problem:
        problem = f"left {left}"
    return Attempt(number, outcome, f"{what}: {problem}" if problem else "", time.monotonic() - start,
                   resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10)


def _judge(model: Path, code: int, text: str, exported: bool) -> tuple[str, str]:
    """How it ended, and what is wrong with that."""
    said = re.search(r"INFC-(E\d+)", text)
    message = text.split("\nTraceback")[0]
    if code == 0:
        return "built" if exported else _LOADED, ""
    if said and said[0] == "INFC-E0503":
        kind = differences.explain(model)
        return f"refused: engine and model differ: {kind}", "" if kind in differences.UNDEFINED else f"{kind}: {message}"
    if code not in (2, 3) or not said or not _REFUSED.fullmatch(said[0]):
        return f"exit {code} {said[0] if said else ''}", text
    if isolated.STOPPED in message:
        return "endless", text
    if re.search(r"[\x00-\x08\x0b-\x1f\x7f]", message):
        return "unprintable", f"control characters in {message!r}"
    return f"refused {said[1]}", ""


def _build(model: Path, output: Path) -> tuple[int, str]:
    """The exit code of a build, and what it said of errors."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as errors:
        code = group.run(["build", str(model), "-o", str(output), "--no-tune", "--isa", "scalar", "--debug"])
    text = errors.getvalue()
    return code, text[text.find("INFC-"):] if "INFC-" in text else text


def _load(folder: Path) -> tuple[int, str]:
    """The same, of all that reads the files of a directory."""
    from infc.compiler import samples, source, tokenizer
    from infc.models import registry

    try:
        found = source.resolve(folder)
        registry.load(found)
        tokenize = samples.tokenizer(found)
        if tokenize:
            tokenize(samples.TEXTS[0], 8)
        tokenizer.archive(found)
    except Exception as error:
        said = group._as_infc_error(error)
        return said.exit_code, f"{said}\n{''.join(traceback.format_exception(error))}"
    return 0, ""


def _model(place: Path, number: int, rng: random.Random, folders: Path | None) -> tuple[Path, str]:
    if folders and number % FOLDERS == 0:
        chosen = rng.choice(sorted(folders.iterdir()))
        copy = place / "model"
        shutil.copytree(chosen, copy)
        return copy, f"{chosen.name}/{folder_mutations.mutate(copy, rng)}"
    case: Case = rng.choice(_cases())
    path = place / "model.onnx"
    constant = case.parameters if rng.random() < 0.7 else ()
    path.write_bytes(onnx_mutations.mutate(taken(case, constant)[0], rng))
    return path, case.name


_cases = functools.cache(collect)


def _died(seed: int, number: int, why: str) -> Attempt:
    print(f"--only {number} --seed {seed}: {why}", flush=True)
    return Attempt(number, "died", why)


def _work(number: int, seed: int, folders: Path | None, limit: bool) -> Attempt:
    if limit:
        _limit_memory()
    resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time()) + SECONDS, resource.RLIM_INFINITY))
    found = attempt(number, seed, folders)
    if found.problem:  # at once: the run may be cut short
        print(f"--only {number} --seed {seed}: {found.outcome}: {found.problem}", flush=True)
    return found


@functools.cache
def _limit_memory() -> None:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, resource.RLIM_INFINITY))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.mutate_models")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folders", type=Path)
    parser.add_argument("--jobs", type=int)
    parser.add_argument("--only", type=int)
    parser.add_argument("--no-limit", action="store_true", help="for AddressSanitizer, which takes terabytes of addresses: its own "
                        "limits are ASAN_OPTIONS=allocator_may_return_null=1:max_allocation_size_mb=6144:hard_rss_limit_mb=8192")
    chosen = parser.parse_args(arguments)
    if chosen.only is not None:
        print(attempt(chosen.only, chosen.seed, chosen.folders))
        return 0
    _cases()
    workers.SECONDS = WAIT
    isolated.SECONDS = SECONDS
    start = time.monotonic()
    work = functools.partial(_work, seed=chosen.seed, folders=chosen.folders, limit=not chosen.no_limit)
    done = workers.run(work, range(chosen.first, chosen.first + chosen.count), functools.partial(_died, chosen.seed), chosen.jobs)
    for outcome, count in sorted(Counter(a.outcome for a in done).items()):
        print(f"{count:7} {outcome}")
    problems = [a for a in done if a.problem]
    slowest = max(done, key=lambda a: a.seconds)
    print(f"{len(done)} models, {len(problems)} problems, {time.monotonic() - start:.0f} s, "
          f"the slowest {slowest.seconds:.1f} s (--only {slowest.number}), peak {max(a.peak for a in done) >> 20} MiB")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
