"""What the parser and the builder say becomes an error that names the node and the module of the model it comes from."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir

from infc.compiler.errors import UnsupportedError
from infc.plugins.tensorrt.flavour import Flavour

_MODULE = "infc.module"  # node metadata: the source module, such as encoder.layer.0.attention
_REDUCE = "infc debug reduce cuts the graph down to the smallest part that still fails"
# Follows of having no driver, and the repetition of the parser's own errors: true, and no help.
_NOISE = re.compile(r"cudaError|Cuda Runtime|^Invalid Node\b|^Assertion failed: ?$")
_WHERE = re.compile(r"\s*(In \w+ at /_src/\S+|\(In \w+ at [^)]*\))")


def parser_error(model: ir.Model, flavour: Flavour, errors: Sequence[Mapping[str, Any]]) -> UnsupportedError:
    """E0740 with every node that the parser refused."""
    nodes = {node.name: node for node in model.graph.all_nodes()}
    lines = [f"{_place(nodes.get(e['node']), e)}: {_text(e['text']) or e['code']}" for e in errors]
    first = nodes.get(errors[0]["node"])
    message = f"the parser of {flavour.title} refuses " + (lines[0] if len(lines) == 1 else
                                                           f"{len(lines)} nodes" + "".join(f"\n  - {line}" for line in lines))
    hint = f"the operator is not one of {flavour.title}'s; {_REDUCE}" if "lugin" in errors[0]["text"] else _REDUCE
    return UnsupportedError("E0740", message, where=_where(first) if first else str(errors[0]["node"]), hint=hint)


def builder_error(model: ir.Model, flavour: Flavour, errors: Sequence[str]) -> UnsupportedError:
    """E0741 with what the builder said, and the nodes it named."""
    said = [text for text in (_text(e) for e in errors) if text] or ["no reason was given"]
    words = {word.rstrip(".:") for word in re.findall(r"[\w./:+-]+", " ".join(errors))}
    named = [node for node in model.graph.all_nodes() if node.name in words]
    return UnsupportedError("E0741", f"the builder of {flavour.title} refuses the graph: " + "\n  ".join(dict.fromkeys(said)),
                            where="; ".join(_where(node) for node in named[:3]), hint=_REDUCE)


def _place(node: ir.Node | None, error: Mapping[str, Any]) -> str:
    name = f"{error['op']} '{error['node']}'" if error["node"] else f"node {error['index']}" if error["index"] >= 0 else "the file"
    module = node.metadata_props.get(_MODULE) if node is not None else None
    return f"{name} in {module}" if module else name


def _where(node: ir.Node) -> str:
    module = node.metadata_props.get(_MODULE)
    return f"{node.op_type} '{node.name}'" + (f" in {module}" if module else "")


def _text(raw: str) -> str:
    """The sentences that say something, without places in the library's source."""
    lines = [_WHERE.sub("", line).strip() for line in raw.splitlines()]
    return " ".join(line for line in lines if line and not _NOISE.search(line))
