"""Reads what was built out of the builder's verbose log, the only place where it says so without a GPU."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from infc.compiler.target import Layer

# Names of types in the log.
_TYPES = {"Float": "f32", "Half": "f16", "BFloat16": "bf16", "FP8": "fp8", "Int8": "int8", "Int4": "int4", "FP4": "fp4",
          "Int32": "i32", "Int64": "i64", "UInt8": "u8", "Bool": "bool"}
# Layers that order streams or compute sizes on the host: no kernel is launched for them.
_NOT_LAUNCHED = ("signal", "wait", "shape_call")

_HEAD = "VERBOSE Layers:"
_ENDS = ("I/O Tensors:", "Bindings:", "Engine Metadata:")
_LIST = r"\[((?:[^{}\[\]]*\{[^{}]*\})*[^{}\[\]]*)\]"
_LINE = re.compile(rf"Name: (?P<name>.*?), LayerType: (?P<op>\w+), Inputs: {_LIST}, (?:Constants: {_LIST}, )?Outputs: {_LIST}, "
                   r"(?:.*?, )??TacticName: (?P<tactic>[^,]*), (?:.*?, )??StreamId: (?P<stream>\d+)"
                   r"(?:.*?Metadata: (?P<metadata>.*))?$")
_TENSOR = re.compile(r"\{ Name: .*?, Dimensions: \[(?P<dims>[-\d,]*)\],.*?Datatype: (?P<dtype>\w+)")
_SOURCE = re.compile(r"\[ONNX Layer: (.*?)\](?=[\[\x1e\x1f]|$)")
_PROFILE = re.compile(r"\[profile (\d+)\]")
_PART = re.compile(r"_myl(\d+)_\d+$")
_PRODUCT = re.compile(r"gemm|correlation|conv|matrix_?multiply", re.IGNORECASE)  # a correlation is a Conv
_FUSED_PRODUCTS = ("Fc", "Conv")  # in the name of a kernel made of several operators
_ACTIVATIONS = re.compile(r"^INFO Total Activation Memory: (\d+) bytes", re.MULTILINE)
_WEIGHTS = re.compile(r"^INFO Total Weights Memory: (\d+) bytes", re.MULTILINE)


@dataclass(frozen=True)
class Built:
    """``layers`` by optimisation profile; ``activations`` (bytes a context needs, by profile) and ``weights`` (bytes) where the log
    gives them. ``notes`` says what could not be read."""

    layers: list[list[Layer]]
    activations: list[int]
    weights: int | None
    notes: list[str] = field(default_factory=list)


def parse(log: str, profiles: int, sources: Mapping[str, Sequence[str]]) -> Built:
    """The layers of an engine with so many optimisation profiles. ``sources`` maps a node handed to the builder to the nodes of the
    model that it stands for; a node that is missing stands for itself."""
    lines = _listed(log)
    found = [(line, match) for line in lines if (match := _LINE.match(line))]
    notes = []
    if not lines:
        notes.append("the builder's log holds no list of layers: a version of another format; layers are not known")
    elif len(found) < len(lines):
        notes.append(f"{len(lines) - len(found)} of {len(lines)} layers in the builder's log have another format and are left out")
    layers: list[list[Layer]] = [[] for _ in range(profiles)]
    for (_, match), profile in zip(found, _profiles_of(found, profiles), strict=True):
        layers[profile].append(_layer(match, sources))
    if found and profiles > 1 and not all(layers):
        notes.append("the builder's log does not tell which layers belong to which profile")
    weights = _WEIGHTS.search(log)
    return Built(layers, [int(n) for n in _ACTIVATIONS.findall(log)][:profiles], int(weights[1]) if weights else None, notes)


def launched(layers: Sequence[Layer]) -> int:
    """Kernels launched in one run: every layer but those that order streams or compute sizes on the host."""
    return sum(layer.op not in _NOT_LAUNCHED for layer in layers)


def fused_attentions(layers: Sequence[Layer]) -> int:
    """Attentions computed by one kernel."""
    return sum("mha" in layer.kernel or "mha" in layer.name for layer in layers)


def is_product(layer: Layer) -> bool:
    """Whether it multiplies matrices, or convolves. A product with one row, generated as multiplies and sums, is none."""
    return bool(_PRODUCT.search(layer.op)) or (layer.name.startswith("__myl_") and any(p in layer.name for p in _FUSED_PRODUCTS))


def products(layers: Sequence[Layer]) -> dict[str, int]:
    """How many products there are of each "activations x weights" types, such as {"f16 x int4": 3}."""
    found = Counter(_product_types(layer) for layer in layers if is_product(layer))
    return dict(sorted(found.items()))


def _product_types(layer: Layer) -> str:
    """Of the first input and of the largest constant, or of the second input."""
    inputs, constants = layer.detail["inputs"], layer.detail["constants"]
    weight = max(constants, key=lambda tensor: _size(tensor["shape"]), default=None)
    if weight is None or len(weight["shape"]) < 2:
        weight = inputs[1] if len(inputs) > 1 else None
    first = inputs[0]["dtype"] if inputs else "?"
    return f"{first} x {weight['dtype'] if weight else '?'}"


def _size(shape: Sequence[int]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total


def _listed(log: str) -> list[str]:
    lines: list[str] = []
    inside = False
    for line in log.splitlines():
        if line.startswith(_HEAD):
            inside = True
        elif inside and (not line.strip() or line.startswith(_ENDS)):
            inside = False
        elif inside:
            lines.append(line)
    return lines


def _profiles_of(found: Sequence[tuple[str, re.Match[str]]], profiles: int) -> list[int]:
    """Most layers say their profile; those whose names are all made up are known by the part of the engine they are in."""
    parts: dict[str, int] = {}
    for line, match in found:
        marked = _PROFILE.search(line)
        part = _PART.search(match["name"])
        if part:
            parts[part[1]] = max(parts.get(part[1], 0), int(marked[1]) if marked else 0)
    chosen = []
    for line, match in found:
        marked, part = _PROFILE.search(line), _PART.search(match["name"])
        profile = parts[part[1]] if part else int(marked[1]) if marked else 0
        chosen.append(min(profile, profiles - 1))
    return chosen


def _layer(match: re.Match[str], sources: Mapping[str, Sequence[str]]) -> Layer:
    inputs, constants, outputs = (_tensors(match[group] or "") for group in (3, 4, 5))
    names = [_PROFILE.sub("", n).strip() for n in _SOURCE.findall(match["metadata"] or "")]
    fused = list(dict.fromkeys(s for n in names for s in sources.get(n, (n,))))
    detail: dict[str, Any] = {"inputs": inputs, "constants": constants, "outputs": outputs, "stream": int(match["stream"])}
    typed = (inputs if _PRODUCT.search(match["op"]) else outputs) or outputs or inputs
    precision = typed[0]["dtype"] if typed else ""
    return Layer(match["name"], match["op"], match["tactic"], precision, fused, detail)


def _tensors(text: str) -> list[dict[str, Any]]:
    return [{"dtype": _TYPES.get(m["dtype"], m["dtype"]), "shape": [int(d) for d in m["dims"].split(",") if d]}
            for m in _TENSOR.finditer(text)]
