"""``infc drift``: does an engine meet what it was calibrated for?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from infc.compiler.cli import inputs
from infc.compiler.cli.console import common_options, emit, table
from infc.compiler.errors import CheckError, UsageError

if TYPE_CHECKING:
    from infc.runtime import Drift


@click.command()
@click.argument("engine", type=click.Path(path_type=Path))
@click.option("--data", required=True, metavar="FILE", help="What it meets now: .txt, .jsonl, .csv (FILE:COLUMN), .parquet, .npz, "
              "a folder of photos or recordings.")
@click.option("--samples", default=256, show_default=True, type=click.IntRange(1), metavar="N", help="How many of it at most.")
@click.option("--seed", default=0, show_default=True, metavar="N", help="Which of it.")
@click.option("--threshold", default=0.001, show_default=True, type=click.FloatRange(0, 1), metavar="X",
              help="Part of a layer's activations that may lie beyond, over twice that of calibration.")
@click.option("--threads", type=click.IntRange(1, 1024), help="Default: what affinity and cgroup quota allow.")
@click.option("--isa", help="Run the programs of this instruction set.")
@common_options
def command(engine: Path, data: str, samples: int, seed: int, threshold: float, threads: int | None, isa: str | None,
            as_json: bool) -> int:
    """Run ENGINE, built with --watch-ranges, on data, and tell by layer how much lies beyond the ranges of its calibration.

    Exits with 1 if a layer has drifted: then calibrate again on data such as this. Programs that embed an engine read the same
    counts with infc_context_drift or Engine.drift().
    """
    from infc.compiler.artifact.reader import Artifact
    from infc.compiler.inspection import drift

    artifact = Artifact.open(engine)
    if not any(s.kind == "WATCH" for s in artifact.sections):
        raise UsageError("E0824", "the artifact does not watch its ranges", where=str(engine),
                         hint="build it with --watch-ranges and --calibration FILE")
    found, used = drift.measure(engine, artifact, inputs.carried(artifact), data, samples, seed, threads, isa)
    drifted = [layer for layer in found if layer.drifted(threshold)]
    if as_json:
        emit({"engine": str(engine), "samples": used, "threshold": threshold, "drifted": [layer.layer for layer in drifted],
              "layers": [{**layer._asdict(), "share": layer.share, "drifted": layer.drifted(threshold)} for layer in found]})
    else:
        _show(found, threshold)
        click.echo(f"{len(drifted)} of {len(found)} layers have drifted on {used} samples: calibrate again on data such as this"
                   if drifted else f"no layer of {len(found)} has drifted on {used} samples")
    return CheckError.exit_code if drifted else 0


def _show(found: list[Drift], threshold: float) -> None:
    table(("layer", ">range", ">met", ">beyond", ">in calibration", ""),
          [(d.layer, f"{d.low:.4g} to {d.high:.4g}", f"{d.least:.4g} to {d.greatest:.4g}" if d.beyond else "", f"{d.share:.3%}",
            f"{d.expected:.3%}", "DRIFTED" if d.drifted(threshold) else "") for d in sorted(found, key=lambda d: -d.share)])
