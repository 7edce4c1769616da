"""What becomes of the node cases: ``python -m tests.conformance.run [PART_OF_A_NAME ...] [-v] [-j JOBS] [--write]``.

Prints the counts by operator and the refusals; -v prints every case that does not agree. --write brings counts.txt up to date and
takes what is done out of pending.txt.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.conformance import workers
from tests.conformance.node_cases import NOT_YET, Case, Outcome, collect, outcome

COUNTS = Path(__file__).with_name("counts.txt")
PENDING = Path(__file__).with_name("pending.txt")


@dataclass
class Row:
    """Cases of an operator."""

    total: int = 0
    agree: int = 0
    constant: int = 0  # of those that agree: with parameters as constants
    refused: Counter[str] = field(default_factory=Counter)
    failed: int = 0

    def add(self, found: Outcome) -> None:
        self.total += 1
        self.agree += found.kind == "agree"
        self.constant += found.kind == "agree" and found.constant
        self.failed += found.kind in ("wrong", "crash")
        if found.kind == "refused":
            self.refused[found.reason] += 1


def run(cases: Sequence[Case], jobs: int | None = None) -> list[Outcome]:
    return workers.run(outcome, cases, lambda case, why: Outcome(case.name, case.operator, "crash", detail=why), jobs)


def table(found: Iterable[Outcome]) -> dict[str, Row]:
    """Rows by operator, in order."""
    rows: dict[str, Row] = {}
    for result in found:
        rows.setdefault(result.operator, Row()).add(result)
    return dict(sorted(rows.items()))


def counts(rows: dict[str, Row]) -> str:
    """A line an operator, tab-separated: name, cases, agree, of these with constants, and refusals as reason=count."""
    lines = ["\t".join([name, str(row.total), str(row.agree), str(row.constant),
                        "; ".join(f"{reason}={n}" for reason, n in sorted(row.refused.items()))]) for name, row in rows.items()]
    return "\n".join(lines) + "\n"


def pending() -> dict[str, str]:
    """Cases that are refused for now, and whose they are: ``name`` lines below ``# owner`` lines."""
    owner, found = "", {}
    for line in PENDING.read_text().splitlines() if PENDING.exists() else []:
        if line.startswith("#"):
            owner = line.strip("# ")
        elif line.strip():
            found[line.strip()] = owner
    return found


def summary(found: Sequence[Outcome]) -> str:
    kinds = Counter(r.kind for r in found)
    reasons = Counter(r.reason for r in found if r.kind == "refused")
    constant = sum(r.kind == "agree" and r.constant for r in found)
    refused = ", ".join(f"{n} {reason}" for reason, n in reasons.most_common())
    return (f"{len(found)} cases: {kinds['agree']} agree ({constant} of them with parameters as constants), "
            f"{kinds['refused']} refused ({refused or 'none'}), {kinds['wrong']} wrong, {kinds['crash']} crash")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*")
    parser.add_argument("-v", action="store_true")
    parser.add_argument("-j", type=int)
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    cases = [c for c in collect() if not given.parts or any(p in c.name or p == c.operator for p in given.parts)]
    found = run(cases, given.j)
    for result in found:
        if (given.v and result.kind != "agree") or result.kind in ("wrong", "crash"):
            print(f"{result.kind:8}{result.case}: {result.reason + ': ' if result.reason else ''}{result.detail[:300]}")
    for name, row in table(found).items():
        rest = ", ".join(f"{n} {reason}" for reason, n in row.refused.items())
        if row.agree < row.total:
            print(f"{name:40}{row.agree:4}/{row.total:<4}{rest}{f', {row.failed} wrong or crash' if row.failed else ''}")
    print(summary(found))
    if given.write and not given.parts:
        COUNTS.write_text(counts(table(found)))
        still = {r.case for r in found if r.reason == NOT_YET}
        lines = PENDING.read_text().splitlines()
        PENDING.write_text("".join(f"{line}\n" for line in lines if line.startswith("#") or line in still))


if __name__ == "__main__":
    main()
