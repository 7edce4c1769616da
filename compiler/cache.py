"""Files infc keeps between builds: where they are, and the timing cache."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

from infc.compiler.aside import whole

_VERSION = 1


def user_dir() -> Path:
    """``$XDG_CACHE_HOME/infc``, by default ``~/.cache/infc``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "infc"


def timings_path() -> Path:
    """The timing cache, unless a build names another."""
    return user_dir() / "timing.json"


def write_atomic(path: Path, data: bytes) -> None:
    """Readers see the old file or the new one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole(path) as aside:
        aside.write_bytes(data)


def machine(kernels: str) -> str:
    """By what measured times are told from those of other machines and other kernels: the CPU's model name, where the system has
    one, and a digest of the library ``kernels``."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    with open(kernels, "rb") as library:
        return f"{name} {hashlib.file_digest(library, 'sha256').hexdigest()[:12]}".lstrip()


def load_timings(path: Path) -> dict[str, float]:
    """Measured seconds by tactic; empty if there is no such file or it is not one of ours: it can be measured again."""
    try:
        stored = json.loads(path.read_bytes())
        if stored["version"] != _VERSION:
            return {}
        return {str(k): float(v) for k, v in stored["seconds"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def save_timings(path: Path, timings: dict[str, float]) -> None:
    """What another build stored meanwhile is kept."""
    merged = {**load_timings(path), **timings}
    text = json.dumps({"version": _VERSION, "seconds": merged}, sort_keys=True, indent=1)
    write_atomic(path, text.encode() + b"\n")
