"""What is wrong with a graph, before TensorRT says it worse."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from infc.compiler.errors import UnsupportedError

SHOWN = 5
# Each rule and its error code.
RULES = {
    "operator": "E0700",
    "quantised operator": "E0701",
    "zero point": "E0702",
    "scale": "E0703",
    "quantised type": "E0704",
    "block": "E0705",
    "mixed types": "E0706",
    "type": "E0707",
    "type on SM": "E0708",
    "dynamic shape": "E0709",
    "control flow": "E0710",
    "domain": "E0711",
    "attention": "E0712",
    "name": "E0713",
    "rank": "E0714",
}


@dataclass(frozen=True)
class Problem:
    """``rule`` is a key of RULES, ``where`` the node or value; ``what`` is wrong there, ``remedy`` is what to do."""

    rule: str
    where: str
    what: str
    remedy: str


def refuse(problems: Sequence[Problem]) -> None:
    """Raises UnsupportedError with the first problem's code and place and the text of at most SHOWN; nothing if there is none."""
    if not problems:
        return
    first = problems[0]
    lines = [f"[{first.rule}] {first.what}"]
    lines += [f"also at {p.where}: [{p.rule}] {p.what}" for p in problems[1:SHOWN]]
    if len(problems) > SHOWN:
        lines.append(f"and {len(problems) - SHOWN} more")
    hint = "; ".join(dict.fromkeys(p.remedy for p in problems[:SHOWN]))
    raise UnsupportedError(RULES[first.rule], "\n    ".join(lines), where=first.where, hint=hint)
