"""Builds one engine in a process of its own: `python worker.py`, in a folder with request.json and model.onnx.

It is a script that imports nothing of infc: it starts fast, and its heap looks the same in every run, on which the order of some
of the plan's tables depends. It leaves engine.plan, builder.log and result.json.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import signal
import sys
import threading
import traceback
from typing import Any

_PR_SET_PDEATHSIG = 1
_UNDECIDED = "is_decomposable"  # in the builder's message when an attention has no kernel of its own


def main() -> None:
    with open("request.json", encoding="utf-8") as file:
        request = json.load(file)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # without the parent nobody wants the engine
    result: dict[str, Any] = {}
    # A thread has a heap of its own in glibc, which does not depend on what was imported from where.
    thread = threading.Thread(target=_guarded, args=(request, result))
    thread.start()
    thread.join()
    result["peak"] = _peak()
    try:
        with open("result.part", "w", encoding="utf-8") as file:
            json.dump(result, file)
        os.rename("result.part", "result.json")
        sys.stdout.flush()
    except OSError:
        os._exit(os.EX_IOERR)
    os._exit(0)  # destructors of a library that could not reach a driver have nothing to add


def _peak() -> int:
    """Most bytes that were resident. Not getrusage's figure, which begins with the parent's."""
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM:"))


def _guarded(request: dict[str, Any], result: dict[str, Any]) -> None:
    try:
        _build(request, result)
    except MemoryError:
        result["memory"] = True
    except ImportError as error:
        result["missing"] = str(error)
    except OSError as failure:
        result["io"] = failure.strerror or str(failure)
    except Exception:  # of any kind: the parent raises it
        result["bug"] = traceback.format_exc()


def _build(request: dict[str, Any], result: dict[str, Any]) -> None:
    trt = _module(request["module"])
    result["version"] = trt.__version__
    with open("builder.log", "w", encoding="utf-8", errors="replace") as log:
        logger = _logger(trt, log, result)
        builder = trt.Builder(logger)
        for library in request["plugins"]:
            trt.get_plugin_registry().load_library(library)  # what it cannot load, the parser does not find
        network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
        parser = trt.OnnxParser(network, logger)
        if not parser.parse_from_file("model.onnx"):
            result["parser"] = [_parser_error(parser.get_error(i)) for i in range(parser.num_errors)]
            return
        result["inputs"] = [_tensor(network.get_input(i)) for i in range(network.num_inputs)]
        result["outputs"] = [_tensor(network.get_output(i)) for i in range(network.num_outputs)]
        attentions = _attentions(trt, network)
        result["attentions"] = len(attentions)
        for attention in attentions:
            attention.decomposable = request["decompose"]
        config = _config(trt, builder, network, request)
        plan = builder.build_serialized_network(network, config)
        if plan is None:
            result["decompose"] = any(_UNDECIDED in line for line in result["errors"])
            return
        with open("engine.plan", "wb") as file:
            file.write(plan)
        if request["timings"]:
            _keep_timings(config, f"{request['timings']}-{trt.__version__}")


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except OSError as failure:  # a library that it loads
        raise ImportError(str(failure)) from failure


def _logger(trt: Any, log: Any, result: dict[str, Any]) -> Any:
    errors = result["errors"] = []

    class Log(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: Any, text: str) -> None:
            if severity in (trt.ILogger.ERROR, trt.ILogger.INTERNAL_ERROR):
                errors.append(text)
            try:  # an exception would have to pass through C++
                log.write(f"{severity.name} {text}\n")
                if severity in (trt.ILogger.ERROR, trt.ILogger.INTERNAL_ERROR):
                    log.flush()
            except OSError as failure:
                result["io"] = failure.strerror or str(failure)

    return Log()


def _parser_error(error: Any) -> dict[str, Any]:
    return {"code": error.code().name, "text": error.desc(), "index": error.node(), "node": error.node_name(),
            "op": error.node_operator()}


def _tensor(tensor: Any) -> dict[str, Any]:
    return {"name": tensor.name, "dtype": tensor.dtype.name, "shape": list(tensor.shape)}


def _attentions(trt: Any, network: Any) -> list[Any]:
    layers = [network.get_layer(i) for i in range(network.num_layers)]
    found = [layer for layer in layers if layer.type == trt.LayerType.ATTENTION_OUTPUT]
    for layer in found:
        layer.__class__ = trt.IAttentionOutputLayer  # how these bindings cast down
    return [layer.attention for layer in found]


def _config(trt: Any, builder: Any, network: Any, request: dict[str, Any]) -> Any:
    config = builder.create_builder_config()
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    config.clear_flag(trt.BuilderFlag.TF32)  # f32 in the graph means f32
    if request["sparse"]:
        config.set_flag(trt.BuilderFlag.SPARSE_WEIGHTS)
    if request["cross"]:
        config.num_compute_capabilities = len(request["sms"])
        for i, sm in enumerate(request["sms"]):
            config.set_compute_capability(getattr(trt.ComputeCapability, f"SM{sm}"), i)
    if request["timings"]:
        _load_timings(config, f"{request['timings']}-{trt.__version__}")
    for shapes in request["profiles"]:
        profile = builder.create_optimization_profile()
        for name, shape in shapes.items():
            profile.set_shape(name, shape, shape, shape)
        config.add_optimization_profile(profile)
    return config


def _load_timings(config: Any, path: str) -> None:
    """What another device or a broken file left is refused by the builder, which then measures anew."""
    known = b""
    if os.path.exists(path):
        with open(path, "rb") as file:
            known = file.read()
    if not config.set_timing_cache(config.create_timing_cache(known), ignore_mismatch=False):
        config.set_timing_cache(config.create_timing_cache(b""), ignore_mismatch=False)


def _keep_timings(config: Any, path: str) -> None:
    """Nothing is lost but time if there is no room for them."""
    with contextlib.suppress(OSError):
        with open(f"{path}.{os.getpid()}", "wb") as file:
            file.write(config.get_timing_cache().serialize())
        os.replace(file.name, path)


if __name__ == "__main__":
    main()
