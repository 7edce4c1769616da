"""``infc explain``: what each pass matches in a model, and what it nearly matched."""

from __future__ import annotations

from typing import Any

import click

from infc.compiler.cli.console import Progress, common_options, emit, milliseconds, table
from infc.compiler.cli.flags import SET


@click.command()
@click.argument("model")
@click.option("--target", default="cpu", help="Whose passes: cpu (default), tensorrt-rtx, tensorrt.")
@click.option("--matches", is_flag=True, help="Name every match, not only their number.")
@SET
@click.option("--disable", multiple=True, metavar="PASS,…", help="Leave out these passes.")
@click.option("--only", multiple=True, metavar="PASS,…", help="Run these passes and no others.")
@click.option("--revision", help="Revision of a model on the hub.")
@click.option("--trust-remote-code", is_flag=True, help="Allow Python code that the model's directory brings.")
@common_options
def command(model: str, target: str, matches: bool, set: tuple[str, ...], disable: tuple[str, ...], only: tuple[str, ...],
            revision: str | None, trust_remote_code: bool, as_json: bool) -> None:
    """Run a target's graph passes on MODEL and print what each matched, and for near misses the node and the reason."""
    from infc.compiler.cli.flags import build_options

    given = build_options({"target": target, "set": set, "disable": disable, "only": only})
    from infc.compiler import driver, lowering
    from infc.compiler.export import export
    from infc.compiler.fixed import fix
    from infc.compiler.options import BuildOptions
    from infc.compiler.source import resolve

    options = BuildOptions.of(given)
    pipeline = driver.one_pipeline(options)

    with Progress() as stage:
        stage("export")
        exported = fix(export(resolve(model, revision=revision, trust_remote_code=trust_remote_code), verify=False), options.set)
        stage("passes")
        records = lowering.optimise(exported, options, pipeline)
    operators: dict[str, int] = {}
    for node in exported.model.graph:
        name = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
        operators[name] = operators.get(name, 0) + 1
    left = dict(sorted(operators.items(), key=lambda item: (-item[1], item[0])))
    if as_json:
        emit({"passes": [_plain(r) for r in records], "operators": left})
        return
    table(("pass", ">matches", ">nodes", ">time"),
          [(r.name, len(r.matches), f"{r.nodes_before} → {r.nodes_after}", milliseconds(r.seconds)) for r in records])
    if matches:
        table(("pass", "match"), [(r.name, m) for r in records for m in r.matches], "\nmatches")
    misses = [(r.name, str(m.node), m.reason) for r in records for m in r.near_misses]
    if misses:
        table(("pass", "node", "reason"), misses, "\nnear misses")
    table(("operator", ">count"), list(left.items()), "\nafter the passes")


def _plain(record: Any) -> dict[str, Any]:
    return {"name": record.name, "seconds": record.seconds, "matches": record.matches, "nodes_before": record.nodes_before,
            "nodes_after": record.nodes_after,
            "near_misses": [{"node": str(m.node), "reason": m.reason} for m in record.near_misses]}
