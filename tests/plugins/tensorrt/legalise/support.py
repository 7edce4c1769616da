"""Graphs before and after legalisation: in ONNX Runtime, and in the real builder in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from infc.plugins.tensorrt.legalise import Legalised, Request, legalise
from infc.plugins.tensorrt.legalise.graph import sizes
from tests.passes.support import Array, graph, session

__all__ = ["Array", "build", "compare", "feed", "graph", "kinds", "run"]

_BUILD = """
import sys, tensorrt_rtx_bindings as trt
class Log(trt.ILogger):
    def __init__(self):
        trt.ILogger.__init__(self)
        self.text = []
    def log(self, severity, message):
        if severity <= trt.ILogger.Severity.ERROR:
            self.text.append(message)
for path in sys.argv[2:]:
    log = Log()
    builder = trt.Builder(log)
    network = builder.create_network(0)
    parser = trt.OnnxParser(network, log)
    said = ""
    if parser.parse_from_file(path):
        config = builder.create_builder_config()
        config.num_compute_capabilities = 1
        config.set_compute_capability(getattr(trt.ComputeCapability, "SM" + sys.argv[1]), 0)
        if builder.build_serialized_network(network, config) is None:
            said = "; ".join(log.text) or "no engine"
    else:
        said = "; ".join(parser.get_error(i).desc() for i in range(parser.num_errors)) or "not parsed"
    print(path, " ".join(said.split()), sep="\\t", flush=True)
"""


def build(folder: Path, *models: ir.Model, sm: int = 89) -> list[str]:
    """What the real parser and builder say of each model: nothing for an engine."""
    pytest.importorskip("tensorrt_rtx_bindings")
    paths = [folder / f"{i}.onnx" for i in range(len(models))]
    for model, path in zip(models, paths, strict=True):
        ir.save(model, path)
    done = subprocess.run([sys.executable, "-c", _BUILD, str(sm), *map(str, paths)], capture_output=True, text=True, timeout=300,
                          check=False)
    lines = [line.split("\t")[1] for line in done.stdout.splitlines() if "\t" in line]
    assert len(lines) == len(models), done.stderr[-2000:]
    return lines


def feed(model: ir.Model) -> dict[str, Array]:
    """Random inputs of a static graph; a mask shows about two in three."""
    random = np.random.default_rng(1)
    found: dict[str, Array] = {}
    for value in model.graph.inputs:
        assert value.name is not None
        assert value.dtype is not None
        shape = sizes(value)
        if value.dtype == ir.DataType.BOOL:
            found[value.name] = random.random(shape) < 0.7
        elif value.dtype.is_floating_point():
            found[value.name] = np.asarray(random.standard_normal(shape)).astype(value.dtype.numpy())
        else:
            found[value.name] = random.integers(0, 10, shape).astype(value.dtype.numpy())
    return found


def run(model: ir.Model, feeds: dict[str, Array]) -> list[Array]:
    return [np.asarray(x) for x in session(model).run(None, feeds)]


def kinds(model: ir.Model) -> Counter[str]:
    return Counter(node.op_type for node in model.graph)


def compare(model: ir.Model, precision: str, tolerance: float, **request: object) -> Legalised:
    """Legalises and holds the result against the model in ONNX Runtime; its border is the model's."""
    before = ir.to_proto(model).SerializeToString()
    found = legalise(model, Request(precision=precision, sms=(89,), **request))  # type: ignore[arg-type]
    assert ir.to_proto(model).SerializeToString() == before
    for old, new in ((model.graph.inputs, found.model.graph.inputs), (model.graph.outputs, found.model.graph.outputs)):
        assert [(v.name, v.dtype, v.shape) for v in old] == [(v.name, v.dtype, v.shape) for v in new]
    feeds = feed(model)
    for wanted, got in zip(run(model, feeds), run(found.model, feeds), strict=True):
        assert wanted.dtype == got.dtype
        scale = max(1.0, float(np.abs(wanted).max())) if wanted.size else 1.0
        np.testing.assert_allclose(got.astype(np.float64), wanted.astype(np.float64), rtol=0, atol=tolerance * scale)
    return found
