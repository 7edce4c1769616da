"""One operator against ONNX Runtime, on every instruction set of this machine, with one and three threads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper, numpy_helper

from tests.plugins.cpu.harness import compile_model, native_isas, run

Array = np.ndarray[Any, Any]


def model_of(op: str, inputs: Mapping[str, Array], constants: Mapping[str, Array], attributes: Mapping[str, Any], outputs: int = 1,
             opset: int = 23) -> onnx.ModelProto:
    """A model of one node: the given inputs in order, those in ``constants`` known, a name that begins with "-" left out."""
    order = [n if not n.startswith("-") else "" for n in inputs]
    names = [f"y{i}" for i in range(outputs)]
    node = helper.make_node(op, order, names, name="node", **attributes)
    typed = [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
             for n, a in inputs.items() if n not in constants and not n.startswith("-")]
    graph = helper.make_graph([node], "g", typed, [onnx.ValueInfoProto(name=n) for n in names],
                              [numpy_helper.from_array(a, n) for n, a in constants.items()])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    return onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)


def expected(model: onnx.ModelProto, feeds: dict[str, Array]) -> list[Array]:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    found: list[Array] = session.run(None, feeds)
    return found


def check(op: str, inputs: Mapping[str, Array], constants: Sequence[str] = (), want: Sequence[Array] | None = None,
          outputs: int = 1, opset: int = 23, atol: float = 1e-5, **attributes: Any) -> None:
    """Compiles and compares; ``want`` where ONNX Runtime is not the judge."""
    known = {n: a for n, a in inputs.items() if n in constants}
    model = model_of(op, inputs, known, attributes, outputs, opset)
    feeds = {n: a for n, a in inputs.items() if n not in constants and not n.startswith("-")}
    want = expected(model, feeds) if want is None else want
    for value, array in zip(model.graph.output, want, strict=True):  # of some operators ONNX infers no type
        value.CopyFrom(helper.make_tensor_value_info(value.name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape))
    artifact, _ = compile_model(model, native_isas())
    for isa in native_isas():
        for threads in (1, 3):
            got = run(artifact, feeds, threads, isa)
            for i, right in enumerate(want):
                array, message = got[f"y{i}"], f"{op} {attributes}, {isa}, {threads} threads"
                assert array.shape == right.shape, message
                assert array.dtype == right.dtype, message
                scale = max(1.0, float(np.abs(right[np.isfinite(right)]).max(initial=0))) if right.dtype.kind == "f" else 1
                np.testing.assert_allclose(array / scale, right / scale, rtol=0, atol=atol if right.dtype.kind == "f" else 0,
                                           err_msg=message)


def floats(rng: np.random.Generator, *shape: int) -> Array:
    return rng.standard_normal(shape).astype(np.float32)


def shape_of(rng: np.random.Generator, least: int = 1, most: int = 4, size: int = 6) -> tuple[int, ...]:
    return tuple(int(d) for d in rng.integers(1, size + 1, rng.integers(least, most + 1)))
