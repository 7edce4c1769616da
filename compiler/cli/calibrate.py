"""``infc calibrate``: what a model makes of data, kept in a record."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from infc.compiler.cli.console import Progress, common_options, emit, say, size
from infc.compiler.cli.flags import CALIBRATION, build_options
from infc.compiler.errors import UsageError

if TYPE_CHECKING:
    from infc.compiler.calibrate.record import Record


@click.command()
@click.argument("model")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Record to write; default: the model's name with .npz.")
@click.option("--profile", multiple=True, metavar="SIZES", help="Sizes as in infc build: texts are cut to the largest.")
@click.option("--target", multiple=True, metavar="TARGET,…", help="Whose graphs: cpu (default), tensorrt-rtx, tensorrt.")
@click.option("--grams", is_flag=True, help="Keep the Gram matrix of each product's input, which gptq needs: large.")
@click.option("--disable", multiple=True, metavar="PASS,…", help="Leave out these passes.")
@click.option("--only", multiple=True, metavar="PASS,…", help="Run these passes and no others.")
@click.option("--revision", help="Revision of a model on the hub.")
@click.option("--trust-remote-code", is_flag=True, help="Allow Python code that the model's directory brings.")
@common_options
def command(model: str, output: Path | None, grams: bool, as_json: bool, **given: Any) -> None:
    """Run MODEL on data and keep what was seen of its values, for infc build --calibration RECORD."""
    options = build_options(given)
    if "calibration" not in options:
        raise UsageError("E0003", "Missing option '--calibration'.", where="infc calibrate", hint="give --calibration FILE")
    from infc.compiler import driver  # after the options are known to be good: it imports much

    with Progress() as progress:
        record, path = driver.calibrate(model, output, grams=grams, progress=progress.event, **options)
    if as_json:
        emit({"path": str(path), "key": record.key.digest(), "data": dict(record.key.data), "values": _values(record)})
        return
    for pipeline, values in record.values.items():
        say(f"{pipeline}: {len(values)} values, {len(record.grams.get(pipeline, {}))} Gram matrices")
        invalid = [name for name, seen in values.items() if seen.invalid]
        if invalid:
            say(f"{pipeline}: NaN or infinity in {', '.join(invalid[:5])}")
    click.echo(f"{path}: {size(path.stat().st_size)}")


def _values(record: Record) -> dict[str, dict[str, dict[str, Any]]]:
    return {pipeline: {name: {"count": seen.count, "invalid": seen.invalid, "range": [seen.minimum, seen.maximum]}
                       for name, seen in values.items()} for pipeline, values in record.values.items()}


for _option in CALIBRATION:
    command = _option(command)
