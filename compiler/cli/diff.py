"""``infc diff``: where two engines, or an engine and its model, part."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from infc.compiler.cli import inputs
from infc.compiler.cli.console import common_options, emit, say, table
from infc.compiler.errors import CheckError, UsageError

if TYPE_CHECKING:
    import onnx_ir as ir

    from infc.compiler.artifact.reader import Artifact
    from infc.compiler.inspection.diff import Row, Values
    from infc.compiler.reference import Comparison

_SUFFIX = ".infc"


@click.command()
@click.argument("engine", type=click.Path(path_type=Path))
@click.argument("other")
@click.option("--isa", help="Run the programs of this instruction set.")
@click.option("--dims", help="Sizes in use, such as seq=77; default: the golden inputs, or the largest profile.")
@click.option("--input", "file", type=click.Path(path_type=Path), metavar="FILE", help="Inputs: .npz, .json, a photo or a "
              "recording; default: those that the artifact carries.")
@click.option("--trust-remote-code", is_flag=True, help="Allow Python code that the model's directory brings.")
@common_options
def command(engine: Path, other: str, isa: str | None, dims: str | None, file: Path | None, trust_remote_code: bool,
            as_json: bool) -> int:
    """Hold ENGINE against OTHER, layer by layer on the same inputs: another artifact, or the model that it was built from.

    Names the first layer whose error is beyond what its precision explains, and exits with 1 if there is one. Runs on the CPU.
    Against a model each layer is fed what the engine fed it, and ONNX Runtime computes what it should make of it in float32; the
    model's own outputs come from what ENGINE's build took them from.
    """
    from infc.compiler.artifact.reader import Artifact
    from infc.compiler.inspection import diff

    artifact = Artifact.open(engine)
    arrays = _inputs(artifact, dims, file)
    ours, outputs = _values(engine, isa, arrays)
    if other.endswith(_SUFFIX):
        second = Artifact.open(other)
        theirs, wanted = _values(Path(other), isa, arrays)
        program = _program(artifact, arrays, isa)
        rows = diff.against_engine(ours, theirs, program, precisions(artifact), precisions(second))
        against, ends = other, _ends(artifact, outputs, wanted, arrays)
    else:
        graph, reference, prepare, against = _model(artifact, other, trust_remote_code)
        rows = diff.against_graph(ours, graph, arrays, precisions(artifact), prepare, _balanced(artifact))
        ends = _ends(artifact, outputs, reference(arrays), arrays)
    found = diff.first(rows)
    if as_json:
        emit({"engine": str(engine), "against": against, "first": found.layer if found else None,
              "layers": [{**vars(row), "diverges": row.diverges} for row in rows],
              "outputs": [{"output": e.output, "difference": e.difference, "accepted": e.tolerance} for e in ends]})
    else:
        _show(rows, ends, against, found)
    return CheckError.exit_code if found else 0


def precisions(artifact: Artifact) -> dict[str, str]:
    """Of the layers that are quantised on the CPU."""
    from infc.compiler.inspection import facts

    with facts.readable("META"):
        layers = artifact.meta.get("quantisation", {}).get("cpu", {}).get("layers", [])
        return {str(layer["node"]): str(layer["actual"]) for layer in layers}


def _balanced(artifact: Artifact) -> bool:
    """Whether a layer was quantised by a method that moves factors between layers."""
    layers = artifact.meta.get("quantisation", {}).get("cpu", {}).get("layers", [])
    return any(name in str(layer.get("method", "")) for layer in layers for name in ("smoothquant", "awq"))


def _inputs(artifact: Artifact, dims: str | None, file: Path | None) -> inputs.Arrays:
    """Of a file, of the artifact's own golden cases, or made up."""
    from infc.compiler import golden

    if file is not None:
        return inputs.read(file, artifact)[0]
    cases = golden.read(artifact) if dims is None else []
    return dict(cases[0].inputs) if cases else inputs.made_up(artifact.io, inputs.sizes(artifact.io, dims))


def _values(path: Path, isa: str | None, arrays: inputs.Arrays) -> tuple[Values, inputs.Arrays]:
    """What the layers of an engine make of the inputs, and its outputs."""
    import infc
    from infc.compiler.inspection import diff

    context = infc.Engine(path, threads=1, isa=isa, device="cpu").context()
    context.bind(arrays)
    return diff.written(context.trace()), dict(context.outputs)


def _program(artifact: Artifact, arrays: inputs.Arrays, isa: str | None) -> Any:
    """The program that runs: of the smallest profile that takes the inputs, and the best instruction set that is here."""
    import infc
    from infc.compiler.artifact.layout import ISAS

    sizes = {d: n for t in artifact.io.inputs if t.name in arrays for d, n in zip(t.dims, arrays[t.name].shape, strict=True)}
    profile = next(i for i, p in enumerate(artifact.io.profiles) if all(p.get(d, n) >= n for d, n in sizes.items() if d in p))
    best = ISAS[isa or infc.runtime.cpu_isa()]
    return max((p for p in artifact.programs() if p.profile == profile and p.isa <= best), key=lambda p: p.isa)


def _model(artifact: Artifact, model: str, trust: bool) -> tuple[ir.Model, Any, Any, str]:
    """The graph that the CPU's program was made of, what computes the model's outputs, what makes the graph run in ONNX Runtime,
    and what to call it."""
    from infc.compiler import lowering
    from infc.compiler.export import export
    from infc.compiler.fixed import fix
    from infc.compiler.options import BuildOptions
    from infc.compiler.source import resolve
    from infc.compiler.target import find

    source = resolve(model, trust_remote_code=trust)
    built, options = artifact.meta.get("source", {}).get("sha256"), artifact.meta.get("options", {})
    if built != source.hash:
        raise UsageError("E0038", f"the artifact was built from another model ({str(built)[:12]}, not {source.hash[:12]})",
                         where=model, hint="infc inspect shows what an artifact was built from")
    exported = fix(export(source, verify=False), options.get("set", {}))
    taken = {key: options[key] for key in ("disable", "only") if options.get(key)}
    plugin = find("cpu")
    lowered = lowering.lower(exported, BuildOptions.of(taken | {"targets": ["cpu"]}), [plugin])
    return lowered.graphs[plugin.name], exported.reference, lowering.add_functions, f"{model} in {exported.engine}"


def _ends(artifact: Artifact, got: Mapping[str, Any], want: Mapping[str, Any], arrays: inputs.Arrays) -> list[Comparison]:
    from infc.compiler import golden
    from infc.compiler.reference import compare

    return compare(got, want, arrays, golden.interface_of(artifact))


def _show(rows: list[Row], ends: list[Comparison], against: str, found: Row | None) -> None:
    table((">", "layer", "precision", ">error", ">its own", ">explained", ""),
          [(n, row.layer, row.precision, f"{row.error:.2e}", "" if row.own is None else f"{row.own:.2e}", f"{row.explained:.0e}",
            "DIVERGES" if row.diverges else "") for n, row in enumerate(rows, 1)], f"against {against}")
    for end in ends:
        say(f"output {end.output}: {end.note or f'largest difference {end.difference:.3g}'}")
    click.echo(f"the first layer that diverges: {found.layer}" if found else "no layer diverges beyond what its precision explains")
