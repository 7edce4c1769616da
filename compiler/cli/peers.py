"""One inference system in a process of its own, for ``infc bench``: ``python -m infc.compiler.cli.peers CONFIG``.

CONFIG is a JSON object: ``label``, ``system``, ``threads``, ``inputs`` (an .npz), ``outputs`` (an .npz to write), and ``engine``,
``onnx`` or ``model``. The first line of the answer tells whether the system works; then each line with a number N on stdin
is answered by a JSON list of N times in seconds.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from infc.compiler.cli.inputs import Arrays
from infc.compiler.cli.measure import WARM_RUNS

Run = Callable[[], Any]


def infc_engine(config: dict[str, Any], inputs: Arrays) -> tuple[Run, Callable[[], Arrays]]:
    import infc

    engine = infc.Engine(config["engine"], threads=config["threads"], isa=config.get("isa"), device=config.get("device"))
    context = engine.context()
    context.bind(inputs, None)
    return context.run, lambda: dict(context.outputs)


def onnxruntime(config: dict[str, Any], inputs: Arrays) -> tuple[Run, Callable[[], Arrays]]:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = config["threads"], 1
    options.log_severity_level = 3
    session = ort.InferenceSession(config["onnx"], options, providers=["CPUExecutionProvider"])
    feed = {i.name: inputs[i.name] for i in session.get_inputs()}
    names = [o.name for o in session.get_outputs()]
    return lambda: session.run(None, feed), lambda: dict(zip(names, session.run(None, feed), strict=True))


def openvino(config: dict[str, Any], inputs: Arrays) -> tuple[Run, Callable[[], Arrays]]:
    import openvino as ov

    core = ov.Core()
    model = core.read_model(config["onnx"])
    used = [p.get_any_name() for p in model.inputs]
    model.reshape({name: list(inputs[name].shape) for name in used})
    settings = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": config["threads"], "INFERENCE_PRECISION_HINT": "f32"}
    request = core.compile_model(model, "CPU", settings).create_infer_request()
    for name in used:
        request.set_tensor(name, ov.Tensor(inputs[name], shared_memory=True))
    names = [p.get_any_name() for p in model.outputs]
    return request.infer, lambda: {n: np.array(request.get_output_tensor(i).data) for i, n in enumerate(names)}


def torch(config: dict[str, Any], inputs: Arrays) -> tuple[Run, Callable[[], Arrays]]:
    from infc.compiler.source import resolve
    from infc.models import registry

    source = resolve(config["model"], trust_remote_code=bool(config.get("trust_remote_code")))
    model = registry.load(source)
    return lambda: model.reference(inputs), lambda: model.reference(inputs)


# name for --vs: the package it needs and its runner
SYSTEMS: dict[str, tuple[str, Callable[[dict[str, Any], Arrays], tuple[Run, Callable[[], Arrays]]]]] = {
    "infc": ("infc", infc_engine),
    "onnxruntime": ("onnxruntime", onnxruntime),
    "openvino": ("openvino", openvino),
    "torch": ("torch", torch),
}


def serve(config: dict[str, Any]) -> None:
    out, sys.stdout = sys.stdout, sys.stderr  # systems that print must not disturb the answers
    try:
        with np.load(config["inputs"]) as file:
            inputs = dict(file)
        run, outputs = SYSTEMS[config["system"]][1](config, inputs)
        run()
        np.savez(config["outputs"], **outputs())  # type: ignore[arg-type]
        head: dict[str, Any] = {"ok": True}
    except Exception as e:  # a system that fails is reported, the others go on
        head = {"ok": False, "error": f"{type(e).__name__}: {e}"}
    print(json.dumps(head), file=out, flush=True)
    clock = time.perf_counter
    for line in sys.stdin:
        for _ in range(WARM_RUNS):
            run()
        times = []
        for _ in range(int(line)):
            start = clock()
            run()
            times.append(clock() - start)
        print(json.dumps(times), file=out, flush=True)


if __name__ == "__main__":
    settings = json.loads(sys.argv[1])
    os.environ["OMP_NUM_THREADS"] = str(settings["threads"])  # before torch is imported
    serve(settings)
