"""The options of a build, shared by the commands that build."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

SET = click.option("--set", multiple=True, metavar="INPUT=VALUE",
                   help="Give an input a value, such as sr=16000 or scales=[1,2]; repeatable.")
GROUP = click.option("--group", type=int, help="Weights that share a scale: 32, 64 or 128; default: 32 of int4, 64 of a language "
                     "model's int8, else a column.")
CALIBRATION = (
    click.option("--calibration", metavar="FILE", help="Data for quantisation: .txt, .jsonl, .csv (FILE:COLUMN), .parquet, .npz, a "
                 "folder of photos or recordings; a record of infc calibrate; or synthetic."),
    click.option("--calibration-samples", type=int, metavar="N", help="How many of it; default: 256."),
    click.option("--calibration-seed", type=int, metavar="N", help="Which of it; default: 0."),
)
QUANTISATION = (
    click.option("--precision", multiple=True, metavar="P", help="f32 (default), f16, bf16, int8, int8-static, fp8, int4, auto; "
                 "by target: cpu=f32,tensorrt-rtx=f16."),
    *CALIBRATION,
    click.option("--calibration-method", metavar="M", help="Ranges by min-max (default), percentile[:99.99], entropy or mse."),
    click.option("--method", metavar="M+M", help="How weights are rounded: rtn, gptq, awq, smoothquant, bias, joined by +."),
    GROUP,
    click.option("--evaluation", metavar="FILE", help="Data to judge by; default: some that is held out of the calibration's."),
    click.option("--evaluation-samples", type=int, metavar="N", help="How many of it at most; default: 256."),
    click.option("--metric", metavar="M", help="cosine (default), max-abs, top1, perplexity, or a Python file: score(expected, "
                 "got, inputs)."),
    click.option("--slices", metavar="COLUMN", help="Column that divides the data: the worst part is told beside the mean."),
    click.option("--budget", metavar="X", help="Layers go back to higher precision until the metric reaches this: 0.9985."),
)

_OPTIONS = (
    click.option("--profile", multiple=True, metavar="SIZES", help="Sizes of dimensions, such as batch=1,seq=128; repeatable."),
    SET,
    click.option("--target", multiple=True, metavar="TARGET,…", help="cpu (default), tensorrt-rtx, tensorrt: all in one artifact."),
    *QUANTISATION,
    click.option("--watch-ranges", is_flag=True, help="Count activations beyond the ranges of calibration: see infc drift."),
    click.option("--watch-every", type=int, metavar="N", help="In one of so many runs; default: 256."),
    click.option("--isa", multiple=True, metavar="ISA,…", help="native (default), x86-64-v4, x86-64-v3, scalar: a program each."),
    click.option("--threads", type=click.IntRange(1, 1024), help="Threads to tune for; default: the CPUs this process may use."),
    click.option("--sm", multiple=True, metavar="SM,…", help="GPUs to build engines for: 86,89,120; default: this machine's."),
    click.option("--engine-layout", type=click.Choice(["one", "each"]), help="One engine for all profiles (default), or one each."),
    click.option("--ranges", type=click.Path(path_type=Path), metavar="FILE",
                 help='JSON {"value": [min, max]}: least and largest values, for int8 and fp8.'),
    click.option("--sparsity", metavar="2:4", help="Use weights that hold this pattern; on the CPU of bf16, int8 and int4."),
    click.option("--sparsity-method", metavar="M", help="Give other weights the pattern, by magnitude, wanda or sparsegpt."),
    click.option("--force", is_flag=True, help="Skip the zeros of 2:4 weights on the CPU, though it be slower."),
    click.option("--engine-timeout", metavar="SECONDS", help="Stop building an engine after this time; default: 3600."),
    click.option("--engine-memory", metavar="SIZE", help="Memory that building an engine may take, such as 8G; default: no bound."),
    click.option("--no-tune", is_flag=True, help="Take the cost model's choices instead of measuring."),
    click.option("--timing-cache", type=click.Path(path_type=Path), help="File of measured tactics; default: in the user's cache."),
    click.option("--disable", multiple=True, metavar="PASS,…", help="Leave out these passes or techniques."),
    click.option("--only", multiple=True, metavar="PASS,…", help="Run these passes and no others."),
    click.option("--context", type=int, metavar="TOKENS",
                 help="Most tokens of a sequence, of a language model; default: the model's, up to 4096."),
    click.option("--kv-cache", metavar="TYPE",
                 help="Cached keys and values as f32, bf16, int8 or fp8; default: bf16, of models in f32 or f16 f32."),
    click.option("--memory-limit", metavar="SIZE",
                 help="Refuse a language model whose weights, cache and activations take more: 2G."),
    click.option("--revision", help="Revision of a model on the hub."),
    click.option("--trust-remote-code", is_flag=True, help="Allow Python code that the model's directory brings."),
)


def build_flags(command: F) -> F:
    """The options that decide what is built; ``build_options`` reads them."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def build_options(given: dict[str, Any]) -> dict[str, Any]:
    """What the driver takes, without what was not given. Raises UsageError for values that no build takes."""
    from infc.compiler.options import BuildOptions

    names = {"profile": "profiles", "target": "targets", "sm": "sms"}
    options = {names.get(name, name): value for name, value in given.items()
               if value is not None and value is not False and value != ()}
    if options.pop("no_tune", False):
        options["tune"] = False
    BuildOptions.of(options)
    return options
