"""Writes the pages of PAGES from the program itself: ``python docs/generate.py``. A test holds the files against it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING

from infc.plugins.tensorrt.legalise.problems import RULES

if TYPE_CHECKING:
    import click

ROOT = Path(__file__).resolve().parents[1]
HOUSES = ("compiler", "passes", "plugins", "models")
CLASSES = {"UsageError": 2, "ExportError": 3, "UnsupportedError": 3, "CheckError": 1, "ArtifactError": 3, "InternalError": 101}
FAMILIES = (("E00", "Command line and options"), ("E01", "Source of a model"), ("E02", "Profiles and shapes"), ("E03", "Export"),
            ("E04", "Unsupported by a target"), ("E05", "A check failed"), ("E06", "Artifacts"), ("E07", "Targets for GPUs"),
            ("E08", "Quantisation"), ("E09", "Bugs of ours"))
RUNTIME_BASE = 50  # E0650 + status of infc.h


@dataclass(frozen=True, order=True)
class Raised:
    code: str
    exit_code: int
    message: str
    hint: str


def cli() -> str:
    """docs/cli.md: the help of every command."""
    import click

    from infc.compiler.cli.group import COMMANDS, group

    out = ["# Command line", "", "<!-- Written by docs/generate.py; do not edit. -->", "",
           "Data goes to stdout (`--json` on every command), talk to stderr. `NO_COLOR` is honoured. Exit codes: 0 ok, 1 a check",
           "failed, 2 usage or input, 3 unsupported or incompatible, 101 a bug of ours; [errors.md](errors.md) has the list.", ""]
    for name in COMMANDS:
        with group.make_context("infc", ["build"], resilient_parsing=True, terminal_width=110) as parent:
            command = group.get_command(parent, name)
            assert command
            with click.Context(command, info_name=name, parent=parent) as context:
                out += _help(command, context)
    return "\n".join(out)


def _help(command: click.Command, context: click.Context) -> Iterator[str]:
    """The help of a command, or of the commands of a group."""
    import click

    if not isinstance(command, click.Group):
        yield from (f"## {context.command_path}", "", "```text", command.get_help(context), "```", "")
        return
    for name, inner in sorted(command.commands.items()):
        with click.Context(inner, info_name=name, parent=context) as deeper:
            yield from _help(inner, deeper)


def raised() -> list[Raised]:
    """Every error of a fixed code that the sources raise, by code."""
    found = {r for house in HOUSES for path in sorted((ROOT / house).rglob("*.py")) for r in _in_file(path)}
    return sorted(found)


def _in_file(path: Path) -> Iterator[Raised]:
    tree = ast.parse(path.read_text())
    named = {n.targets[0].id: n.value for n in tree.body if isinstance(n, ast.Assign) and isinstance(n.targets[0], ast.Name)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Problem":
            rule, _, what, remedy = node.args
            remedy = named.get(remedy.id, remedy) if isinstance(remedy, ast.Name) else remedy
            yield Raised(RULES[ast.literal_eval(rule)], 3, f"[{ast.literal_eval(rule)}] {_text(what)}", _text(remedy))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in CLASSES and len(node.args) > 1:
            code, message = node.args[:2]
            if isinstance(code, ast.Constant):
                hint = next((k.value for k in node.keywords if k.arg == "hint"), ast.Constant(""))
                yield Raised(str(code.value), CLASSES[node.func.id], _text(message), _text(hint))


def _text(node: ast.expr) -> str:
    """A string expression for people: what is filled in at run time becomes …"""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(v) if isinstance(v, ast.Constant) else "…" for v in node.values)
    if isinstance(node, ast.BinOp):
        return _text(node.left) + _text(node.right)
    return "…"


def errors() -> str:
    """docs/errors.md: a table of the codes."""
    out = ["# Errors", "", "<!-- Written by docs/generate.py; do not edit. -->", "",
           "An error has a code, says what is wrong and where, and what to try. `…` stands for what is filled in. `--debug` adds a",
           "traceback, `--json` prints the error as JSON on stdout too.", ""]
    every = raised()
    for prefix, title in FAMILIES:
        rows = [r for r in every if r.code.startswith(prefix)]
        if prefix == "E06":
            rows += [Raised(f"E06{RUNTIME_BASE}+", 2, "the runtime refuses; what is above 50 is its infc_status (infc.h)", "")]
        out += [f"## {prefix}xx: {title}", "", "| code | exit | message | try |", "|---|---|---|---|"]
        out += [f"| INFC-{r.code} | {r.exit_code} | {_cell(r.message)} | {_cell(r.hint)} |" for r in rows]
        out.append("")
    return "\n".join(out)


def operators() -> str:
    """docs/operators.md: what the CPU target lowers."""
    from infc.passes.domain import DOMAIN
    from infc.plugins.cpu.lower import RULES

    names = {home: fill(" · ".join(sorted(op for domain, op in RULES if domain == home)), 132) for home in ("", DOMAIN)}
    lines = ["# Operators", "", "<!-- Written by docs/generate.py; do not edit. -->", "",
             _paragraph("""Operators that the CPU target has kernels or views for, at opset 23; older files are brought up to it. An
                 operator, or a use of one, that the target lacks is written out by ONNX's definition where there is one. What
                 depends on constants alone is computed at build time and may use others. What is left is INFC-E0401, a use of an
                 operator INFC-E0402; both name the node. Operators of ONNX Runtime's optimizer (domain com.microsoft) are
                 written out too: `passes/cleanup/runtime_operators.py` lists them."""), "",
             "## ONNX", "", names[""], "",
             "## infc", "", "The passes' own, described in [domain.md](domain.md).", "", names[DOMAIN], "", *_node_cases()]
    return "\n".join(lines)


def _node_cases() -> Iterator[str]:
    """The table of ONNX's node cases, from the counts that `python -m tests.conformance.run --write` leaves."""
    rows = [line.split("\t") for line in (ROOT / "tests/conformance/counts.txt").read_text().splitlines()]
    total, agree, constant = (sum(int(row[i]) for row in rows) for i in (1, 2, 3))
    reasons: dict[str, int] = {}
    for row in rows:
        for reason, count in (part.rsplit("=", 1) for part in row[4].split("; ") if part):
            reasons[reason] = reasons.get(reason, 0) + int(count)
    yield from ("## Node cases", "",
                _paragraph(f"""Each node case of the onnx package goes the way of a user's file, from the .onnx to the engine, at
                    every
                    instruction set of the machine and with two threads, and is compared with what onnx expects, at its tolerances.
                    **{total} cases: {agree} agree, {sum(reasons.values())} are refused, none is wrong.** Of those that agree
                    {constant} have parameters of the operator as constants, such as the shape of a Reshape, which onnx's case
                    passes as inputs."""), "",
                "| refused because of | cases |", "|---|---|",
                *(f"| {reason} | {count} |" for reason, count in sorted(reasons.items(), key=lambda item: -item[1])), "",
                "| operator | agree / cases | refused |", "|---|---|---|")
    yield from (f"| {name} | {good} / {cases} | {refused.replace('=', ': ')} |" for name, cases, good, _, refused in rows)
    yield ""


def families() -> str:
    """docs/families.md, from the lines that `python -m tests.models.table --write` leaves."""
    from infc.compiler import image
    from infc.models.registry import ARCHITECTURES

    rows = [line.split("\t") for line in (ROOT / "tests/models/families.txt").read_text(encoding="utf-8").splitlines()]
    named = {row[0].split(" ")[0] for row in rows}
    others = fill(" · ".join(sorted(ARCHITECTURES.keys() - named)), 132)
    lines = ["# Families", "", "<!-- Written by docs/generate.py; do not edit. -->", "",
             _paragraph("""Architectures of transformers that `infc build` exports, each with two layers of random weights, none
                 zero, one or like another, built at two profiles and compared with PyTorch: full, padded and of mixed lengths.
                 `python -m tests.models.table --write` measures them. An architecture that is not here is tried by what its forward
                 takes; [writing_recipes.md](writing_recipes.md) shows how to write a recipe."""), "",
             _paragraph("""Sizes: **packed**, padding is not computed; **padded**, shorter texts and smaller batches are filled up
                 to the profile's size, with the same results; **exact**, inputs have a profile's size. Difference: the largest, and
                 the largest relative to the output's largest value where that is above 1 (2e-4 is accepted). Nodes are the
                 exporter's, steps those of a CPU program."""), "",
             "| architecture | task | profiles | sizes | difference | relative | nodes → steps | of the graph after the passes |",
             "|---|---|---|---|---|---|---|---|"]
    for name, *cells in rows:
        lines.append("| " + " | ".join([name, "sentence-embedding" if " " in name else ARCHITECTURES[name][1], *cells]) + " |")
    return "\n".join([*lines, "", "The same recipes export these too:", "", others, "",
                      "## Photos and recordings", "",
                      _paragraph(f"""`infc run` prepares photos as these processors of transformers do:
                          {', '.join(f'{kind}ImageProcessor' for kind in image.KINDS)}. One of another kind is followed if its file
                          says all that it does and that is resizing to a height and width, rescaling and normalising (YOLOS and
                          BLIP, for example); else the photo is refused (E0042), and its values can be given as an .npz file."""),
                      "",
                      _paragraph("""A model whose photos keep their shape, DETR, is built for one square as large as the longer
                          edge of a photo may be. A photo that is not square lies in it from the top left, and
                          `pixel_mask` says where; `infc run` tells how much of the square it takes. transformers pads
                          to the largest photo of a batch, not to a square: with `pad_size` it computes the same."""), "",
                      _paragraph("""Recordings: Wav2Vec2FeatureExtractor and WhisperFeatureExtractor, from WAV files of PCM or
                          floats at any rate. A model that takes samples (wav2vec 2.0, HuBERT) computes a profile's
                          number of them. A shorter recording is padded with silence, as `padding="max_length"` of
                          transformers' processor does: before its samples are normalised, unless the model's files
                          say `return_attention_mask`; then `infc run` passes the mask. It tells how much of the
                          result is the recording's. Without a mask numbers differ a little from those of the
                          recording alone: build with a profile for each usual length. Whisper's 30 seconds are padded
                          as Whisper does it."""), ""])


def _paragraph(text: str) -> str:
    return fill(" ".join(text.split()), 120)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


PAGES = {"docs/cli.md": cli, "docs/errors.md": errors, "docs/operators.md": operators,
         "docs/families.md": families}

if __name__ == "__main__":
    for name, page in PAGES.items():
        (ROOT / name).write_text(page())
