"""``infc compare``: a new artifact against an old one of the same model."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from infc.compiler.cli import inputs
from infc.compiler.cli.bench import Setting
from infc.compiler.cli.console import common_options, emit, say, table
from infc.compiler.cli.engines import DEVICE, opened
from infc.compiler.cli.measure import alternate
from infc.compiler.errors import CheckError, UsageError

if TYPE_CHECKING:
    from infc.compiler.artifact.reader import Artifact
    from infc.compiler.inspection.compare import Side

_ROUNDS = 20  # bursts of each, in pairs


@click.command()
@click.argument("old", type=click.Path(path_type=Path))
@click.argument("new", type=click.Path(path_type=Path))
@click.option("--gate", is_flag=True, help="Exit with 1 if anything got worse.")
@click.option("--accuracy", default=0.0005, show_default=True, type=click.FloatRange(0), help="How much less is accepted.")
@click.option("--size", default=0.01, show_default=True, type=click.FloatRange(0), help="Part by which file and arena may grow.")
@click.option("--latency", default=0.03, show_default=True, type=click.FloatRange(0), help="Part by which a run may take longer: "
              "the whole 95 % interval must lie beyond.")
@click.option("--runs", default=300, show_default=True, type=click.IntRange(0), help="Timed runs of each; 0: none.")
@click.option("--seconds", default=60.0, show_default=True, type=click.FloatRange(min=0, min_open=True),
              help="Time for each at most.")
@click.option("--threads", type=click.IntRange(1, 1024), help="Default: what affinity and cgroup quota allow.")
@click.option("--isa", help="Run the programs of this instruction set.")
@DEVICE
@click.option("--dims", help="Sizes in use, such as seq=77; default: OLD's largest profile.")
@click.option("--markdown", metavar="FILE", help="Write the result for a pull request; - for stdout.")
@common_options
def command(old: Path, new: Path, gate: bool, accuracy: float, size: float, latency: float, runs: int, seconds: float,
            threads: int | None, isa: str | None, device: str | None, dims: str | None, markdown: str | None, as_json: bool) -> int:
    """Hold NEW against OLD: accuracy, precision and kernels by layer, size, memory and latency.

    Accuracy is what the builds measured on held-out data, and the cosine with OLD's golden values, run now. Latency is measured in
    bursts by turns; its ratio has a bootstrap interval over pairs of bursts.
    """
    from infc.compiler.artifact.reader import Artifact
    from infc.compiler.inspection import compare, facts
    from infc.compiler.output import check_file, written

    if markdown and markdown != "-":
        check_file(Path(markdown), [old, new], "--markdown")
    artifacts = [Artifact.open(path) for path in (old, new)]
    if artifacts[0].io.inputs != artifacts[1].io.inputs:
        raise UsageError("E0056", "the two take other inputs, so they are of two models", where=f"{old}, {new}",
                         hint="infc inspect shows the inputs; compare artifacts of one model")
    times = _times((old, new), artifacts[0], runs, seconds, threads, isa, device, dims)
    sides = [_side(path, artifact, artifacts[0], measured, isa, device)
             for path, artifact, measured in zip((old, new), artifacts, times, strict=True)]
    with facts.readable(f"{old}, {new}"):
        findings = compare.compare(sides[0], sides[1], compare.Thresholds(accuracy, size, latency), _ROUNDS)
    worse = [f for f in findings if f.worse]
    text = compare.markdown(findings, old.name, new.name)
    if markdown and markdown != "-":
        with written(Path(markdown), "--markdown") as aside:
            aside.write_text(text, encoding="utf-8")
    if as_json:
        emit({"old": str(old), "new": str(new), "worse": len(worse), "findings": findings})
    elif markdown == "-":
        click.echo(text, nl=False)
    else:
        table(("", "", "old", "new", ""), [(f.kind, f.what, f.old, f.new, "WORSE" if f.worse else "") for f in findings])
        say(f"{len(worse)} worse" if worse else "nothing got worse")
    return CheckError.exit_code if gate and worse else 0


def _times(paths: tuple[Path, Path], first: Artifact, runs: int, seconds: float, threads: int | None, isa: str | None,
           device: str | None, dims: str | None) -> list[list[float]]:
    if not runs:
        return [[], []]
    arrays = inputs.made_up(first.io, inputs.sizes(first.io, dims))
    engine = opened(paths[0], threads, isa, device)
    with tempfile.TemporaryDirectory(prefix="infc-compare-") as folder:
        setting = Setting.create(folder, arrays, engine.threads, engine.device, seconds)
        workers = [setting.worker(label, "infc", engine=str(path), isa=isa, device=engine.device)
                   for label, path in zip(("old", "new"), paths, strict=True)]
        try:
            for worker, path in zip(workers, paths, strict=True):
                if not worker.head["ok"]:
                    raise CheckError("E0510", f"the engine does not run: {worker.head['error']}", where=str(path),
                                     hint="infc verify ENGINE")
            found = alternate(workers, runs, _ROUNDS, seconds)
        finally:
            for worker in workers:
                worker.close()
    return [found["old"], found["new"]]


def _side(path: Path, artifact: Artifact, golden: Artifact, times: list[float], isa: str | None, device: str | None) -> Side:
    from infc.compiler.inspection import facts
    from infc.compiler.inspection.compare import Side

    with facts.readable(str(path)):
        arena = max(facts.report_of(artifact).get("memory", {}).get("arena", {}).values(), default=0)
    return Side(artifact.meta, len(artifact.data), arena, _golden(path, golden, isa, device), times)


def _golden(path: Path, golden: Artifact, isa: str | None, device: str | None) -> float | None:
    """The least cosine of outputs with the golden values of ``golden``; None if there are none."""
    from infc.compiler import golden as cases
    from infc.compiler.reference import masked, numbers
    from infc.compiler.replay import cosine

    engine, interface = opened(path, None, isa, device), cases.interface_of(golden)
    found = []
    for case in cases.read(golden):
        got, want = (numbers(masked(o, case.inputs, interface), interface) for o in (engine.run(case.inputs), case.outputs))
        found += [cosine(got[name], want[name]) for name in want if want[name].dtype.kind == "f"]
    return min(found, default=None)
