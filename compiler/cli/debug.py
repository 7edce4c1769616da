"""``infc debug``: commands that find out what is wrong."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from infc.compiler.cli.console import Progress, common_options, emit, say, size, table
from infc.compiler.cli.flags import build_flags, build_options

if TYPE_CHECKING:
    import onnx_ir as ir

    from infc.compiler.reduce import Reduced

_COLUMNS = ("node", "operator", "inputs", "outputs")
_OF_THE_MODEL = ("profile", "revision", "trust_remote_code")  # options that say nothing to a part with constant sizes


@click.group()
def command() -> None:
    """Find out what is wrong."""


@command.command("reduce")
@click.argument("model")
@click.option("-o", "--output", type=click.Path(path_type=Path), default=Path("reduced.onnx"), show_default=True,
              help="File to write.")
@click.option("--time", "seconds", type=click.FloatRange(1), default=600.0, show_default=True, metavar="SECONDS",
              help="Stop after this time, with the smallest part found.")
@build_flags
@common_options
def reduce_command(model: str, output: Path, seconds: float, as_json: bool, **given: Any) -> None:
    """Cut MODEL, which a target refuses, down to the smallest part that it still refuses for the same reason.

    The options are those of `infc build`. The part goes into a file of its own, with weights, and constant sizes.
    """
    from infc.compiler.save import save_model

    options = build_options(given)
    with Progress() as stage:
        found = _reduce(model, output, seconds, options, stage)
        stage("write")
        weights = save_model(found.model, output)
    again = shlex.join(["infc", "build", str(output), *_words(given)])
    rows = list(_rows(found.model))
    if as_json:
        emit({"path": str(output), "nodes": [dict(zip(_COLUMNS, row, strict=True)) for row in rows], "weights": weights,
              "error": {"code": found.error.code, "message": found.error.message, "where": found.error.where},
              "attempts": found.attempts, "complete": found.complete, "command": again})
        return
    say(str(found.error))
    if not found.complete:
        say(f"stopped after {seconds:g} s: a smaller part may fail too; give it more with --time")
    table(_COLUMNS, rows)
    click.echo(f"{output}: {len(rows)} nodes, {size(weights)} of weights\n{again}")


def _reduce(model: str, output: Path, seconds: float, given: dict[str, Any], stage: Progress) -> Reduced:
    from infc.compiler import fixed, reduce
    from infc.compiler.export import export
    from infc.compiler.options import BuildOptions
    from infc.compiler.save import check_model
    from infc.compiler.source import resolve

    options = BuildOptions.of(given)
    stage("export")
    source = resolve(model, revision=options.revision, trust_remote_code=options.trust_remote_code)
    check_model(output, source)
    exported = fixed.fix(export(source, verify=False), options.set)
    stage("reduce")
    return reduce.reduce(exported, options, seconds)


def _rows(model: ir.Model) -> Iterator[tuple[str, str, str, str]]:
    for node in model.graph:
        yield (node.name or "", f"{node.domain}::{node.op_type}".removeprefix("::"), _values(node.inputs), _values(node.outputs))


def _values(values: Sequence[ir.Value | None]) -> str:
    return " ".join(f"{v.name}:{'×'.join(map(str, v.shape)) if v.shape is not None else '?'}" for v in values if v is not None)


def _words(given: dict[str, Any]) -> Iterator[str]:
    """The options of the command line that matter to the part, as they were given."""
    for option in click.get_current_context().command.params:
        value = given.get(option.name or "")
        if not isinstance(option, click.Option) or option.name in _OF_THE_MODEL or value in (None, (), False):
            continue
        if option.is_flag:
            yield option.opts[0]
        else:
            for item in value if isinstance(value, tuple) else (value,):
                yield from (option.opts[0], str(item))
