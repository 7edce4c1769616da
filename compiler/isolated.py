"""ONNX Runtime in a process of its own, for files that nobody vouches for: some forged nodes end the process that runs them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import onnx_ir as ir

from infc.compiler import reference_worker as protocol
from infc.compiler import residence
from infc.compiler.reference import Arrays, cannot_run, loadable

SECONDS = 600  # of processor time that loading a model, or one run of it, may take: a file may ask for more than anybody has
_LARGE = 6  # times as much for a large model
STOPPED = "of processor time and was stopped"


class Fault(Exception):
    """What ONNX Runtime raised, in its words."""


class Died(Exception):
    """ONNX Runtime ended its process, or was ended."""


class IsolatedReference:
    """As ``reference.OnnxReference`` on the CPU. Raises Fault or Died for a graph that cannot be loaded; UsageError E0208 for
    inputs at whose sizes it cannot run."""

    engine = "onnxruntime"

    def __init__(self, model: ir.Model | Path, *, threads: int = 0, large: bool | None = None,
                 optimise: bool = True) -> None:
        large = not isinstance(model, Path) and residence.is_large(model) if large is None else large
        self._seconds = SECONDS * _LARGE if large else SECONDS
        self._worker = _idle.pop() if _idle else _Worker()
        weakref.finalize(self, _give_back, self._worker)
        with loadable(model) as what:
            parts = [what] if isinstance(what, bytes) else []
            options = {"threads": threads, "large": large, "optimise": optimise}
            request = {"do": "load", "path": "" if parts else what, "options": options, "seconds": self._seconds}
            names, _ = self._worker.ask(request, parts)
        self._inputs, self._outputs = names["inputs"], names["outputs"]

    def run(self, inputs: Mapping[str, np.ndarray]) -> Arrays:
        described, parts = protocol.pack({k: v for k, v in inputs.items() if k in self._inputs})
        try:
            return protocol.unpack(*self._worker.ask({"do": "run", "outputs": self._outputs, "seconds": self._seconds,
                                                      **described}, parts))
        except (Fault, Died) as error:
            raise cannot_run(inputs, error) from error


class _Worker:
    """One process, that answers one request at a time."""

    def __init__(self) -> None:
        self.parent = os.getpid()
        self.between = True  # requests: no answer is owed
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the process
        self._process = subprocess.Popen([sys.executable, "-P", str(Path(protocol.__file__))], stdin=subprocess.PIPE,
                                         stdout=subprocess.PIPE, stderr=self._said, start_new_session=True)
        self._input, self._output = cast(BinaryIO, self._process.stdin), cast(BinaryIO, self._process.stdout)

    def ask(self, request: dict[str, Any], parts: Sequence[Any]) -> tuple[dict[str, Any], list[bytearray]]:
        self.between = False
        self._seconds = request["seconds"]
        self._before = self._said.tell()  # the process writes where this file ends, too
        try:
            protocol.send(self._input, request, parts)
            header, parts = protocol.receive(self._output)
        except (EOFError, BrokenPipeError) as error:
            raise Died(self._death()) from error
        self.between = True
        if "error" in header:
            raise Fault(header["error"])
        return header, parts

    def _death(self) -> str:
        code = self._process.wait()
        if code == -signal.SIGXCPU:
            return f"ONNX Runtime was not done after {self._seconds} s {STOPPED}"
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
        self._said.seek(max(self._before, self._said.tell() - 1000))
        last = self._said.read().decode(errors="replace").strip().rpartition("\n")[2]
        return f"ONNX Runtime {how} on this model{f': {last[:200]}' if last else ''}"

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        for file in (self._input, self._output, self._said):
            with contextlib.suppress(BrokenPipeError):  # of what it had not read
                file.close()


def _give_back(worker: _Worker) -> None:
    """One worker waits for the next model; its start takes an eighth of a second."""
    if worker.parent != os.getpid():
        return  # a forked process has no part in it
    if worker.between and not _idle:
        _idle.append(worker)
    else:
        worker.end()


_idle: list[_Worker] = []
os.register_at_fork(after_in_child=_idle.clear)
