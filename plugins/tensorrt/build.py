"""Runs the worker that builds an engine, within a time and a memory limit; what goes wrong in it becomes an error of ours."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import onnx_ir as ir

from infc.compiler.errors import InternalError, UnsupportedError, UsageError
from infc.plugins.tensorrt import messages, ops
from infc.plugins.tensorrt.flavour import Flavour
from infc.plugins.tensorrt.names import plain, restore

_WORKER = Path(__file__).with_name("worker.py")
_KEPT = ("PATH", "HOME", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "CUDA_HOME", "VIRTUAL_ENV", "TMPDIR")
# Hashes and thresholds that differ from run to run would show in the order of the plan's tables.
_FIXED = {"PYTHONHASHSEED": "0", "MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "131072"}
_LAST_LINES = 5
_GLANCE = 0.02  # seconds between looks at the worker's memory
_SMALLER = "build for fewer or smaller profiles, or where there is more memory"
_STARVED = ("bad_alloc", "out of memory", "outofmemory", "cannot allocate", "memoryerror", "failed to allocate")


@dataclass(frozen=True)
class EngineRequest:
    """``profiles`` gives the shape of each input by name, one a profile; none for a graph without dynamic dimensions. ``timings``
    is the timing cache's file, to whose name the library's version is added; ``timeout`` in seconds, ``memory`` in bytes of
    private memory in use."""

    sms: tuple[int, ...]
    profiles: Sequence[Mapping[str, Sequence[int]]] = ()
    sparse: bool = False
    timings: Path | None = None
    timeout: float | None = None
    memory: int | None = None


@dataclass(frozen=True)
class EngineResult:
    """``inputs`` and ``outputs`` hold {name, dtype, shape} of the parsed network, in order; ``attentions`` counts its attention
    layers, ``decomposed`` says that they had to be split; ``log`` is the builder's, verbose, in which nodes may have other names:
    ``names`` gives the model's. ``seconds`` and ``peak`` (bytes) are
    measured, and so belong in no artifact."""

    plan: bytes
    version: tuple[int, int, int, int]
    inputs: list[dict[str, Any]]
    outputs: list[dict[str, Any]]
    attentions: int
    decomposed: bool
    log: str
    seconds: float
    peak: int
    names: Mapping[str, str] = field(default_factory=dict)


def build(model: ir.Model, flavour: Flavour, request: EngineRequest, log: Callable[[str], None]) -> EngineResult:
    """Builds one engine. Attention that has no kernel of its own is allowed to be split, in a second try.

    Raises UnsupportedError: E0726 for custom operators that are not compiled here, E0734 without the library, E0740 and E0741
    what the parser and the builder refuse, E0742 and E0743 past the time and the memory limit, E0744 for a worker that died;
    UsageError E0746 if files for it cannot be written.
    """
    try:
        return _build(model, flavour, request, log)
    except OSError as error:
        raise _no_room(str(error.strerror or error)) from error


def _build(model: ir.Model, flavour: Flavour, request: EngineRequest, log: Callable[[str], None]) -> EngineResult:
    start = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="infc-engine-") as name:
        folder = Path(name)
        named, names = plain(model)
        ir.save(named, folder / "model.onnx", external_data="model.data")  # protobuf ends at 2 GB
        found = _attempt(folder, model, names, flavour, request, decompose=False)
        decomposed = bool(found.get("decompose"))
        if decomposed:
            log("an attention has no fused kernel for its shape and type: building again with attentions that may be split")
            found = _attempt(folder, model, names, flavour, request, decompose=True)
        text = _log(folder)
        plan = folder / "engine.plan"
        if not plan.exists():
            raise messages.builder_error(model, flavour, [restore(text, names) for text in found["errors"]])
        major, minor, patch, number = map(int, found["version"].split("."))
        return EngineResult(plan.read_bytes(), (major, minor, patch, number), found["inputs"], found["outputs"],
                            found["attentions"], decomposed, text, time.perf_counter() - start, found["peak"], names)


def _attempt(folder: Path, model: ir.Model, names: Mapping[str, str], flavour: Flavour, request: EngineRequest, *,
             decompose: bool) -> dict[str, Any]:
    """The worker's result. Raises UnsupportedError for all that is not a refusal of the builder."""
    plugins = _plugins(model)
    told = asdict(request) | {"module": flavour.module, "cross": bool(flavour.sms), "decompose": decompose,
                              "timings": str(request.timings) if request.timings else None, "plugins": plugins}
    (folder / "request.json").write_text(json.dumps(told))
    path = folder / "result.json"
    path.unlink(missing_ok=True)  # an earlier attempt's
    code = _run(folder, _environment(folder, bool(plugins)), flavour, request)
    result: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    if code == os.EX_IOERR or result.get("io"):
        raise _no_room(result.get("io") or "it is full")
    if result.get("missing"):
        raise UnsupportedError("E0734", f"{flavour.title} is not installed: {result['missing']}", where=f"--target {flavour.name}",
                               hint=f"pip install 'infc[{flavour.name}]', which brings {flavour.package}")
    if result.get("memory") or (not (folder / "engine.plan").exists() and _starved(folder)):
        raise UnsupportedError("E0743", "the builder ran out of this machine's memory", where=f"--target {flavour.name}",
                               hint=_SMALLER)
    if not result:
        hint = "infc debug reduce cuts the graph down to the smallest part that still fails"
        if code == -signal.SIGKILL:
            hint = f"a system that runs out of memory does that: {_SMALLER}"
        raise UnsupportedError("E0744", f"the builder {_death(code)}{_ending(folder)}", where=f"--target {flavour.name}", hint=hint)
    if result.get("bug"):
        raise InternalError("E0745", result["bug"], where=f"--target {flavour.name}")
    if result.get("parser"):
        refused = [error | {key: restore(error[key], names) for key in ("node", "text")} for error in result["parser"]]
        raise messages.parser_error(model, flavour, refused)
    return result


def _plugins(model: ir.Model) -> list[str]:
    """The library of the custom operators, if the graph has any."""
    custom = [n for n in model.graph.all_nodes() if n.domain == ops.DOMAIN and n.op_type in ops.BY_NAME]
    library = ops.library()
    if custom and library is None:
        raise UnsupportedError("E0726", f"the custom operator {custom[0].op_type} is not compiled here",
                               where=f"node '{custom[0].name}'",
                               hint="TENSORRT_ROOT=… make tensorrt-plugins, or name the library in INFC_TENSORRT_PLUGINS")
    return [str(library)] if custom else []


def _environment(folder: Path, plugins: bool) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if k in _KEPT} | _FIXED
    found = importlib.util.find_spec("tensorrt_rtx_libs") if plugins else None
    for place in (found.submodule_search_locations or ()) if found else ():
        for library in Path(place).glob("libtensorrt_rtx.so.*"):
            kept["LD_LIBRARY_PATH"] = ops.search_path(library, folder)
    return kept


def _run(folder: Path, environment: Mapping[str, str], flavour: Flavour, request: EngineRequest) -> int:
    """The worker's exit status, negative for a signal. It and what it started are gone when this returns, or raises."""
    with open(folder / "output.txt", "wb") as output:
        process = subprocess.Popen([sys.executable, "-P", str(_WORKER)], cwd=folder, env=environment, stdin=subprocess.DEVNULL,
                                   stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            return _wait(process, request.timeout, request.memory)
        except subprocess.TimeoutExpired:
            raise UnsupportedError("E0742", f"the builder was not done after {request.timeout:g} s and was stopped"
                                   f"{_ending(folder)}", where=f"--target {flavour.name}",
                                   hint="allow it more with --engine-timeout, or build for fewer profiles") from None
        except MemoryError:
            raise UnsupportedError("E0743", f"the builder needs more than the {_size(request.memory or 0)} it may use",
                                   where=f"--target {flavour.name}",
                                   hint="allow it more with --engine-memory, or build for fewer or smaller profiles") from None
        finally:
            _kill(process)


def _wait(process: subprocess.Popen[bytes], timeout: float | None, memory: int | None) -> int:
    """The exit status. Raises MemoryError when it uses too much: a limit of the system's, which lets single calls fail, can hang
    the builder."""
    if memory is None:
        return process.wait(timeout)
    end = time.monotonic() + (timeout or math.inf)
    while True:
        try:
            return process.wait(_GLANCE)
        except subprocess.TimeoutExpired:
            if _used(process.pid) > memory:
                raise MemoryError from None
            if time.monotonic() > end:
                raise


def _used(pid: int) -> int:
    """Bytes of private memory that are resident; 0 for a process that has ended."""
    with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
        return next((int(line.split()[1]) * 1024 for line in file if line.startswith("RssAnon:")), 0)


def _size(count: int) -> str:
    return f"{count / 1e6:.0f} MB" if count >= 1e6 else f"{count} bytes"


def _no_room(why: str) -> UsageError:
    return UsageError("E0746", f"the files that the builder reads and writes cannot be kept: {why}",
                      where=os.environ.get("TMPDIR") or "the directory of temporary files",
                      hint="free space there, or name another directory in TMPDIR")


def _kill(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _log(folder: Path) -> str:
    path = folder / "builder.log"
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""


def _starved(folder: Path) -> bool:
    """Whether the last words tell of memory: C++ and the builder say it each in their own way."""
    words = (_log(folder)[-20000:] + (folder / "output.txt").read_text(errors="replace")).lower()
    return any(sign in words for sign in _STARVED)


def _death(code: int) -> str:
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code} and no result"


def _ending(folder: Path) -> str:
    """The last lines of what it said, for a message: what is verbose speaks of single tensors."""
    lines = (_log(folder) + (folder / "output.txt").read_text(errors="replace")).splitlines()
    told = [line for line in lines if line.strip() and not line.startswith(("VERBOSE", " "))]
    return "".join(f"\n  | {line[:200]}" for line in told[-_LAST_LINES:])
