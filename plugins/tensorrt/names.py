"""Names that the builder's log can hold: it is read line by line, and a model's names may hold anything."""

from __future__ import annotations

import re
from collections.abc import Mapping

import onnx_ir as ir

_PLAIN = re.compile(r"[\w./:+\- ]{1,1000}", re.ASCII)
_GIVEN = re.compile(r"infc\.node\.\d+")


def plain(model: ir.Model) -> tuple[ir.Model, dict[str, str]]:
    """The model with other names for the nodes, and the values that are neither input nor output, whose own would not do; a copy if
    there are any. Also what the renamed nodes are called in the model."""
    if all(_is_plain(node.name) and all(_is_plain(v.name) for v in node.outputs) for node in model.graph):
        return model, {}
    copy = model.clone()
    names = {}
    for number, node in enumerate(copy.graph):
        if not _is_plain(node.name):
            name = f"infc.node.{number}"
            names[name], node.name = node.name or "", name
        for place, value in enumerate(node.outputs):
            if not _is_plain(value.name) and not value.is_graph_output():
                value.name = f"infc.value.{number}.{place}"
    return copy, names


def _is_plain(name: str | None) -> bool:
    return not name or _PLAIN.fullmatch(name) is not None


def restore(text: str, names: Mapping[str, str]) -> str:
    """What the builder says of renamed nodes, with the names that they have in the model."""
    return _GIVEN.sub(lambda found: names.get(found[0], found[0]), text)
