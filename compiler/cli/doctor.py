"""``infc doctor``: what this machine and installation can do, and how to mend what is missing."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import click

from infc.compiler import cache
from infc.compiler.cli import gpu
from infc.compiler.cli.console import common_options, emit, size, table

_EXTRAS = {
    "cli": ("click", "rich", "tokenizers", "pillow"),
    "build": ("torch", "transformers", "onnx", "onnx_ir", "onnxscript", "onnxruntime", "safetensors", "huggingface_hub"),
}
_PEERS = ("openvino",)


@click.command()
@common_options
def command(as_json: bool) -> int:
    """Show CPU, GPUs, threads, versions, extras and caches, and what works with them.

    Exits with 1 if engines cannot run here.
    """
    report: dict[str, Any] = {
        "infc": _version("infc") or "not installed (running from a checkout)",
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu": _cpu_model(),
        "threads": _threads(),
        "runtime": _runtime(),
        "packages": {extra: {name: _version(name) for name in names} for extra, names in _EXTRAS.items()},
        "gpu": gpu.describe(),
        "peers": {name: _version(name) for name in _PEERS},
        "caches": {"timing": _timing_cache()},
    }
    report["problems"] = list(_problems(report))
    if as_json:
        emit(report)
    else:
        _show(report)
    return 0 if report["runtime"]["ok"] else 1


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _cpu_model() -> str:
    for line in _lines(Path("/proc/cpuinfo")):
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or "unknown"


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def _threads() -> dict[str, Any]:
    quota = _quota()
    allowed = len(os.sched_getaffinity(0))
    return {"machine": os.cpu_count(), "affinity": allowed, "cgroup_quota": quota,
            "default": max(1, min(allowed, int(quota + 0.999) if quota else allowed))}


def _quota() -> float | None:
    """CPUs that the control group may use, or None for no limit."""
    first = (_lines(Path("/sys/fs/cgroup/cpu.max")) or ["max"])[0].split()
    if first[0] != "max":
        return int(first[0]) / int(first[1])
    old = Path("/sys/fs/cgroup/cpu")
    limits = _lines(old / "cpu.cfs_quota_us") + _lines(old / "cpu.cfs_period_us")
    return int(limits[0]) / int(limits[1]) if len(limits) == 2 and int(limits[0]) > 0 else None


def _runtime() -> dict[str, Any]:
    try:
        from infc import runtime

        kernels: dict[str, int] = {}
        for _, _, isa in runtime.kernels():
            kernels[isa] = kernels.get(isa, 0) + 1
        return {"ok": True, "isa": runtime.cpu_isa(), "kernels": kernels}
    except ImportError as e:
        return {"ok": False, "error": str(e)}


def _timing_cache() -> dict[str, Any]:
    """Where builds keep measured times, and its size in bytes: None before the first tuned build."""
    path = cache.timings_path()
    return {"path": str(path), "size": path.stat().st_size if path.is_file() else None}


def _problems(report: dict[str, Any]) -> Iterator[str]:
    if not report["runtime"]["ok"]:
        yield f"the runtime cannot be loaded ({report['runtime']['error']}); try: pip install --force-reinstall infc"
    elif report["runtime"]["isa"] == "scalar":
        yield "the CPU lacks AVX2 and FMA, or the operating system hides them: only the slow reference kernels can run"
    for extra, packages in report["packages"].items():
        missing = [name for name, found in packages.items() if not found]
        if missing:
            what = "build models" if extra == "build" else "take text as input"
            yield f"{', '.join(missing)} missing, needed to {what}; try: pip install 'infc[{extra}]'"
    if sys.platform != "linux" or platform.machine() != "x86_64":
        yield "infc supports Linux on x86-64 only"


def _show(report: dict[str, Any]) -> None:
    threads, runtime = report["threads"], report["runtime"]
    quota = f"{threads['cgroup_quota']:g}" if threads["cgroup_quota"] else "none"
    rows = [(name, report[name]) for name in ("infc", "python", "system", "cpu")]
    limits = f"machine {threads['machine']}, affinity {threads['affinity']}, quota {quota}"
    rows.append(("threads", f"{threads['default']} by default ({limits})"))
    if runtime["ok"]:
        rows.append(("instruction set", runtime["isa"]))
        rows.append(("kernels", ", ".join(f"{count} {isa}" for isa, count in runtime["kernels"].items())))
    for extra, packages in report["packages"].items():
        rows.append((f"infc[{extra}]", ", ".join(f"{n} {v}" if v else f"{n} MISSING" for n, v in packages.items())))
    rows += gpu.rows(report["gpu"])
    rows.append(("peers for bench --vs", ", ".join(f"{n} {v}" if v else f"{n} not installed" for n, v in report["peers"].items())))
    timing = report["caches"]["timing"]
    rows.append(("timing cache", f"{timing['path']}, {'none yet' if timing['size'] is None else size(timing['size'])}"))
    rows += [("problem", problem) for problem in report["problems"]]
    table(("", ""), rows)
    if not report["problems"]:
        absent = [name for name, found in report["peers"].items() if not found]
        click.echo("all that infc needs is here" + (f"; {', '.join(absent)} is only for bench --vs" if absent else ""))
