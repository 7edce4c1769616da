"""Runs a model in ONNX Runtime for a parent process: ``python reference_worker.py`` answers requests of ``isolated`` on its
standard input, and ends with it.

A script that imports nothing of infc: it starts fast. A request is a line of JSON and as many bytes after it as that says, an
answer alike. ``load`` takes a file or bytes and is answered with the names of inputs and outputs; the model before is let go.
``run`` takes and is answered with arrays. Either may be answered with the text of an ``error``, or with nothing: a model can end
ONNX Runtime's process, which is this one.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any, BinaryIO

import numpy as np

_GLANCE = 2.0  # seconds between looks at whether the parent lives


def open_session(model: str | bytes, *, threads: int = 0, large: bool = False, optimise: bool = True,
                 providers: list[str] | None = None) -> Any:
    """An InferenceSession of a path or bytes. ``large``: weights are mapped, neither copied nor widened before they are needed;
    without ``optimise`` the graph is taken as it is written."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4  # what fails is raised
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.disable_quant_qdq", "1")  # what Q/DQ says is what is computed
    if not optimise:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    if large:
        options.add_session_config_entry("session.disable_prepacking", "1")
        options.enable_cpu_mem_arena = False
    return ort.InferenceSession(model, options, providers or ["CPUExecutionProvider"],
                                disabled_optimizers=["ConstantFolding"] if large else None)


def send(pipe: BinaryIO, header: dict[str, Any], parts: Sequence[Any] = ()) -> None:
    """``parts`` are bytes, or arrays of bytes."""
    pipe.write(json.dumps(header | {"sizes": [len(p) for p in parts]}).encode() + b"\n")
    for part in parts:
        pipe.write(part)
    pipe.flush()


def receive(pipe: BinaryIO) -> tuple[dict[str, Any], list[bytearray]]:
    """Raises EOFError if the other side is gone."""
    line = pipe.readline()
    if not line.endswith(b"\n"):
        raise EOFError
    header: dict[str, Any] = json.loads(line)
    parts = [bytearray(n) for n in header["sizes"]]
    for part in parts:
        if part and pipe.readinto(part) != len(part):  # type: ignore[attr-defined]
            raise EOFError
    return header, parts


def pack(arrays: dict[str, np.ndarray]) -> tuple[dict[str, Any], list[np.ndarray]]:
    """A header and its parts."""
    described = {name: [array.dtype.name, array.shape] for name, array in arrays.items()}
    return {"arrays": described}, [np.ascontiguousarray(a).reshape(-1).view(np.uint8) for a in arrays.values()]


def unpack(header: dict[str, Any], parts: list[bytearray]) -> dict[str, np.ndarray]:
    return {name: np.frombuffer(part, np.dtype(dtype)).reshape(shape)
            for (name, (dtype, shape)), part in zip(header["arrays"].items(), parts, strict=True)}


def _answer(request: dict[str, Any], parts: list[bytearray], session: Any, out: BinaryIO) -> Any:
    """The session from now on."""
    if request["do"] == "load":
        session = None  # two at once would need the memory of both
        session = open_session(request["path"] or bytes(parts[0]), **request["options"])
        send(out, {"inputs": [i.name for i in session.get_inputs()], "outputs": [o.name for o in session.get_outputs()]})
    else:
        found = dict(zip(request["outputs"], session.run(request["outputs"], unpack(request, parts)), strict=True))
        strange = [name for name, value in found.items() if not isinstance(value, np.ndarray) or value.dtype.hasobject]
        if strange:
            raise TypeError(f"output '{strange[0]}' is no tensor of numbers")
        send(out, *pack(found))
    return session


def _limit(seconds: int) -> None:
    """Of processor time, for what comes next."""
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    soft = int(time.process_time()) + seconds
    resource.setrlimit(resource.RLIMIT_CPU, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_GLANCE)
    os._exit(1)  # nobody waits for the run that is on


def main() -> None:
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print is no answer
    session = None
    while True:
        try:
            request, parts = receive(sys.stdin.buffer)
        except EOFError:
            os._exit(0)
        _limit(request["seconds"])
        try:
            session = _answer(request, parts, session, out)
        except Exception as error:  # ONNX Runtime's exceptions have no common class of their own
            send(out, {"error": str(error) or type(error).__name__})


if __name__ == "__main__":
    main()
