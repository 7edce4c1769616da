"""Builds well-known models with TensorRT-RTX and prints what came out, as Markdown: `python -m bench.tensorrt_table`.

Needs no GPU, and runs none of the engines: the last column is the graph that the builder was given, in ONNX Runtime.
"""

from __future__ import annotations

import argparse
import platform
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from infc.compiler import samples
from infc.compiler.driver import build
from infc.compiler.export import export
from infc.compiler.source import resolve
from infc.models.fetch import fetch
from tests.plugins.tensorrt import calibrate, models

ALL, FP8 = "86,89,120", "89,120"


@dataclass(frozen=True)
class Row:
    """``source`` gives a model directory or .onnx file in a folder for such files."""

    title: str
    source: Callable[[Path], Path]
    profile: str
    precisions: tuple[str, ...]


def _onnx(maker: Callable[..., Path], **options: int) -> Callable[[Path], Path]:
    return cache(lambda folder: maker(folder / f"{maker.__name__}.onnx", **options))


ROWS = (
    Row("MiniLM-L6", lambda folder: fetch("minilm"), "batch=1,seq=128", ("f32", "f16", "bf16", "int8", "fp8", "int4")),
    Row("ViT-Tiny", _onnx(models.vit, layers=12), "batch=1", ("f16", "bf16")),
    Row("ResNet-18, a quarter as wide", _onnx(models.resnet), "batch=1", ("f16", "bf16")),
    Row("Llama-like, 2 layers: prefill", _onnx(models.llama_prefill), "batch=1,seq=64", ("f16", "bf16", "int4")),
    Row("Llama-like, 2 layers: decode", _onnx(models.llama_decode), "", ("f16", "bf16", "int4")),
    Row("the same, cache in place, f16 model", _onnx(models.llama_decode_in_place), "", ("f16",)),
)
HEAD = ("model", "precision", "SMs", "engine, MB", "build, s", "launches", "fused attentions", "products", "cosine to the model")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="rows whose model's name contains this")
    wanted = parser.parse_args().only
    with tempfile.TemporaryDirectory() as name:
        lines = [line for row in ROWS if wanted in row.title for line in _lines(row, Path(name))]
    print("\n".join((*_preface(), _table(HEAD), _table(["---"] * len(HEAD)), *lines)))


def _preface() -> Iterator[str]:
    from importlib.metadata import version

    tools = ", ".join(f"{p} {version(p)}" for p in ("tensorrt-rtx-cu13", "torch", "transformers", "onnxruntime"))
    yield from ("# Engines of TensorRT-RTX", "", "<!-- Written by bench/tensorrt_table.py; do not edit. -->", "",
                f"Built without a GPU, none of them executed ({tools}; Python {platform.python_version()}, {platform.machine()}).",
                "MiniLM is the real one, the others have random weights. Launches, fused attentions and products (activations x",
                "weights) are from the builder's list of layers. The last column is the graph that the builder was given, in ONNX",
                "Runtime: what a precision costs, not what a kernel does; ranges for int8 and fp8 are least and largest values",
                "over a few texts. Seconds are those of the stage `compile` on a busy machine of two cores.", "")


def _lines(row: Row, folder: Path) -> Iterator[str]:
    source = row.source(folder)
    for precision in row.precisions:
        print(f"{row.title}, {precision}", file=sys.stderr)
        sms = FP8 if precision == "fp8" else ALL
        options: dict[str, Any] = {"profiles": [row.profile]} if row.profile else {}
        if precision in ("int8", "fp8"):
            options["ranges"] = str(_ranges(source, row.profile, folder))
        result = build(source, folder / "x.infc", target="tensorrt-rtx", sm=sms, precision=precision, **options)
        yield _line(row, precision, result.report)


def _ranges(source: Path, profile: str, folder: Path) -> Path:
    """From texts, padded and not."""
    path = folder / f"{source.name}.json"
    if not path.exists():
        found = resolve(source)
        exported = export(found)
        sizes = {name: int(size) for name, size in (item.split("=") for item in profile.split(","))}
        cases = samples.cases(exported.interface, sizes, samples.tokenizer(found))
        calibrate.write_ranges(exported.model, [c.inputs for c in cases if c.name != "random"], path)
    return path


def _line(row: Row, precision: str, report: dict[str, Any]) -> str:
    (engine,) = report["engines"]
    (program,) = engine["programs"].values()
    products = ", ".join(f"{n} {kind}" for kind, n in program["products"].items())
    cosine = min(o["cosine"] for o in report["graphs"][0]["outputs"].values())
    profile = f" ({row.profile})" if row.profile else ""
    sms, size, seconds = "+".join(map(str, engine["sms"])), engine["size"] / 1e6, report["stages"]["compile"]
    return _table((row.title + profile, precision, sms, f"{size:.1f}", f"{seconds:.1f}", program["launches"],
                   program["fused_attentions"], products, f"{cosine:.5f}"))


def _table(cells: Any) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


if __name__ == "__main__":
    main()
