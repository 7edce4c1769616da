"""``infc embed``: an artifact as an object file to link into a program."""

from __future__ import annotations

import re
from pathlib import Path

import click

from infc.compiler.cli.console import common_options, emit, say, size
from infc.compiler.errors import UsageError


@click.command()
@click.argument("engine", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Object file; default: ENGINE with the suffix .o.")
@click.option("--symbol", help="C name of the data; default: the name of ENGINE.")
@common_options
def command(engine: Path, output: Path | None, symbol: str | None, as_json: bool) -> None:
    """Turn ENGINE into an ELF object for x86-64 with the symbols NAME_start, NAME_end and NAME_size.

    \b
    extern const unsigned char model_start[];
    extern const unsigned long model_size;
    infc_engine_open_memory(model_start, model_size, NULL, &engine, why, sizeof why);
    """
    from infc.compiler.artifact.reader import Artifact
    from infc.compiler.cli import elf
    from infc.compiler.output import check_file, written

    target = output or engine.with_suffix(".o")
    check_file(target, [engine])
    Artifact.open(engine).verify()  # what is linked in should not turn out to be damaged in the field
    name = symbol or re.sub(r"\W", "_", engine.stem, flags=re.ASCII)
    if not re.fullmatch(r"[A-Za-z_]\w*", name, flags=re.ASCII):
        raise UsageError("E0037", f"'{name}' is not a C name", where="--symbol",
                         hint="letters, digits and _, not starting with a digit")
    data = engine.read_bytes()
    with written(target) as aside:
        elf.write(aside, data, name)
    if as_json:
        emit({"object": str(target), "bytes": len(data), "symbols": [f"{name}_start", f"{name}_end", f"{name}_size"]})
    else:
        say(f"{target}: {size(len(data))} as {name}_start, {name}_end, {name}_size")
