"""Turns a static graph into one that TensorRT's strongly typed builder takes, or says at which node it cannot."""

from __future__ import annotations

import onnx_ir as ir

from infc.plugins.tensorrt.legalise.cache import narrow_cache, open_cache
from infc.plugins.tensorrt.legalise.check import check
from infc.plugins.tensorrt.legalise.contract import Legalised, Request, SparseWeight
from infc.plugins.tensorrt.legalise.decompose import decompose
from infc.plugins.tensorrt.legalise.lint import lint
from infc.plugins.tensorrt.legalise.masks import masked_outputs, zero_padding
from infc.plugins.tensorrt.legalise.precision import lower
from infc.plugins.tensorrt.legalise.prepare import infer_types, prepare
from infc.plugins.tensorrt.legalise.quantise import quantise
from infc.plugins.tensorrt.legalise.sparsity import check_sparsity

__all__ = ["Legalised", "Request", "SparseWeight", "legalise", "masked_outputs"]

# The type in which an engine of each precision computes what is not quantised.
COMPUTES_IN = {"f32": ir.DataType.FLOAT, "f16": ir.DataType.FLOAT16, "bf16": ir.DataType.BFLOAT16, "int8": ir.DataType.FLOAT16,
               "fp8": ir.DataType.FLOAT16, "int4": ir.DataType.FLOAT16}


def legalise(model: ir.Model, request: Request) -> Legalised:
    """A rewritten copy. Inputs and outputs keep their names, order and types, and caches follow them; weights that do not change
    are shared.

    Raises UnsupportedError E0700 to E0715 for what TensorRT cannot build, with the node and the rule; UsageError E0720 to E0725 for
    a precision that lacks its ranges.
    """
    model = model.clone()
    infer_types(model)
    state = open_cache(model, request.capacity)
    lint(model, request)
    notes = prepare(model)
    notes += decompose(model, request.precision)
    notes += quantise(model, request)
    if COMPUTES_IN[request.precision] != ir.DataType.FLOAT:
        notes += lower(model, COMPUTES_IN[request.precision])
        narrow_cache(model)
    zero_padding(model, request.mask, request.masked)
    weights = check_sparsity(model, request.sparsity)
    check(model)
    for note in notes:
        request.log(note)
    return Legalised(model, notes, weights, state)
