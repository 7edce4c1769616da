"""``infc export``: a model as an ONNX file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from infc.compiler.cli.console import Progress, common_options, emit, size
from infc.compiler.cli.flags import QUANTISATION, SET, build_options
from infc.compiler.errors import UsageError

if TYPE_CHECKING:
    from infc.compiler.export import Exported

STAGES = ("exported", "optimized", "quantized")


@click.command()
@click.argument("model")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="File to write; default: the model's name with .onnx.")
@click.option("--stage", type=click.Choice(STAGES), help="exported (default); optimized: after the graph passes; quantized: and in "
              "the --precision asked for. Fused operators carry ONNX bodies and run anywhere.")
@click.option("--optimized", is_flag=True, help="The same as --stage optimized.")
@click.option("--target", help="Whose passes: cpu (default), tensorrt-rtx, tensorrt.")
@click.option("--profile", multiple=True, metavar="SIZES", help="Sizes as in infc build: texts are cut to the largest.")
@SET
@click.option("--disable", multiple=True, metavar="PASS,…", help="Leave out these passes.")
@click.option("--only", multiple=True, metavar="PASS,…", help="Run these passes and no others.")
@click.option("--revision", help="Revision of a model on the hub.")
@click.option("--trust-remote-code", is_flag=True, help="Allow Python code that the model's directory brings.")
@common_options
def command(model: str, output: Path | None, stage: str | None, optimized: bool, revision: str | None, trust_remote_code: bool,
            as_json: bool, **choice: Any) -> None:
    """Write MODEL as ONNX, checked against the model. Weights of more than 1 GiB go to a file beside it."""
    stage = stage or ("optimized" if optimized else "exported")
    if stage == "exported" and any(choice[name] for name in ("disable", "only", "target")):
        raise UsageError("E0039", "--target, --disable and --only choose among passes, and none run", where="infc export",
                         hint="add --optimized")
    if stage == "quantized" and not choice["precision"]:
        raise UsageError("E0039", "a quantised graph is asked for without a precision", where="infc export --stage quantized",
                         hint="add --precision int8 --calibration FILE")
    given = build_options({**choice, "target": choice["target"] or "cpu"})
    from infc.compiler import driver, lowering
    from infc.compiler.export import export
    from infc.compiler.fixed import fix
    from infc.compiler.options import BuildOptions
    from infc.compiler.save import check_model, save_model
    from infc.compiler.source import resolve

    options = BuildOptions.of(given)
    pipeline = driver.one_pipeline(options)

    with Progress() as progress:
        progress("export")
        source = resolve(model, revision=revision, trust_remote_code=trust_remote_code)
        path = output or Path(f"{source.stem}.onnx")
        check_model(path, source)
        exported = fix(export(source), options.set)
        if stage == "optimized":
            progress("passes")
            lowering.optimise(exported, options, pipeline)
        elif stage == "quantized":
            exported = driver.quantised(source, exported, options, progress.event)
        if stage != "exported":
            lowering.add_functions(exported.model)
        progress("write")
        weights = save_model(exported.model, path)
    _tell(path, exported, weights, as_json)


def _tell(path: Path, exported: Exported, weights: int, as_json: bool) -> None:
    if as_json:
        emit({"path": str(path), "inputs": [t.name for t in exported.interface.inputs], "weights": weights,
              "outputs": [t.name for t in exported.interface.outputs], "nodes": exported.model.graph.num_nodes()})
    else:
        click.echo(f"{path}: {exported.model.graph.num_nodes()} nodes, {size(weights)} of weights")


for _option in QUANTISATION:
    command = _option(command)
