"""``infc sensitivity``: which layers suffer from lower precision."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from infc.compiler.cli.console import Progress, common_options, emit, table
from infc.compiler.cli.flags import CALIBRATION, GROUP, SET, build_options


@click.command()
@click.argument("model")
@click.option("--precision", default="int8", show_default=True, metavar="P", help="As in infc build: bf16, f16, int8, int8-static, "
              "fp8, int4.")
@click.option("--profile", multiple=True, metavar="SIZES", help="Sizes as in infc build: texts are cut to the largest.")
@click.option("--target", multiple=True, metavar="TARGET,…", help="Whose graphs: cpu (default), tensorrt-rtx, tensorrt.")
@click.option("--calibration-method", metavar="M", help="Ranges by min-max (default), percentile[:99.99], entropy or mse.")
@click.option("--method", metavar="M+M", help="How weights are rounded: rtn, gptq, awq, smoothquant, bias, joined by +.")
@GROUP
@click.option("--evaluation", type=click.Path(path_type=Path), metavar="FILE", help="Data to judge by; default: some that is held "
              "out of the calibration's.")
@SET
@click.option("--disable", multiple=True, metavar="PASS,…", help="Leave out these passes.")
@click.option("--revision", help="Revision of a model on the hub.")
@click.option("--trust-remote-code", is_flag=True, help="Allow Python code that the model's directory brings.")
@common_options
def command(model: str, as_json: bool, **given: Any) -> None:
    """Rank MODEL's layers by what quantising each alone costs: 1 - the mean cosine of the outputs with the float model's.

    Measured in ONNX Runtime on held-out data. The worst are what --budget restores first.
    """
    options = build_options(given)
    from infc.compiler import driver  # after the options are known to be good: it imports much

    with Progress() as progress:
        ranked = driver.sensitivity(model, progress=progress.event, **options)
    if as_json:
        emit({target: [{"layer": s.node, "loss": s.loss} for s in layers] for target, layers in ranked.items()})
        return
    for target, layers in ranked.items():
        table((">", "layer", ">loss"), [(n, s.node, f"{s.loss:.3g}") for n, s in enumerate(layers, 1)],
              target if len(ranked) > 1 else "")


for _option in reversed(CALIBRATION):
    command = _option(command)
