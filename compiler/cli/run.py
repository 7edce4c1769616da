"""``infc run``: an artifact on text or arrays."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np
from numpy.typing import NDArray

from infc.compiler import image
from infc.compiler.cli import inputs as inputs_of
from infc.compiler.cli import language, similarity
from infc.compiler.cli.console import common_options, emit, milliseconds, say, table
from infc.compiler.cli.engines import DEVICE, opened, place
from infc.compiler.errors import UsageError

if TYPE_CHECKING:
    from infc.compiler.artifact.reader import Artifact

Arrays = dict[str, NDArray[Any]]
Counts = dict[str, int]
_SHOWN = 6  # values of an output in its summary


@click.command()
@click.argument("engine", type=click.Path(path_type=Path))
@click.argument("inputs", required=False, type=click.Path(path_type=Path))
@click.option("--text", "texts", multiple=True, help="Text for the model's own tokenizer; repeatable.")
@click.option("--prompt", metavar="TEXT", help="Text that a language model continues, as it comes.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write the outputs to this .npz file.")
@click.option("--threads", type=click.IntRange(1, 1024), help="Default: what affinity and cgroup quota allow.")
@click.option("--isa", help="Run the programs of this instruction set.")
@DEVICE
@language.sampling_options
@common_options
def command(engine: Path, inputs: Path | None, texts: tuple[str, ...], prompt: str | None, output: Path | None, threads: int | None,
            isa: str | None, device: str | None, as_json: bool, **generation: Any) -> None:
    """Run ENGINE on INPUTS, an .npz or .json file of arrays by input name, a .jpg, .png or .wav; on --text; or on both.

    A photo with texts shows how similar they are to it, for models such as CLIP and SigLIP. A language model continues --prompt.
    """
    others = {"INPUTS": inputs, "text": texts, "output": output}
    _check_prompt(engine, prompt, others, generation)
    if prompt is not None:
        language.answer(language.opened(engine, threads, isa, device), prompt, language.sampling(generation), as_json)
        return
    if not inputs and not texts:
        raise UsageError("E0034", "give a file of inputs, --text, or both; --prompt to a language model", where="infc run",
                         hint='infc run ENGINE --text "Hello"')
    from infc.compiler.artifact.reader import Artifact
    from infc.compiler.output import check_file, written

    if output:
        check_file(output, [engine, *([inputs] if inputs else [])])
    artifact = Artifact.open(engine)
    batches = _batches(artifact, inputs, texts)
    runner = opened(engine, threads, isa, device)
    start = time.perf_counter()
    outputs = _joined([_cut(artifact, runner.run(arrays), count) for arrays, count in batches])
    seconds = time.perf_counter() - start
    alike = similarity.similarity(artifact, outputs, texts) if inputs and texts else []
    if output:
        with written(output) as aside, open(aside, "wb") as file:  # by its name, savez would add a suffix
            np.savez(file, **outputs)  # type: ignore[arg-type]
    if as_json:
        emit({"seconds": seconds, "outputs": outputs, **({"similarity": alike} if alike else {})})
    else:
        table(("output", "type", "shape", ">min", ">mean", ">max", "?first values"), [_row(n, v) for n, v in outputs.items()])
        if alike:
            similarity.show(alike)
        say(f"{milliseconds(seconds)} on {place(runner)}")


def _check_prompt(engine: Path, prompt: str | None, others: Mapping[str, Any], generation: Mapping[str, Any]) -> None:
    """Raises UsageError E0034 for what has no meaning beside a prompt, or without one."""
    if prompt is None:
        names = [name for name, value in generation.items() if value not in (None, (), False)]
        reason, hint = "it is for text that a language model makes", f'infc run {engine} --prompt "Once upon a time"'
    else:
        names = [name for name, value in others.items() if value]
        reason, hint = "a prompt is all that is given to a language model", "leave it out; text goes to stdout"
    if names:
        where = names[0] if names[0].isupper() else f"--{names[0].replace('_', '-')}"
        raise UsageError("E0034", reason, where=where, hint=hint)


def _batches(artifact: Artifact, inputs: Path | None, texts: tuple[str, ...]) -> list[tuple[Arrays, Counts]]:
    """What to run, each with how many entries count along which dimensions: "" is an output's first, whatever its name."""
    if not inputs:
        return [(arrays, {"": count}) for arrays, count in inputs_of.Tokenizer(artifact).batches(texts)]
    if not texts:
        arrays, count = inputs_of.read(inputs, artifact)
        return [(arrays, {"": count} if count else {})]
    if inputs.suffix.lower() not in image.SUFFIXES:
        raise UsageError("E0034", "a file of arrays or a recording is given, and --text", where="infc run",
                         hint="give a photo with --text, or one of them")
    return [inputs_of.Tokenizer(artifact).beside(texts, inputs)]


def _cut(artifact: Artifact, outputs: Arrays, counts: Counts) -> Arrays:
    """Without the entries that filled sizes up."""
    dims = {t.name: t.dims for t in artifact.io.outputs}
    return {name: value[tuple(slice(counts.get("" if axis == 0 and "" in counts else str(d))) for axis, d in enumerate(dims[name]))]
            for name, value in outputs.items()}


def _joined(parts: list[dict[str, NDArray[Any]]]) -> dict[str, NDArray[Any]]:
    """Batches one after the other; sequences are padded with zeros to the longest."""
    if len(parts) == 1:
        return parts[0]
    return {name: _stack([part[name] for part in parts]) for name in parts[0]}


def _stack(arrays: list[NDArray[Any]]) -> NDArray[Any]:
    tail = np.max([a.shape[1:] for a in arrays], axis=0)
    padded = [np.pad(a, [(0, 0), *((0, int(w) - n) for w, n in zip(tail, a.shape[1:], strict=True))]) for a in arrays]
    return np.concatenate(padded)


def _row(name: str, value: NDArray[Any]) -> tuple[str, ...]:
    flat = value.reshape(-1)
    first = " ".join(f"{v:.4g}" for v in flat[:_SHOWN]) + (" …" if flat.size > _SHOWN else "")
    low, mean, high = (f"{f(flat):.4g}" for f in (np.min, np.mean, np.max)) if flat.size else ("", "", "")
    return name, str(value.dtype), "×".join(map(str, value.shape)), low, mean, high, first
