"""``infc build``: a model into an artifact."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from infc.compiler.cli.console import Progress, common_options, emit, say
from infc.compiler.cli.flags import build_flags, build_options


@click.command()
@click.argument("model")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Artifact to write; default: the model's name with .infc.")
@build_flags
@click.option("--check-passes", is_flag=True, help="Hold the graph before and after each pass against each other in ONNX Runtime.")
@click.option("--dump-graphs", type=click.Path(path_type=Path), metavar="DIR", help="Write the graph after each pass to DIR.")
@click.option("--report", type=click.Path(path_type=Path), help="Write all figures of the build to this JSON file.")
@common_options
def command(model: str, output: Path | None, as_json: bool, **given: Any) -> None:
    """Compile MODEL: a Hugging Face directory or hub id, an .onnx file, or pkg:NAME/path."""
    options = build_options(given)
    from infc.compiler import driver  # after the options are known to be good: it imports much

    with Progress() as progress:
        result = driver.build(model, output, progress=progress.event, **options)
    if as_json:
        emit({"path": str(result.path), **result.report})
        return
    for line in result.summary():
        say(line)
    click.echo(result.path)
