"""What calibration elsewhere leaves: a file of ranges, and a model that carries Q/DQ."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort

from infc.compiler.pipeline import PIPELINES
from infc.passes.base import PassManager

_CASES, _SEQ, _IDS = 4, 64, 500


def inputs() -> Iterator[dict[str, np.ndarray[Any, Any]]]:
    """Batches for ``models.bert``, padded to different lengths."""
    random = np.random.default_rng(0)
    for _ in range(_CASES):
        mask = (np.arange(_SEQ) < random.integers(8, _SEQ + 1)).astype(np.int64)[None]
        yield {"input_ids": random.integers(0, _IDS, (1, _SEQ)), "attention_mask": mask, "token_type_ids": np.zeros_like(mask)}


def write_ranges(model: ir.Model, feeds: Iterable[dict[str, np.ndarray[Any, Any]]], output: Path) -> Path:
    """Least and largest values of what products with constant weights read, in the graph that the passes leave of ``model``."""
    graph = model.clone()
    PassManager(PIPELINES["tensorrt"]).run(graph)
    products = [n for n in graph.graph if n.op_type == "MatMul" and n.inputs[1] is not None and n.inputs[1].const_value is not None]
    values = sorted({n.inputs[0] for n in products if n.inputs[0] is not None}, key=lambda v: v.name or "")
    names = [v.name or "" for v in values]
    graph.graph.outputs.extend(v for v in values if not v.is_graph_output())
    session = ort.InferenceSession(ir.to_proto(graph).SerializeToString(), providers=["CPUExecutionProvider"])
    runs = [session.run(names, feed) for feed in feeds]
    found = {n: [float(min(x.min() for x in seen)), float(max(x.max() for x in seen))]
             for n, seen in zip(names, zip(*runs, strict=True), strict=True)}
    output.write_text(json.dumps(found))
    return output


def quantise(model: Path, output: Path) -> Path:
    """The model with symmetric int8 Q/DQ around its products, as ONNX Runtime's quantiser places them."""
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.left = inputs()

        def get_next(self) -> Any:
            return next(self.left, None)

    quantize_static(model, output, Reader(), quant_format=QuantFormat.QDQ, activation_type=QuantType.QInt8,
                    weight_type=QuantType.QInt8, op_types_to_quantize=["MatMul"],
                    extra_options={"ActivationSymmetric": True, "WeightSymmetric": True, "MatMulConstBOnly": True})
    return output
