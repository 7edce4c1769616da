"""``infc report``: a page about an artifact, and the same as JSON."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click
import numpy as np

from infc.compiler.cli import inputs
from infc.compiler.cli.console import common_options, emit, say, size
from infc.compiler.cli.engines import opened

if TYPE_CHECKING:
    from infc.compiler.artifact.reader import Artifact
    from infc.compiler.inspection.facts import Measured
    from infc.runtime import Context

_WARM_RUNS = 3
_MATRIX = 1024  # rows and columns of the probe's product
_READ = 1 << 27  # bytes that the probe reads: more than caches hold
_TRIES = 5
_ROUNDS = 10


@click.command()
@click.argument("engine", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Page to write; default: the artifact's name with .html.")
@click.option("--runs", default=50, show_default=True, type=click.IntRange(0), help="Timed runs; 0: measure nothing.")
@click.option("--seconds", default=20.0, show_default=True, type=click.FloatRange(min=0, min_open=True),
              help="Time for them at most.")
@click.option("--threads", type=click.IntRange(1, 1024), help="Default: what affinity and cgroup quota allow.")
@click.option("--isa", help="Run the programs of this instruction set.")
@click.option("--dims", help="Sizes in use, such as seq=77; default: the largest profile.")
@common_options
def command(engine: Path, output: Path | None, runs: int, seconds: float, threads: int | None, isa: str | None, dims: str | None,
            as_json: bool) -> None:
    """Write a page about ENGINE: precision asked for and actual, sparsity, error and time by layer, accuracy, size, memory, passes.

    Times by layer and the roofline's limits are measured here and now, on the CPU; all else is what the build wrote. The page is
    one file and loads nothing. With --json the facts go to stdout instead, and to a page only with -o.
    """
    from infc.compiler.artifact.reader import Artifact
    from infc.compiler.inspection import facts, page
    from infc.compiler.output import check_file, written

    path = output or (None if as_json else engine.with_suffix(".html"))
    if path is not None:
        check_file(path, [engine])
    artifact = Artifact.open(engine)
    measured, why = _measured(artifact, engine, runs, seconds, threads, isa, dims)
    found = facts.collect(artifact, engine.name, measured, why)
    if path is not None:
        with facts.readable(engine.name):
            text = page.render(found)
        with written(path) as aside:
            aside.write_text(text, encoding="utf-8", errors="replace")
        say(f"{path}: {size(len(text.encode(errors='replace')))}") if as_json else click.echo(path)
    if as_json:
        emit(found)


def _measured(artifact: Artifact, path: Path, runs: int, seconds: float, threads: int | None, isa: str | None, dims: str | None
              ) -> tuple[Measured | None, str]:
    """What was measured, or why nothing was."""
    import infc
    from infc.compiler.artifact.layout import ISAS
    from infc.compiler.inspection import work
    from infc.compiler.inspection.facts import Measured

    if not runs:
        return None, "not asked for"
    programs = artifact.programs()
    if not programs:
        return None, "the artifact has no program for a CPU, and a GPU's run is one launch of a graph"
    sizes = inputs.sizes(artifact.io, dims)
    engine = opened(path, threads, isa, "cpu")
    context = engine.context()
    context.bind(inputs.made_up(artifact.io, sizes))
    for _ in range(_WARM_RUNS):
        context.run()
    rounds = _rounds(context, runs, seconds)
    profile = next(n for n, p in enumerate(artifact.io.profiles) if all(p[d] >= s for d, s in sizes.items()))
    program = next(p for p in programs if p.profile == profile and p.isa == ISAS[engine.isa])
    label = f"{','.join(f'{n}={s}' for n, s in artifact.io.profiles[profile].items())}/{engine.isa}"
    steps = [{"layer": s.name, "kernel": s.kernel, "seconds": float(np.median(times))}
             for s, times in zip(context.step_times(), zip(*rounds, strict=True), strict=True)]
    operators = {name: op for name, op, _ in infc.runtime.kernels()}
    return Measured(label, engine.threads, len(rounds), steps, work.of(program, operators), peak(), bandwidth(engine.threads)), ""


def _rounds(context: Context, runs: int, seconds: float) -> list[list[float]]:
    """Seconds a run of each step, in several rounds: other processes disturb some of them."""
    end, found = time.monotonic() + seconds, []
    count = -(-runs // min(runs, _ROUNDS))
    for _ in range(min(runs, _ROUNDS)):
        context.set_timing(True)
        for _ in range(count):
            context.run()
        found.append([s.seconds / count for s in context.step_times()])
        if time.monotonic() > end:
            break
    return found


def peak() -> float:
    """Operations a second of numpy's product of matrices in f32."""
    a = np.random.default_rng(0).standard_normal((_MATRIX, _MATRIX), dtype=np.float32)
    b = a.T.copy()
    return 2 * _MATRIX**3 / min(_seconds(lambda: np.matmul(a, b)) for _ in range(_TRIES))


def bandwidth(threads: int) -> float:
    """Bytes a second that so many threads read from memory together."""
    parts = np.array_split(np.ones(_READ // 8, np.int64), threads)

    def read() -> None:
        workers = [threading.Thread(target=part.max) for part in parts]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()

    return _READ / min(_seconds(read) for _ in range(_TRIES))


def _seconds(call: object) -> float:
    assert callable(call)
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
