"""``infc build``: a model into an artifact."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from infc.compiler.cli.console import Progress, common_options, emit, say


@click.command()
@click.argument("model")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Artifact to write; default: the model's name with .infc.")
@click.option("--profile", multiple=True, metavar="SIZES", help="Sizes of dimensions, such as batch=1,seq=128; repeatable.")
@click.option("--isa", multiple=True, metavar="ISA,…", help="native (default), x86-64-v4, x86-64-v3, scalar: a program each.")
@click.option("--target", help="What to build for; default: cpu.")
@click.option("--threads", type=click.IntRange(1, 1024), help="Threads to tune for; default: the CPUs this process may use.")
@click.option("--no-tune", is_flag=True, help="Take the cost model's choices instead of measuring.")
@click.option("--timing-cache", type=click.Path(path_type=Path), help="File of measured tactics; default: in the user's cache.")
@click.option("--disable", multiple=True, metavar="PASS,…", help="Leave out these passes or techniques.")
@click.option("--only", multiple=True, metavar="PASS,…", help="Run these passes and no others.")
@click.option("--check-passes", is_flag=True, help="Hold the graph before and after each pass against each other in ONNX Runtime.")
@click.option("--dump-graphs", type=click.Path(path_type=Path), metavar="DIR", help="Write the graph after each pass to DIR.")
@click.option("--revision", help="Revision of a model on the hub.")
@click.option("--trust-remote-code", is_flag=True, help="Allow Python code that the model's directory brings.")
@click.option("--report", type=click.Path(path_type=Path), help="Write all figures of the build to this JSON file.")
@common_options
def command(model: str, output: Path | None, no_tune: bool, as_json: bool, **given: Any) -> None:
    """Compile MODEL: a Hugging Face directory or hub id, an .onnx file, or pkg:NAME/path."""
    options = build_options(given)
    from infc.compiler import driver  # after the options are known to be good: it imports much

    with Progress() as progress:
        result = driver.build(model, output, progress=progress.event, tune=not no_tune, **options)
    if as_json:
        emit({"path": str(result.path), **result.report})
        return
    for line in result.summary():
        say(line)
    click.echo(result.path)


def build_options(given: dict[str, Any]) -> dict[str, Any]:
    """What the driver takes, without what was not given. Raises UsageError for values that no build takes."""
    from infc.compiler.options import BuildOptions

    options = {"profiles" if name == "profile" else name: value for name, value in given.items() if value not in (None, (), False)}
    BuildOptions.of(options)
    return options
