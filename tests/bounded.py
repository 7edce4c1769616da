"""Runs infc in a forked process of its own, which has the imports, and tells what it took."""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import re
import resource
import sys
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

MEMORY = 1 << 30  # bytes that refusing something may take beyond what the imports did
SECONDS = 300.0  # on a machine that is busy
_FORK = multiprocessing.get_context("fork")


@dataclass(frozen=True)
class Result:
    """``exit_code`` is -9 if it took too long; ``grown`` in bytes."""

    exit_code: int
    error: str
    grown: int
    seconds: float

    @property
    def code(self) -> str:
        found = re.search(r"INFC-E\d+", self.error)
        return found[0] if found else ""


def run(*arguments: object) -> Result:
    """``infc ARGUMENTS``, with no more than four times MEMORY of new addresses."""
    receiver, sender = _FORK.Pipe(duplex=False)
    process = _FORK.Process(target=_work, args=([str(a) for a in arguments], sender))
    start = time.monotonic()
    process.start()
    sender.close()
    if not receiver.poll(SECONDS):
        process.kill()
        return Result(-9, f"no result after {SECONDS:.0f} s", 0, SECONDS)
    try:
        exit_code, error, grown = receiver.recv()
    except EOFError:
        process.join()
        return Result(process.exitcode or 0, "died", 0, time.monotonic() - start)
    process.join()
    return Result(exit_code, error, grown, time.monotonic() - start)


def _work(arguments: list[str], sender: Connection) -> None:
    from infc.compiler.cli import group

    def page(place: int) -> int:
        return int(Path("/proc/self/statm").read_text().split()[place]) * resource.getpagesize()

    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)  # the parent's threads, if it had some, are not here and would be waited for
    resource.setrlimit(resource.RLIMIT_AS, (page(0) + 4 * MEMORY, resource.RLIM_INFINITY))
    Path("/proc/self/clear_refs").write_text("5")  # the peak so far is the parent's
    before = page(1)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as said:
        code = group.run(arguments)
    peak = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    sender.send((code, said.getvalue(), (int(peak[1]) << 10) - before if peak else 0))
