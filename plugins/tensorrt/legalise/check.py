"""The last word of legalisation: the graph is valid ONNX, and its types are the ones that ONNX infers."""

from __future__ import annotations

import onnx
import onnx_ir as ir

from infc.compiler.errors import InternalError

_LARGE = 1024  # bytes: weights beyond are left out of what is checked


def check(model: ir.Model) -> None:
    """Raises InternalError E0902 if the rewritten graph is not valid."""
    try:
        onnx.checker.check_model(_light(model), full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise InternalError("E0902", f"the legalised graph is not valid: {str(error).splitlines()[0]}",
                            hint="please report it with the model") from error


def _light(model: ir.Model) -> onnx.ModelProto:
    """The model with large weights as inputs: the checker takes 2 GB at most, and reads no number of theirs."""
    copy = model.clone()
    for name, value in list(copy.graph.initializers.items()):
        if value.const_value is not None and value.const_value.nbytes > _LARGE:
            del copy.graph.initializers[name]
            value.const_value = None
            copy.graph.inputs.append(value)
    return ir.to_proto(copy)
