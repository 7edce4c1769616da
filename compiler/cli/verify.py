"""``infc verify``: is an artifact whole, and does it compute what its model does?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from infc.compiler.cli.console import common_options, emit, table
from infc.compiler.cli.engines import DEVICE, opened, place
from infc.compiler.errors import CheckError, UsageError

if TYPE_CHECKING:
    from infc.compiler.artifact.reader import Artifact
    from infc.compiler.reference import Comparison
    from infc.runtime import Engine

_INCOMPATIBLE = 5  # INFC_STATUS_INCOMPATIBLE

@click.command()
@click.argument("engine", type=click.Path(path_type=Path))
@click.argument("model", required=False)
@click.option("--reference", type=click.Choice(["pytorch", "onnxruntime"]),
              help="What runs MODEL; default: pytorch, for an .onnx file onnxruntime.")
@click.option("--threads", type=click.IntRange(1, 1024), help="Default: what affinity and cgroup quota allow.")
@click.option("--isa", help="Run the programs of this instruction set.")
@DEVICE
@click.option("--trust-remote-code", is_flag=True, help="Allow Python code that the model's directory brings.")
@common_options
def command(engine: Path, model: str | None, reference: str | None, threads: int | None, isa: str | None, device: str | None,
            trust_remote_code: bool, as_json: bool) -> int:
    """Check ENGINE's structure and checksums, replay its golden values, and with MODEL compare with the model.

    Exits with 1 on a difference. An artifact with nothing but engines for GPUs, on a machine that can run none of them, is
    checked for damage alone: that is said, and the exit code is 0.
    """
    if reference and not model:
        raise UsageError("E0035", "--reference runs the model itself and needs it", where="infc verify",
                         hint=f"infc verify {engine} MODEL_DIR --reference {reference}")
    from infc.compiler import golden
    from infc.compiler.artifact.reader import Artifact

    artifact = Artifact.open(engine)
    artifact.verify()
    built = artifact.engines()
    runner, why = _runner(artifact, engine, threads, isa, device, bool(model))
    cases = golden.read(artifact)
    results = [("golden", case) for case in golden.replay(runner, cases, golden.interface_of(artifact))] if runner else []
    by = ""
    if model and runner:
        against, by = _against_model(runner, artifact, model, reference, trust_remote_code)
        results += against
    rows = [{"against": against, "case": number, "output": c.output, "difference": c.difference, "accepted": c.tolerance,
             "ok": c.ok, "note": c.note} for number, (against, case) in enumerate(results) for c in case]
    ok = all(r["ok"] for r in rows)
    on_gpu = runner is not None and not runner.isa
    unproven = f"golden values were not replayed on its engine{'s' * (len(built) > 1)} for GPUs" if built and not on_gpu else ""
    if as_json:
        emit({"engine": str(engine), "isa": runner.isa if runner else None, "threads": runner.threads if runner else None,
              "device": runner.device if runner else None, "reference": by, "engines": len(built), "replayed_on_gpu": on_gpu,
              "note": why or (runner.note if runner else ""), "comparisons": rows, "ok": ok})
        return 0 if ok else CheckError.exit_code
    golden_cases = f"{len(cases)} golden case{'' if len(cases) == 1 else 's'}"
    click.echo(f"checksums ok, {golden_cases}, {place(runner)}" if runner else "structure and checksums ok, nothing was run")
    if unproven:
        click.echo(f"{unproven}{f': {why}' if why else ''}")
    if by:
        click.echo(f"reference: {by}")
    if rows:
        table(("against", ">case", "output", ">difference", ">accepted", ""),
              [(r["against"], r["case"], r["output"], f"{r['difference']:.2e}", f"{r['accepted']:.2e}",
                "ok" if r["ok"] else f"DIFFERS {r['note']}") for r in rows])
    return 0 if ok else CheckError.exit_code


def _runner(artifact: Artifact, path: Path, threads: int | None, isa: str | None, device: str | None, needed: bool
            ) -> tuple[Engine | None, str]:
    """The engine, or None and the reason where nothing but GPUs could run it, none can, and it is not ``needed``."""
    import infc

    only_gpu = bool(artifact.engines()) and not any(s.kind == "PROGRAM" for s in artifact.sections)
    try:
        return opened(path, threads, isa, device), ""
    except infc.Error as error:
        if not only_gpu or needed or device not in (None, "auto") or int(error.status) != _INCOMPATIBLE:
            raise
        return None, str(error)


def _against_model(engine: Engine, artifact: Artifact, model: str, reference: str | None, trust: bool
                   ) -> tuple[list[tuple[str, list[Comparison]]], str]:
    """The comparisons, and what computed what they compare with."""
    from infc.compiler import samples
    from infc.compiler.artifact.layout import DIM_PADS
    from infc.compiler.export import export, runnable
    from infc.compiler.fixed import fix
    from infc.compiler.reference import OnnxReference, compare
    from infc.compiler.source import resolve

    source = resolve(model, trust_remote_code=trust)
    if source.is_onnx and reference == "pytorch":
        raise UsageError("E0040", "PyTorch cannot run an .onnx model", where=f"{model} --reference pytorch",
                         hint="--reference onnxruntime, or the model directory the file was exported from")
    reference = reference or ("onnxruntime" if source.is_onnx else "pytorch")
    built = artifact.meta.get("source", {}).get("sha256")
    if built != source.hash:
        raise UsageError("E0038", f"the artifact was built from another model ({str(built)[:12]}, not {source.hash[:12]})",
                         where=model, hint="infc inspect shows what an artifact was built from")
    exported = fix(export(source, verify=False), artifact.meta["options"].get("set", {}))
    exported, _ = runnable(exported, artifact.io.profiles[0])
    run: Any = exported.reference
    by = reference
    if reference == "onnxruntime":
        graph = OnnxReference(exported.model, cuda=True)
        run, by = graph.run, f"onnxruntime, {graph.provider}"
    trim = all(s.policy == DIM_PADS for s in artifact.io.symbols)
    found = [(reference, compare(engine.run(case.inputs), run(case.inputs), case.inputs, exported.interface))
             for profile in artifact.io.profiles
             for case in samples.cases(exported.interface, profile, samples.tokenizer(source), trim=trim)]
    return found, by
