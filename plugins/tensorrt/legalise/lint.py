"""Refuses graphs that TensorRT would refuse without saying where, or would build into something else without a word.

It reads the graph before any rewriting, so that it speaks of the user's nodes. Comments name what RTX 1.7 does by itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import onnx_ir as ir

from infc.plugins.tensorrt import ops
from infc.plugins.tensorrt.flavour import LEAST_SM, too_old
from infc.plugins.tensorrt.legalise.contract import Request
from infc.plugins.tensorrt.legalise.graph import FLOATS, array, at, attribute, constant, formal, is_op, name_of, schema, sizes
from infc.plugins.tensorrt.legalise.operators import PARSED
from infc.plugins.tensorrt.legalise.problems import Problem, refuse

DataType = ir.DataType

_DECOMPOSED = {"CenterCropPad"}  # by decompose.py
_QUANTISED = {"QLinearMatMul", "QLinearConv", "MatMulInteger", "ConvInteger", "DynamicQuantizeLinear"}
_ONE_TYPE = {"GridSample"}  # ONNX lets its inputs differ in type
_CONTROL = {"If", "Loop", "Scan", "SequenceMap"}
_ABSENT = {DataType.INT16, DataType.UINT16, DataType.UINT32, DataType.UINT64, DataType.STRING, DataType.COMPLEX64,
           DataType.COMPLEX128, DataType.FLOAT8E4M3FNUZ, DataType.FLOAT8E5M2, DataType.FLOAT8E5M2FNUZ, DataType.UINT4}
_KINDS = {DataType.BFLOAT16: "bf16", DataType.FLOAT8E4M3FN: "fp8", DataType.INT4: "int4", DataType.FLOAT4E2M1: "fp4"}
_STORED = (DataType.INT8, DataType.FLOAT8E4M3FN, DataType.INT4)
_MOST_AXES = 8
_SHOWN_NAME = 80  # characters in a message
_LONGEST_NAME = 4096  # bytes; longer ones are refused, or cut in what the builder says
_STATIC = "give every dimension a size: build with profiles, or export with constant sizes"
_SYMMETRIC = "quantise symmetrically: INT8, FP8 E4M3 or INT4 with zero points of zero"
_EXPORT_QDQ = "export the model with QuantizeLinear and DequantizeLinear around its float operators"


def lint(model: ir.Model, request: Request) -> None:
    """Raises UnsupportedError E0700 to E0714 that lists what is wrong, each with its node and rule."""
    found = [*_border(model.graph), *_kinds(model, request.precision, request.sms),
             *(p for node in model.graph for rule in _NODE_RULES for p in rule(node, model.opset_imports.get("", 0)))]
    refuse([p for p in found if not (request.dynamic and p.rule == "dynamic shape")])


def _border(graph: ir.Graph) -> Iterator[Problem]:
    taken: set[str | None] = set()
    for value in (*graph.inputs, *graph.outputs):
        where = f"'{(value.name or '')[:_SHOWN_NAME]}'"
        if value.name in taken:  # the parser renames one of them, or drops it
            yield Problem("name", where, f"it is {'an input and an output' if value.is_graph_input() else 'an output twice'}, "
                          "which an engine tells apart by name", "give the output a name of its own: put an Identity before it")
        taken.add(value.name)
        if len((value.name or "").encode()) > _LONGEST_NAME:
            yield Problem("name", f"{where} …", f"its name is longer than {_LONGEST_NAME} bytes", "rename it in the model")
        yield from _rank(where, value)
        if value.shape is not None and sizes(value) is None:  # "no optimization profile has been defined"
            yield Problem("dynamic shape", where, f"it has the shape {value.shape}", _STATIC)
        if value.dtype == DataType.DOUBLE:  # becomes float32 in the engine
            yield Problem("type", where, "it is float64, which an engine does not have", "cast it outside the model")
        elif value.dtype in _ABSENT and value.is_graph_input():
            yield _absent(where, value.dtype)


def _rank(where: str, value: ir.Value) -> Iterator[Problem]:
    if value.shape is not None and len(value.shape) > _MOST_AXES:
        yield Problem("rank", where, f"it has {len(value.shape)} dimensions, a tensor of TensorRT has at most {_MOST_AXES}",
                      "merge dimensions with a Reshape outside of the model, or build for the cpu target")


def _absent(where: str, dtype: DataType) -> Problem:
    return Problem("type", where, f"TensorRT has no {dtype.name.lower()}", "use int32, int64 or float32 there")


def _kinds(model: ir.Model, precision: str, sms: tuple[int, ...]) -> Iterator[Problem]:
    """Types, asked for or in the graph, that one of the SMs has no kernels for."""
    found = {precision: "--precision"} if precision in LEAST_SM else {}
    for node in model.graph:
        for value in (*node.inputs, *node.outputs):
            if value is not None and value.dtype in _KINDS:
                found.setdefault(_KINDS[value.dtype], name_of(node))
    for kind, where in found.items():
        if old := too_old(kind, sms):
            names = ", ".join(map(str, old))
            yield Problem("type on SM", where, f"{kind} needs SM {LEAST_SM[kind]} or newer, which SM {names} is not",
                          "leave the older SMs out of --sm, or choose another --precision")


def _operator(node: ir.Node, opset: int) -> Iterator[Problem]:
    where = name_of(node)
    if node.domain == ops.DOMAIN and node.op_type in ops.BY_NAME:  # a custom operator, with a kernel of its own
        return
    if node.domain not in ("", "ai.onnx"):
        if node.op_type.startswith(("MatMulNBits", "Q", "DynamicQuantize", "MatMulInteger")):
            yield Problem("quantised operator", where, f"TensorRT does not take {node.domain}.{node.op_type}", _EXPORT_QDQ)
        elif node.domain == "infc":
            yield Problem("domain", where, f"infc's own {node.op_type} has no place in a graph for TensorRT",
                          "this is a fault of infc: switch off the pass that made it with --disable")
        else:
            yield Problem("domain", where, f"{node.domain}.{node.op_type} is not one of ONNX's operators",
                          "export it with ONNX's own operators, or as a function of them")
    elif node.op_type in _QUANTISED:  # "false", says the parser
        yield Problem("quantised operator", where, f"TensorRT does not take {node.op_type}", _EXPORT_QDQ)
    elif node.op_type in _CONTROL:
        yield Problem("control flow", where, f"{node.op_type} is control flow, which static engines do not have",
                      "export the model for fixed sizes, so that branches and loops are unrolled")
    elif node.op_type not in PARSED | _DECOMPOSED:
        yield Problem("operator", where, f"TensorRT's parser does not know {node.op_type}",
                      "write it with other operators, or build for the cpu target")


def _ranks(node: ir.Node, opset: int) -> Iterator[Problem]:
    for value in node.outputs:
        if not value.is_graph_output():
            yield from _rank(name_of(node), value)


def _static(node: ir.Node, opset: int) -> Iterator[Problem]:
    for value in node.outputs:
        if value.shape is not None and sizes(value) is None and not value.is_graph_output():
            yield Problem("dynamic shape", name_of(node), f"its output has the shape {value.shape}", _STATIC)
            return


def _types(node: ir.Node, opset: int) -> Iterator[Problem]:
    """Types that TensorRT lacks, and different float types where the definition of the operator wants one."""
    where = name_of(node)
    for value in (*node.inputs, *node.outputs):
        if value is not None and value.dtype in _ABSENT and not is_op(node, "QuantizeLinear", "DequantizeLinear"):
            yield _absent(where, value.dtype)
            return
        if value is not None and value.dtype == DataType.UINT8 and not is_op(
                node, "Cast", "Identity", "QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"):
            yield Problem("type", where, "TensorRT takes uint8 into a Cast only", "cast it to int32 or float32 first")
            return
    definition = schema(node, opset)
    seen: dict[str, DataType] = {}
    for i, value in enumerate(node.inputs if definition is not None else ()):
        if value is None or value.dtype not in (*FLOATS, DataType.DOUBLE) or definition is None or not definition.inputs:
            continue
        parameter = formal(definition.inputs, i).type_str if node.op_type not in _ONE_TYPE else ""
        first = seen.setdefault(parameter, value.dtype)
        if first != value.dtype and not is_op(node, "QuantizeLinear"):
            yield Problem("mixed types", where, f"{node.op_type} has {first.name} and {value.dtype.name} inputs",
                          "TensorRT types strictly: insert a Cast")


def _zero_point(node: ir.Node, opset: int) -> Iterator[Problem]:
    zero = at(node, 2)
    if not is_op(node, "QuantizeLinear", "DequantizeLinear") or zero is None:
        return
    numbers = array(zero)
    if numbers is None:
        yield Problem("zero point", name_of(node), f"its zero point '{zero.name}' is computed when the model runs", _SYMMETRIC)
    elif (numbers != 0).any():
        yield Problem("zero point", name_of(node), f"its zero point '{zero.name}' is not zero", _SYMMETRIC)


def _stored_type(node: ir.Node, opset: int) -> Iterator[Problem]:
    """What is stored between Q and DQ. Without a zero point ONNX means uint8, and RTX 1.7 builds int8 without a word."""
    stored: DataType | None
    if is_op(node, "QuantizeLinear"):
        stored, is_weight = node.outputs[0].dtype or _declared(node), constant(at(node, 0)) is not None
    elif is_op(node, "DequantizeLinear"):
        value = node.inputs[0]
        stored = value.dtype if value is not None else None
        is_weight = constant(value) is not None or (value is not None and _is_constant(value.producer()))
    else:
        return
    if stored == DataType.INT32 and is_weight and is_op(node, "DequantizeLinear"):
        return  # a bias, which prepare.py turns into floats
    if stored not in _STORED:
        name = stored.name.lower() if stored is not None else "an unknown type"
        yield Problem("quantised type", name_of(node), f"it quantises to {name}", _SYMMETRIC)
    elif stored == DataType.INT4 and not is_weight:  # builds without a word
        yield Problem("quantised type", name_of(node), "it quantises an activation to int4, which is for weights only",
                      "quantise activations to INT8 or FP8, or leave them in float")


def _declared(node: ir.Node) -> DataType:
    """ONNX's rule for the output of QuantizeLinear."""
    zero, wanted = at(node, 2), attribute(node, "output_dtype", 0)
    return zero.dtype if zero is not None and zero.dtype is not None else DataType(wanted or DataType.UINT8)


def _is_constant(node: ir.Node | None) -> bool:
    return is_op(node, "QuantizeLinear") and node is not None and constant(node.inputs[0]) is not None


def _scale(node: ir.Node, opset: int) -> Iterator[Problem]:
    """Scales are constants, and of activations a single number: others build without a word and give other numbers."""
    if not is_op(node, "QuantizeLinear", "DequantizeLinear"):
        return
    value, scale = node.inputs[0], at(node, 1)
    tensor = constant(scale)
    if tensor is None or scale is None:
        yield Problem("scale", name_of(node), "its scale is computed when the model runs",
                      "calibrate, and store scales as constants")
        return
    numbers = tensor.numpy().astype("float64")
    if not ((numbers > 0) & (numbers < math.inf)).all():
        yield Problem("scale", name_of(node), f"its scale '{scale.name}' is not a positive number",
                      "calibrate again: a scale is above zero")
    shape, axis = sizes(value), attribute(node, "axis", 1)
    if tensor.size > 1 and shape is not None and not attribute(node, "block_size", 0):
        channels = shape[axis] if -len(shape) <= axis < len(shape) else None
        if channels != tensor.size:
            there = "does not exist" if channels is None else f"has size {channels}"
            yield Problem("scale", name_of(node), f"it has {tensor.size} scales along axis {axis} of {list(shape)}, which {there}",
                          "give a scale for each channel, and name their axis")
    is_weight = constant(value) is not None or (value is not None and _is_constant(value.producer()))
    if tensor.size > 1 and not is_weight:
        yield Problem("scale", name_of(node), "it quantises an activation per channel or block, which is for weights only",
                      "quantise activations with one scale for the tensor")


def _block(node: ir.Node, opset: int) -> Iterator[Problem]:
    size = attribute(node, "block_size", 0)
    if not is_op(node, "QuantizeLinear", "DequantizeLinear") or not size:
        return
    where, shape, scale = name_of(node), sizes(node.inputs[0]), sizes(at(node, 1))
    if shape is None or scale is None or opset < 21:
        yield Problem("block", where, "blocks need opset 21 and known shapes", "export with opset 21 or newer")
        return
    axis = attribute(node, "axis", 1) % len(shape)
    if len(shape) - axis > 2:
        yield Problem("block", where, f"its blocks lie along axis {axis} of {len(shape)}",
                      "put blocks along one of the last two axes")
    elif shape[axis] != size * scale[axis]:
        yield Problem("block", where, f"blocks of {size} do not divide axis {axis} of size {shape[axis]} into {scale[axis]} scales",
                      "choose a block size that divides the axis")
    if node.inputs[0] is not None and node.inputs[0].dtype == DataType.INT8:
        yield Problem("block", where, "int8 has one scale for a tensor or a channel, not for blocks", "use INT4 or FP8 for blocks")


def _sizes(node: ir.Node, opset: int) -> Iterator[Problem]:
    """What is written out needs some sizes, even where others stay named."""
    if is_op(node, "CenterCropPad") and (sizes(node.inputs[0]) is None or array(at(node, 1)) is None):
        yield Problem("operator", name_of(node), "CenterCropPad needs known sizes", _STATIC)
    if is_op(node, "Attention"):
        shapes = [v.shape for i, v in enumerate(node.inputs) if v is not None and i < 6]
        heads = [s[axis] for s in shapes[:3] if s is not None for axis in ((1, 3) if len(s) == 4 else (2,))]
        if None in shapes or not all(isinstance(h, int) for h in heads):
            yield Problem("attention", name_of(node), "its heads have no known number and size", _STATIC)


def _attention(node: ir.Node, opset: int) -> Iterator[Problem]:
    if not is_op(node, "Attention"):
        return
    if len(node.outputs) > 3 and (node.outputs[3].uses() or node.outputs[3].is_graph_output()):
        yield Problem("attention", name_of(node), "its scores are an output, which no engine keeps",
                      "do not return attention weights")
    if at(node, 6) is not None:
        yield Problem("attention", name_of(node), "TensorRT takes no nonpad_kv_seqlen", "mask the unused part of the cache")
    mask, keys, past = at(node, 3), sizes(at(node, 1)), sizes(at(node, 4))
    if mask is not None and mask.dtype not in (DataType.BOOL, *FLOATS):
        yield Problem("attention", name_of(node), "its mask has neither a float type nor bool", "cast the mask to bool")
    if mask is not None and keys is not None and sizes(mask) is not None:
        total = keys[-2] + (past[2] if past is not None else 0)
        if mask.shape is not None and mask.shape[-1] not in (total, 1):
            yield Problem("attention", name_of(node), f"its mask covers {mask.shape[-1]} of {total} keys",
                          "give a mask for all keys")


_NODE_RULES: tuple[Callable[[ir.Node, int], Iterator[Problem]], ...] = (
    _operator, _static, _ranks, _types, _zero_point, _stored_type, _scale, _block, _sizes, _attention)
