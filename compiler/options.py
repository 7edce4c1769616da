"""The options of a build: what the command line, infc.toml and ``infc.build`` take, in one table."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from infc.compiler import values
from infc.compiler.artifact.layout import ISAS
from infc.compiler.artifact.watch import EVERY
from infc.compiler.errors import UsageError
from infc.compiler.profiles import Profile, parse
from infc.compiler.target import GpuOptions

NATIVE = "native"
_MOST_SAMPLES = 1 << 20
_MOST_CONTEXT = 1 << 20
KV_CACHES = {"f32": "f32", "bf16": "bf16", "int8": "i8", "fp8": "f8e4m3fn"}  # what --kv-cache takes: element types
LAYOUTS = ("one", "each")
SPARSITIES = ("2:4",)
# Options that targets of one kind of device read and others do not: field -> what the command line calls it.
READ_BY = {"cpu": {"isa": "--isa", "threads": "--threads", "timing_cache": "--timing-cache"},
           "gpu": {"sms": "--sm", "engine_layout": "--engine-layout", "ranges": "--ranges", "engine_timeout": "--engine-timeout",
                   "engine_memory": "--engine-memory"}}


@dataclass(frozen=True)
class BuildOptions:
    """``profiles``: sizes of the named dimensions, such as "batch=1,seq=128"; none: a default for the model's task.
    ``targets``: names of ``compiler.target``; one artifact holds what all of them make. ``precision``: by target, under "" for
    those not named; none: f32.
    ``set``: values of inputs, such as {"sr": 16000}, which are no inputs of the engine then.
    ``isa``: "native" or names of ``artifact.layout.ISAS``, one program each. ``threads``: what tactics are chosen for; None: the
    CPUs this process may use. ``tune``: measure tactics; False: the cost model's choice. ``timing_cache``: a file; None: the
    user's.
    ``sms``: compute capabilities that engines are for; none: that of this machine's GPU. ``engine_layout``: "one" engine for all
    profiles or an engine for "each". ``ranges``: a JSON file of least and largest values. ``sparsity``: "2:4" if weights that
    hold this pattern are to be used as such; ``sparsity_method``: how others are given it, none: not at all; ``force``: it is used
    where it is slower too. ``engine_timeout`` (seconds) and ``engine_memory`` (bytes) bound the building of an engine.
    ``calibration``: data as FILE or FILE:COLUMN, a record of ``infc calibrate``, or "synthetic"; ``calibration_samples`` of it are
    taken by ``calibration_seed``; ``calibration_method`` makes ranges of what is seen. ``method`` and ``group``: how weights are
    rounded (passes.quant.plan). ``evaluation``: data to judge by, ``evaluation_samples`` of it at most; none: held out of the
    calibration's. ``metric``: cosine, max-abs, top1, perplexity or a Python file; ``slices``: the column that divides the data;
    ``budget``: layers go back to higher precision until the metric reaches it. ``watch_ranges``: every ``watch_every``-th run
    counts activations beyond the ranges of calibration.
    ``disable``: passes and techniques of the targets; ``only``: these passes and no others. ``dump_graphs``: a directory
    for the graph after each pass. ``check_passes``: hold each pass against ONNX Runtime. ``report``: a file for all figures of
    the build, measured ones included.
    Of language models: ``context`` tokens of a sequence at most, None: the model's, up to 4096; ``kv_cache`` is the type of cached
    keys and values, None: bf16, and of models in f32 or f16 f32; ``memory_limit`` bytes that weights, cache and activations take
    together at most."""

    profiles: tuple[Profile, ...] = ()
    targets: tuple[str, ...] = ("cpu",)
    precision: Mapping[str, str] = field(default_factory=dict)
    set: Mapping[str, values.Fixed] = field(default_factory=dict)
    isa: tuple[str, ...] = (NATIVE,)
    threads: int | None = None
    tune: bool = True
    timing_cache: str | None = None
    sms: tuple[int, ...] = ()
    engine_layout: str = "one"
    ranges: str | None = None
    sparsity: str = ""
    sparsity_method: str = ""
    force: bool = False
    calibration: str | None = None
    calibration_samples: int = 256
    calibration_seed: int = 0
    calibration_method: str = "min-max"
    method: str = ""
    group: int = 0
    evaluation: str | None = None
    evaluation_samples: int = 256
    metric: str = "cosine"
    slices: str = ""
    budget: float | None = None
    watch_ranges: bool = False
    watch_every: int = EVERY
    engine_timeout: float | None = GpuOptions.timeout
    engine_memory: int | None = None
    disable: tuple[str, ...] = ()
    only: tuple[str, ...] | None = None
    dump_graphs: str | None = None
    check_passes: bool = False
    revision: str | None = None
    trust_remote_code: bool = False
    report: str | None = None
    context: int | None = None
    kv_cache: str | None = None
    memory_limit: int | None = None

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> BuildOptions:
        """Options by name; lists may be given as one string, ``target`` and ``sm`` are short for ``targets`` and ``sms``.

        Raises UsageError E0016 for an unknown name, E0017 and E0760 to E0764 for a value.
        """
        names = [f.name for f in fields(cls)]
        values_of = {{"target": "targets", "sm": "sms"}.get(name, name): value for name, value in given.items()}
        for name in values_of:
            if name not in names:
                raise unknown("option of build", name, names)
        options = cls(**{name: _READ[name](value) if name in _READ and value is not None else value
                         for name, value in values_of.items()})
        if options.threads is not None and not 1 <= options.threads <= 1024:
            raise UsageError("E0017", f"threads={options.threads} is out of range", where="--threads", hint="use 1 to 1024")
        if options.context is not None and not 2 <= options.context <= _MOST_CONTEXT:
            raise UsageError("E0017", f"a context of {options.context} is out of range", where="--context",
                             hint=f"use 2 to {_MOST_CONTEXT}")
        if options.kv_cache not in (None, *KV_CACHES):
            raise UsageError("E0017", f"'{options.kv_cache}' is no type of a cache", where="--kv-cache",
                             hint=f"one of: {', '.join(KV_CACHES)}")
        if options.engine_layout not in LAYOUTS:
            raise UsageError("E0017", f"'{options.engine_layout}' is no layout", where="--engine-layout",
                             hint=f"one of: {', '.join(LAYOUTS)}")
        if options.sparsity not in ("", *SPARSITIES):
            raise UsageError("E0017", f"'{options.sparsity}' is no pattern", where="--sparsity", hint=f"use {SPARSITIES[0]}")
        if options.sparsity_method and not options.sparsity:
            raise UsageError("E0821", "a method of sparsity is given, and no sparsity", where="--sparsity-method",
                             hint=f"add --sparsity {SPARSITIES[0]}")
        for name, count in (("calibration", options.calibration_samples), ("evaluation", options.evaluation_samples)):
            if not 1 <= count <= _MOST_SAMPLES:
                raise UsageError("E0805", f"{count} samples are not possible", where=f"--{name}-samples",
                                 hint=f"use 1 to {_MOST_SAMPLES}")
        if not 1 <= options.watch_every < 1 << 32:
            raise UsageError("E0017", f"every {options.watch_every} runs is not possible", where="--watch-every",
                             hint="use 1 to 4294967295; the default is 256")
        for name in options.precision:
            if name and name not in options.targets:
                raise UsageError("E0765", f"a precision is given for {name}, which is not built for", where="--precision",
                                 hint=f"the targets are: {', '.join(options.targets)}")
        return options

    def check_devices(self, devices: Iterable[str]) -> None:
        """Raises UsageError E0766 for an option that no target of these devices ("cpu", "gpu") reads."""
        default, present = BuildOptions(), set(devices)
        for device, read in READ_BY.items():
            for name, option in read.items():
                if device not in present and getattr(self, name) != getattr(default, name):
                    raise UsageError("E0766", f"{option} is for targets of the {device.upper()}, and none is built for",
                                     where=f"--target {','.join(self.targets)}", hint=f"leave {option} out, or add a target")

    def precision_of(self, target: str) -> str:
        return self.precision.get(target, self.precision.get("", "f32"))

    def cache_type(self) -> str:
        """The element type of cached keys and values. Of a model whose weights are no f32 to begin with it is bf16, with which
        attention reads half as much."""
        exact = self.precision_of(self.targets[0]) in ("f32", "f16")
        return KV_CACHES[self.kv_cache or ("f32" if exact else "bf16")]

    def gpu(self) -> GpuOptions:
        return GpuOptions(self.sms, self.engine_layout, self.sparsity, self.engine_timeout, self.engine_memory)

    def command(self, model: str, target: str) -> str:
        """The command line that builds the artifact again, for a GPU, without --target and --sm: the runtime adds ``target`` or
        another one for the GPU that it finds, and "cpu" if the artifact is for the CPU too."""
        default, cpu = BuildOptions(), "cpu" in self.targets
        words = ["infc", "build", model]
        if self.precision_of(target) != default.precision_of(target):
            words += ["--precision", self.precision_of(target)]
            if cpu and self.precision_of("cpu") != self.precision_of(target):
                words += ["--precision", f"cpu={self.precision_of('cpu')}"]
        for name, option in ((_CPU_COMMAND if cpu else {}) | _COMMAND).items():
            value = getattr(self, name)
            if value != getattr(default, name):
                words += _words(name, option, value)
        return shlex.join(words)

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


def _words(name: str, option: str, value: Any) -> list[str]:
    """An option as it is written on the command line."""
    if isinstance(value, bool):
        return [option]
    if name == "profiles":
        return [word for profile in value for word in (option, str(profile))]
    if name == "set":
        return [word for key, fixed in value.items() for word in (option, f"{key}={json.dumps(fixed)}")]
    if name in _FILES:
        return [option, Path(value).name]
    return [option, ",".join(value) if isinstance(value, tuple) else str(value)]


def _several(value: Any) -> list[Any]:
    return [value] if isinstance(value, str | int | Profile) else list(value)


def _names(value: Any) -> tuple[str, ...]:
    """Of a list, of strings with commas, or of one."""
    return tuple(part.strip() for item in _several(value) for part in str(item).split(","))


def _precision(value: Any) -> dict[str, str]:
    return values.precisions([f"{k}={v}" for k, v in value.items()] if isinstance(value, Mapping) else _names(value))


# How the values of options are read.
_READ: dict[str, Any] = {
    "profiles": lambda value: tuple(p if isinstance(p, Profile) else parse(p) for p in _several(value)),
    "targets": lambda value: tuple(dict.fromkeys(_names(value))),
    "precision": _precision,
    "set": lambda value: values.fixed(value if isinstance(value, Mapping) else _several(value)),
    "sms": lambda value: values.sms(_names(value)),
    "engine_timeout": values.seconds,
    "engine_memory": values.memory,
    "memory_limit": lambda value: values.memory(value, "--memory-limit"),
    "calibration_method": values.calibration_method,
    "budget": values.budget,
    **dict.fromkeys(("isa", "disable", "only"), _names),
    **dict.fromkeys(("timing_cache", "dump_graphs", "report", "ranges", "calibration", "evaluation", "metric"), os.fspath),
}

_FILES = ("ranges", "calibration", "evaluation", "metric")

# What decides CPU programs, and an engine for a GPU, but --target, --sm and the precision, which is given by target.
_CPU_COMMAND = {"isa": "--isa", "threads": "--threads"}
_COMMAND = {"profiles": "--profile", "set": "--set", "tune": "--no-tune", "engine_layout": "--engine-layout", "ranges": "--ranges",
            "sparsity": "--sparsity", "sparsity_method": "--sparsity-method", "force": "--force", "calibration": "--calibration",
            "calibration_samples": "--calibration-samples", "calibration_seed": "--calibration-seed",
            "calibration_method": "--calibration-method", "method": "--method", "group": "--group", "evaluation": "--evaluation",
            "evaluation_samples": "--evaluation-samples", "metric": "--metric", "slices": "--slices", "budget": "--budget",
            "watch_ranges": "--watch-ranges", "watch_every": "--watch-every",
            "disable": "--disable", "only": "--only", "revision": "--revision", "trust_remote_code": "--trust-remote-code",
            "context": "--context", "kv_cache": "--kv-cache"}
