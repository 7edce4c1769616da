"""The options of a build: what the command line, infc.toml and ``infc.build`` take, in one table."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any

from infc.compiler.artifact.layout import ISAS
from infc.compiler.errors import UsageError
from infc.compiler.profiles import Profile, parse

NATIVE = "native"


@dataclass(frozen=True)
class BuildOptions:
    """``profiles``: sizes of the named dimensions, such as "batch=1,seq=128"; none: a default for the model's task.
    ``isa``: "native" or names of ``artifact.layout.ISAS``, one program each. ``threads``: what tactics are chosen for; None: the
    CPUs this process may use. ``tune``: measure tactics; False: the cost model's choice. ``timing_cache``: a file; None: the
    user's. ``disable``: passes and techniques of the target; ``only``: these passes and no others. ``dump_graphs``: a directory
    for the graph after each pass. ``check_passes``: hold each pass against ONNX Runtime. ``report``: a file for all figures of
    the build, measured ones included."""

    profiles: tuple[Profile, ...] = ()
    isa: tuple[str, ...] = (NATIVE,)
    target: str = "cpu"
    threads: int | None = None
    tune: bool = True
    timing_cache: str | None = None
    disable: tuple[str, ...] = ()
    only: tuple[str, ...] | None = None
    dump_graphs: str | None = None
    check_passes: bool = False
    revision: str | None = None
    trust_remote_code: bool = False
    report: str | None = None

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> BuildOptions:
        """Options by name; lists may be given as one string. Raises UsageError E0016 for an unknown name, E0017 for a value."""
        names = [f.name for f in fields(cls)]
        for name in given:
            if name not in names:
                raise unknown("option of build", name, names)
        values = dict(given)
        if "profiles" in values:
            values["profiles"] = tuple(p if isinstance(p, Profile) else parse(p) for p in _several(values["profiles"]))
        for name in ("isa", "disable", "only"):
            if values.get(name) is not None:
                values[name] = tuple(part.strip() for item in _several(values[name]) for part in item.split(","))
        for name in ("timing_cache", "dump_graphs", "report"):
            if values.get(name) is not None:
                values[name] = os.fspath(values[name])
        options = cls(**values)
        if options.threads is not None and not 1 <= options.threads <= 1024:
            raise UsageError("E0017", f"threads={options.threads} is out of range", where="--threads", hint="use 1 to 1024")
        return options

    def resolved_isas(self, native: str) -> tuple[str, ...]:
        """The instruction sets to build for, least demanding first. Raises UsageError E0018 for an unknown one."""
        for name in self.isa:
            if name != NATIVE and name not in ISAS:
                raise UsageError("E0018", f"no instruction set is named '{name}'", where="--isa",
                                 hint=f"one of: {', '.join((NATIVE, *ISAS))}")
        return tuple(sorted({native if name == NATIVE else name for name in self.isa}, key=lambda name: ISAS[name]))

    def resolved_threads(self) -> int:
        return self.threads or len(os.sched_getaffinity(0))


def unknown(kind: str, name: str, known: Iterable[str], *, where: str = "") -> UsageError:
    """The error for a name that is not among ``known``."""
    listed = sorted(set(known))
    close = get_close_matches(name, listed, n=2)
    return UsageError("E0016", f"no {kind} is named '{name}'", where=where,
                      hint=f"did you mean {' or '.join(close)}?" if close else f"one of: {', '.join(listed)}")


def _several(value: Any) -> list[Any]:
    return [value] if isinstance(value, str | Profile) else list(value)
