"""Small graphs in ONNX's text syntax, and their comparison in ONNX Runtime before and after passes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
from onnx import parser

from infc.passes import domain
from infc.passes.base import Pass, PassManager, PassRecord

Array = np.ndarray[Any, Any]
SIZES = {"batch": 3, "seq": 7, "n": 5}


def normal(*shape: int, seed: int = 0) -> Array:
    """Random numbers that no test can mistake for zero or one."""
    return (np.random.default_rng([seed, *shape]).standard_normal(shape) * 0.5 + 0.1).astype(np.float32)


def graph(text: str, constants: dict[str, Array] | None = None, opset: int = 23) -> ir.Model:
    """A model from ``(inputs) => (outputs) { nodes }``; ``constants`` become initializers. Nodes are "
    "named after their first output."""
    proto = parser.parse_graph("g " + text)
    for name, data in (constants or {}).items():
        proto.initializer.append(onnx.numpy_helper.from_array(np.asarray(data), name))
    for node in proto.node:
        node.name = f"n_{node.output[0]}"
    model = onnx.helper.make_model(proto, opset_imports=[onnx.helper.make_opsetid("", opset)], ir_version=10)
    return ir.from_proto(onnx.shape_inference.infer_shapes(model, data_prop=True))


def session(model: ir.Model) -> ort.InferenceSession:
    """ONNX Runtime on the model as it stands, without its own optimisations."""
    copy = model.clone()
    domain.add_functions(copy)
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(ir.to_proto(copy).SerializeToString(), options, providers=["CPUExecutionProvider"])


MASK = np.array([[1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0, 0], [0, 0, 1, 1, 0, 1, 1]])


def feed(model: ir.Model, seed: int = 1) -> dict[str, Array]:
    """Random inputs; an input whose name has ``mask`` gets MASK, other integers stay below 10, token types below 2."""
    random = np.random.default_rng(seed)
    out = {}
    for value in model.graph.inputs:
        assert value.name
        assert value.shape is not None
        assert value.dtype is not None
        shape = [d if isinstance(d, int) else SIZES[str(d.value)] for d in value.shape]
        if "mask" in value.name:
            out[value.name] = MASK.astype(value.dtype.numpy())
        elif value.dtype in (ir.DataType.FLOAT, ir.DataType.FLOAT16):
            out[value.name] = random.standard_normal(shape).astype(value.dtype.numpy())
        else:
            out[value.name] = random.integers(0, 2 if "type" in value.name else 10, shape).astype(value.dtype.numpy())
    return out


def apply(model: ir.Model, *passes: type[Pass], atol: float = 2e-5, padded: Sequence[str] = ()) -> list[PassRecord]:
    """Runs the passes and compares all outputs; those named in ``padded`` only where MASK is not zero."""
    data = feed(model)
    before = session(model).run(None, data)
    records = PassManager(passes).run(model)
    after = session(model).run(None, data)
    for value, x, y in zip(model.graph.outputs, before, after, strict=True):
        assert x.dtype == y.dtype
        assert np.isfinite(x).all()
        assert np.abs(x.astype(np.float64)).max() > 1e-3, "a degenerate output proves nothing"
        if value.name in padded:
            x, y = (a[MASK != 0] for a in (x, y))
        np.testing.assert_allclose(x, y, atol=atol, rtol=1e-5)
    return records


def ops(model: ir.Model) -> Counter[str]:
    return Counter(n.op_type for n in model.graph)


def find(model: ir.Model, op_type: str) -> ir.Node:
    """The only node of a type."""
    found = [n for n in model.graph if n.op_type == op_type]
    assert len(found) == 1, f"{len(found)} {op_type} in {ops(model)}"
    return found[0]


def misses(records: list[PassRecord]) -> list[str]:
    return [m.reason for r in records for m in r.near_misses]


def unchanged(model: ir.Model, *passes: type[Pass]) -> list[str]:
    """Asserts that nothing matches, and returns the reasons of near misses."""
    before = ops(model)
    records = apply(model, *passes)
    assert all(not r.matches for r in records)
    assert ops(model) == before
    return misses(records)
