"""Reads an .onnx file that nobody vouches for: what is read is a graph, in order, of which everything that is used is there."""

from __future__ import annotations

import logging
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import numpy_helper

from infc.compiler import refusals
from infc.compiler.errors import UnsupportedError, UsageError

CHECKER = "python -m onnx.checker tells more about a damaged file"
RUNTIME_DOMAIN = "com.microsoft"  # ONNX Runtime's optimizer writes operators of its own; passes write them out
_LARGEST_SPARSE = 1 << 31  # bytes of a sparse tensor that is stored densely
_INTEGERS = range(-(1 << 31), 1 << 31)  # what an attribute may be: ONNX Runtime takes the lower half of larger ones, as of an axis
# Attributes that are 0 or 1: ONNX Runtime asks some of them whether they are 1, ONNX's own evaluator whether they are 0.
_FLAGS = frozenset({"align_corners", "allowzero", "antialias", "ceil_mode", "center_point_box", "count_include_pad",
                    "detect_negative", "detect_positive", "exclude_outside", "exclusive", "fmod", "input_forget", "interleaved",
                    "inverse", "is_causal", "keepdims", "largest", "layout", "linear_before_reset", "noop_with_empty_axes",
                    "onesided", "periodic", "reverse", "saturate", "select_last_index", "sorted", "storage_order",
                    "training_mode", "transA", "transB", "upper"})
_ANY_INTEGER = {("Constant", "value_int"), ("Constant", "value_ints"), ("Slice", "starts"), ("Slice", "ends"),
                ("Shape", "start"), ("Shape", "end")}
_NEWEST = 1 << 16  # versions of operators beyond are refused later; onnx takes no number of 64 bits
for _name in ("onnx_ir.serde", "onnx_ir.passes.common.shape_inference"):
    logging.getLogger(_name).setLevel(logging.ERROR)  # what it warns of is an error here


def read(path: Path) -> ir.Model:
    """The model with its weights where they are. Raises UsageError E0112 for what is no ONNX model, E0113 for external weights that
    are not beside the file; UnsupportedError E0401 for operators that are neither ONNX's nor the model's own functions."""
    try:
        proto = onnx.load_model(str(path), load_external_data=False)
        if proto.ir_version > onnx.IR_VERSION:
            raise ValueError(f"its ir_version is {proto.ir_version}, and the package onnx here knows up to {onnx.IR_VERSION}")
        _check_text(proto)
        _check_places(proto, path)
        _check_types(proto)
        _densify(proto)
        model = ir.from_proto(proto)
    except UsageError:
        raise
    except Exception as error:  # of protobuf, onnx and onnx_ir, which have no class in common
        raise _no_model(cause(error), path) from error
    if not model.graph.outputs:
        raise _no_model("it has no outputs", path)
    ir.external_data.set_base_dir(model.graph, path.parent)
    _check_operators(model, path)
    _check_attributes(model, path)
    _check_values(model, path)
    for tensor in _tensors(model):
        if not _has_type(tensor):
            raise _no_model(f"tensor '{tensor.name}' has no type", path)
        if isinstance(tensor, ir.ExternalTensor):
            _check_external(tensor, path)
    try:
        model.graph.sort()
    except ValueError as error:
        raise _no_model("its graph has a cycle", path) from error
    return model


def load_weights(model: ir.Model, path: Path) -> None:
    """Brings external weights into memory. Raises UsageError E0112 for a tensor whose data are not what its shape says."""
    for graph in _graphs(model):
        for value in graph.initializers.values():
            if isinstance(value.const_value, ir.ExternalTensor):
                value.const_value = _in_memory(value.const_value, path)
        for node in graph:
            for name, a in list(node.attributes.items()):
                if a.type == ir.AttributeType.TENSOR and not a.is_ref() and isinstance(a.value, ir.ExternalTensor):
                    node.attributes[name] = ir.AttrTensor(name, _in_memory(a.value, path))
    for tensor in _tensors(model):
        if tensor.dtype == ir.DataType.STRING:
            continue
        try:
            found = (0,) if _is_void(tensor) else tensor.numpy().shape
        except Exception as error:
            raise _no_model(f"the data of tensor '{tensor.name}' do not fit its shape {list(tensor.shape)}", path) from error
        if found != tuple(tensor.shape):
            raise _no_model(f"tensor '{tensor.name}' has data of the shape {list(found)}, not {list(tensor.shape)}", path)


def check_inferred(model: ir.Model, path: Path) -> None:
    """Raises UsageError E0112 where the shape of an output is not known because ONNX's inference finds the graph to be wrong."""
    if all(v.shape is not None for v in model.graph.outputs):
        return
    try:
        onnx.shape_inference.infer_shapes(ir.to_proto(model), check_type=True, strict_mode=True, data_prop=True)
    except onnx.shape_inference.InferenceError as error:
        why = next((line for line in str(error).splitlines() if "(op_type:" in line), str(error))
        raise _no_model(why.replace("[ShapeInferenceError] ", "").replace("Inference error(s): ", "")[:300], path) from error
    except ValueError:  # of more than 2 GB
        return


def _in_memory(tensor: ir.ExternalTensor, path: Path) -> ir.TensorProtocol:
    """``read`` has checked that its file is inside the directory. onnx_ir would refuse one that has other names too (hard links),
    as caches and backups give them; without a directory it looks at nothing."""
    place = path.parent.joinpath(tensor.location).resolve()
    return ir.external_data.convert_tensors_from_external([ir.ExternalTensor(
        str(place), tensor.offset, tensor.length, tensor.dtype, shape=tensor.shape, name=tensor.name or "", base_dir="")])[0]


def external(model: ir.Model) -> Iterator[ir.ExternalTensor]:
    """Tensors whose data are in other files."""
    yield from (t for t in _tensors(model) if isinstance(t, ir.ExternalTensor))


def cause(error: BaseException) -> str:
    """The first line of what an error began with."""
    while error.__cause__ is not None:
        error = error.__cause__
    return next(iter(str(error).splitlines()), "") or type(error).__name__


def _no_model(why: str, path: Path) -> UsageError:
    return UsageError("E0112", f"not an ONNX model that infc can read: {why}", where=str(path), hint=CHECKER)


def _graphs(model: ir.Model) -> Iterator[ir.Graph]:
    yield from (*model.graphs(), *(f.graph for f in model.functions.values()))


def _tensors(model: ir.Model) -> Iterator[ir.TensorProtocol]:
    for graph in _graphs(model):
        yield from (v.const_value for v in graph.initializers.values() if v.const_value is not None)
        yield from (a.value for node in graph for a in node.attributes.values()
                    if a.type == ir.AttributeType.TENSOR and not a.is_ref())


def _has_type(tensor: ir.TensorProtocol) -> bool:
    try:
        return tensor.dtype != ir.DataType.UNDEFINED
    except ValueError:  # a number that is no type
        return False


def _is_void(tensor: ir.TensorProtocol) -> bool:
    """Whether a tensor of the file has elements and no data: onnx_ir reads it as zeros."""
    fields = ("raw_data", "float_data", "int32_data", "int64_data", "double_data", "uint64_data")
    return isinstance(tensor, ir.serde.TensorProtoTensor) and tensor.size > 0 and not any(getattr(tensor.raw, f) for f in fields)


def _fields(proto: onnx.ModelProto) -> Iterator[tuple[Any, Any, Any]]:
    """(message, descriptor of a field, its value) of the model and all that is in it."""
    pending: list[Any] = [proto]
    while pending:
        message = pending.pop()
        for field, value in message.ListFields():
            yield message, field, value
            if field.type == field.TYPE_MESSAGE:
                pending.extend(value if field.is_repeated else [value])


def _check_text(proto: onnx.ModelProto) -> None:
    """Raises ValueError for a name that is not UTF-8: protobuf hands such over as bytes."""
    for _, field, value in _fields(proto):
        if field.type == field.TYPE_STRING and any(isinstance(v, bytes) for v in (value if field.is_repeated else [value])):
            raise ValueError(f"{field.full_name.removeprefix('onnx.')} is not UTF-8")


def _check_places(proto: onnx.ModelProto, path: Path) -> None:
    """Raises UsageError E0113 for weights in other files whose place there is no number."""
    for message, field, entries in _fields(proto):
        if field.name != "external_data" or message.data_location != onnx.TensorProto.EXTERNAL:
            continue
        for entry in entries:
            if entry.key in ("offset", "length") and not re.fullmatch("[0-9]{1,20}", entry.value):
                raise UsageError("E0113", f"weights of '{message.name}' have the {entry.key} '{entry.value[:40]}', which is no "
                                 "number of bytes", where=str(path), hint="copy the file again, or export the model again")


def _kind(value: onnx.ValueInfoProto) -> tuple[str | None, int]:
    return value.type.WhichOneof("value"), value.type.tensor_type.elem_type


def _check_types(proto: onnx.ModelProto) -> None:
    """What is said of an input elsewhere, if anything is, is the same: a value has one type, the last one, in onnx_ir."""
    inputs = {v.name: _kind(v) for v in proto.graph.input}
    for value in (*proto.graph.output, *proto.graph.value_info):
        if _kind(value) not in (inputs.get(value.name, _kind(value)), (None, 0), ("tensor_type", 0)):
            raise ValueError(f"input '{value.name}' has two types")


def _densify(proto: onnx.ModelProto) -> None:
    """Sparse initializers and constants become dense ones: onnx_ir has none."""
    for tensor in proto.graph.sparse_initializer:
        proto.graph.initializer.append(_dense(tensor))
    del proto.graph.sparse_initializer[:]
    for node in proto.graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.SPARSE_TENSOR and node.op_type == "Constant":
                attribute.CopyFrom(onnx.helper.make_attribute("value", _dense(attribute.sparse_tensor)))


def _dense(tensor: onnx.SparseTensorProto) -> onnx.TensorProto:
    values, indices, dims = numpy_helper.to_array(tensor.values), numpy_helper.to_array(tensor.indices), tuple(tensor.dims)
    if any(d < 0 for d in dims) or math.prod(dims) * values.itemsize > _LARGEST_SPARSE:
        raise ValueError(f"sparse tensor '{tensor.values.name}' is too large: {list(dims)}")
    dense = np.zeros(dims, values.dtype)
    places = indices if indices.ndim == 1 else np.ravel_multi_index(tuple(indices.T), dims)
    dense.reshape(-1)[places] = values
    return numpy_helper.from_array(dense, tensor.values.name)


def _check_operators(model: ir.Model, path: Path) -> None:
    own = {(f.domain, f.name) for f in model.functions.values()}
    for node in model.graph.all_nodes():
        if node.domain == refusals.TRAINING_DOMAIN:
            raise refusals.refusal(refusals.TRAINING, f"node '{node.name}'", f"{node.domain}::{node.op_type}")
        if node.op_type == "SimplifiedLayerNormalization" and node.domain == "":
            node.domain = RUNTIME_DOMAIN  # ONNX Runtime's too, whatever the file says
        version = _version(model, node)
        if node.op_type == "LayerNormalization" and node.domain == "":
            version = _NEWEST  # ONNX Runtime had it before ONNX did, and its optimizer writes it to files of any opset
        standard = node.domain in ("", "ai.onnx.ml", "ai.onnx.preview") and onnx.defs.has(node.op_type, version, node.domain)
        if not standard and node.domain != RUNTIME_DOMAIN and (node.domain, node.op_type) not in own:
            kind = f"{node.domain}::{node.op_type}" if node.domain else node.op_type
            if onnx.defs.has(node.op_type, node.domain):
                raise _no_model(f"{kind} of node '{node.name}' is newer than its opset, {version}", path)
            raise UnsupportedError("E0401", f"{kind} is not an operator of ONNX",
                                   where=f"node '{node.name}'", hint="export the model with ONNX's own operators")


def _version(model: ir.Model, node: ir.Node) -> int:
    """Of the node's operators; the newest where the file names none, or one that is refused later."""
    version = model.opset_imports.get(node.domain) or _NEWEST
    return version if 0 < version <= _NEWEST else _NEWEST


def _check_attributes(model: ir.Model, path: Path) -> None:
    """Attributes have the type that ONNX gives them: passes read them as such."""
    for node in model.graph.all_nodes():
        version = _version(model, node)
        if not onnx.defs.has(node.op_type, version, node.domain):
            continue
        schema = onnx.defs.get_schema(node.op_type, version, node.domain)
        known = {name: ir.AttributeType(a.type.value) for name, a in schema.attributes.items()}  # type: ignore[attr-defined]
        for name, attribute in node.attributes.items():
            if name in known and attribute.type != known[name]:
                raise _no_model(f"attribute '{name}' of node '{node.name}' ({node.op_type}) is of the type {attribute.type.name}, "
                                f"not {known[name].name}", path)
            large = [i for i in _integers(attribute) if i not in _INTEGERS]
            if large and node.domain == "" and (node.op_type, name) not in _ANY_INTEGER:
                raise _no_model(f"attribute '{name}' of node '{node.name}' ({node.op_type}) is beyond 32 bits: {large[0]}", path)
            if name in _FLAGS and any(i not in (0, 1) for i in _integers(attribute)):
                raise _no_model(f"attribute '{name}' of node '{node.name}' ({node.op_type}) is neither 0 nor 1", path)
        parts = node.attributes.get("num_outputs")
        if node.op_type == "Split" and parts is not None and parts.as_int() != len(node.outputs):  # ONNX Runtime would abort
            raise _no_model(f"node '{node.name}' (Split) has {len(node.outputs)} outputs and num_outputs={parts.as_int()}", path)


def _integers(attribute: ir.Attr) -> Sequence[int]:
    if attribute.is_ref():
        return ()
    if attribute.type == ir.AttributeType.INT:
        return (attribute.as_int(),)
    return attribute.as_ints() if attribute.type == ir.AttributeType.INTS else ()


def _check_values(model: ir.Model, path: Path) -> None:
    """What nodes read and the graph gives must be made somewhere; onnx_ir makes up what is not."""
    for graph in model.graphs():
        twice = [name for name, count in Counter(v.name for v in graph.inputs).items() if count > 1]
        if twice:
            raise _no_model(f"two inputs are named '{twice[0]}'", path)
    known = {v for g in model.graphs() for v in (*g.inputs, *g.initializers.values())}
    for graph in model.graphs():
        read: list[tuple[ir.Value | None, str]] = [
            (v, f"node '{node.name}' ({node.op_type}) reads") for node in graph for v in node.inputs]
        for value, reader in (*read, *((v, "an output is") for v in graph.outputs)):
            if value is not None and value.producer() is None and value not in known:
                raise _no_model(f"{reader} '{value.name}', which nothing makes", path)


def _check_external(tensor: ir.ExternalTensor, path: Path) -> None:
    def refuse(what: str, hint: str) -> UsageError:
        return UsageError("E0113", f"weights of '{tensor.name}' {what}: {tensor.location!s}", where=str(path), hint=hint)

    root, location = path.parent.resolve(), PurePosixPath(tensor.location)
    try:
        target = root.joinpath(*location.parts).resolve()  # follows links
        inside = not location.is_absolute() and target.is_relative_to(root)
        size = target.stat().st_size if inside and target.is_file() else None
    except (OSError, ValueError, RuntimeError) as error:  # too long, a NUL character, a circle of links
        raise refuse("have a file that cannot be named", "copy the external data file beside the .onnx file") from error
    if not inside:
        raise refuse("lie outside the model's directory",
                     "put the weights beside the .onnx file and refer to them by a relative name")
    if size is None:
        raise refuse("are missing", "copy the external data file beside the .onnx file")
    if (tensor.offset or 0) < 0 or (tensor.offset or 0) + tensor.nbytes > size or tensor.length not in (None, tensor.nbytes):
        raise refuse("end beyond their file, or are not as long as their shape says",
                     "the external data file is truncated; copy it again")
