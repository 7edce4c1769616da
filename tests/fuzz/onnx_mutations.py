"""Changes to ONNX files that no exporter makes: of fields, of the graph's structure, of bytes."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import numpy as np
from onnx import AttributeProto, GraphProto, ModelProto, TensorProto, helper, numpy_helper

INTEGERS = (0, 1, -1, 2, 3, 7, 64, 255, -128, 1 << 16, 1 << 31, -(1 << 31), (1 << 31) - 1, 1 << 40, (1 << 63) - 1, -(1 << 63))
FLOATS = (0.0, -1.0, 1e-45, 3e38, float("inf"), float("-inf"), float("nan"))
NAMES = ("", "x", "\n", "a\tb", "\x1b[31m", "../../x", "ü" * 40, "%s%n", "x" * 5000, "0", "a/b\\c", "\x00y")
LOCATIONS = ("../../../../etc/passwd", "/etc/passwd", "/dev/zero", "", ".", "..", "\x00", "x" * 5000, "model.onnx", "./model.onnx")
OPERATORS = ("Identity", "Reshape", "Conv", "Loop", "If", "Gather", "LSTM", "Cast", "Resize", "NoSuchThing", "", "Concat", "Expand",
             "Tile", "ConstantOfShape", "Range", "Pad", "TopK", "MatMul", "SequenceAt", "Optional", "Slice", "QuantizeLinear")
# Operators that take each other's inputs.
ALIKE = (("Add", "Sub", "Mul", "Div", "Pow", "Mod", "Min", "Max", "PRelu", "BitShift", "And", "Less", "Where", "MatMul", "Gemm"),
         ("Abs", "Neg", "Exp", "Log", "Sqrt", "Softmax", "Reciprocal", "Gelu", "Not", "Erf", "Round", "IsNaN", "LpNormalization",
          "Hardmax", "CumSum", "Identity", "Shape", "Size", "NonZero", "Flatten", "Transpose", "Squeeze", "Sign", "Det"),
         ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceProd", "ReduceL2", "ReduceLogSumExp", "ArgMax", "Squeeze", "Unsqueeze"),
         ("Conv", "ConvTranspose", "MaxPool", "AveragePool", "LpPool", "GlobalAveragePool", "BatchNormalization",
          "InstanceNormalization", "LRN", "ConvInteger", "DeformConv", "Col2Im", "MaxRoiPool"),
         ("Gather", "GatherElements", "GatherND", "Expand", "Tile", "Reshape", "Pad", "Slice", "OneHot", "TopK", "Compress"),
         ("LSTM", "GRU", "RNN"), ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "Cast"))


def mutate(model: ModelProto, rng: random.Random) -> bytes:
    """The file with one to three changes, one time in ten of its bytes. Strings may hold what is not UTF-8 that way only.

    Most are changed once, and many in what leaves them models: what is refused at the first look tests no more than that.
    """
    if rng.random() < 0.1:
        return _bytes(model.SerializeToString(), rng)
    changed = ModelProto()
    changed.CopyFrom(model)
    if rng.random() < 0.5:  # else a declared shape is refused before anything is computed
        _forget_shapes(changed, rng)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        rng.choice(_CHANGES)(changed, rng)
    return changed.SerializeToString()


def _forget_shapes(model: ModelProto, rng: random.Random) -> None:
    """Sizes of outputs and of values within get names, which say nothing."""
    for number, value in enumerate((*model.graph.output, *model.graph.value_info)):
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            dim.dim_param = f"any{number}_{axis}"


def _bytes(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(changed) + 1)
        kind = rng.randrange(5)
        if kind == 0 and at < len(changed):
            changed[at] = rng.randrange(256)
        elif kind == 1 and at < len(changed):
            changed[at] ^= 1 << rng.randrange(8)
        elif kind == 2:
            del changed[at:at + rng.randint(1, 16)]
        elif kind == 3:
            changed[at:at] = changed[rng.randrange(len(changed) + 1):][:rng.randint(1, 64)]
        elif rng.random() < 0.2:
            del changed[at:]
    return bytes(changed)


def _graphs(graph: GraphProto) -> Iterator[GraphProto]:
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in ([attribute.g] if attribute.HasField("g") else []) + list(attribute.graphs):
                yield from _graphs(inner)


def _graph(model: ModelProto, rng: random.Random) -> GraphProto:
    return rng.choice(list(_graphs(model.graph)))


def _names(graph: GraphProto) -> list[str]:
    return [*NAMES[:4], *(n for node in graph.node for n in (*node.input, *node.output)), *(t.name for t in graph.initializer),
            *(v.name for v in (*graph.input, *graph.output))]


def _node_list(model: ModelProto, rng: random.Random) -> None:
    nodes = _graph(model, rng).node
    if not nodes:
        return
    picked, kind = rng.randrange(len(nodes)), rng.randrange(3)
    if kind == 0:
        del nodes[picked]
    elif kind == 1:
        nodes.append(nodes[picked])
    else:
        kept = list(nodes)
        rng.shuffle(kept)
        del nodes[:]
        nodes.extend(kept)


def _edge(model: ModelProto, rng: random.Random) -> None:
    graph = _graph(model, rng)
    if not graph.node:
        return
    node = rng.choice(graph.node)
    side = node.input if rng.random() < 0.7 else node.output
    kind = rng.randrange(3)
    if kind == 0 and side:
        side[rng.randrange(len(side))] = rng.choice(_names(graph))
    elif kind == 1 and side:
        del side[rng.randrange(len(side))]
    else:
        side.append(rng.choice(_names(graph)))


def _operator(model: ModelProto, rng: random.Random) -> None:
    graph = _graph(model, rng)
    if graph.node:
        node = rng.choice(graph.node)
        if rng.random() < 0.7:
            alike = next((group for group in ALIKE if node.op_type in group), OPERATORS)
            node.op_type = rng.choice(alike if rng.random() < 0.8 else OPERATORS)
        else:
            node.domain = rng.choice(("ai.onnx.ml", "com.microsoft", "ai.onnx.preview.training", "no.such", "\n"))


def _attribute(model: ModelProto, rng: random.Random) -> None:
    graph = _graph(model, rng)
    nodes = [n for n in graph.node if n.attribute] or list(graph.node)
    if not nodes:
        return
    node = rng.choice(nodes)
    if not node.attribute or rng.random() < 0.1:
        name = rng.choice(("axis", "axes", "to", "mode", "value", "body"))
        node.attribute.append(helper.make_attribute(name, rng.choice(INTEGERS)))
        return
    attribute = rng.choice(node.attribute)
    if rng.random() < 0.15:
        node.attribute.remove(attribute)
    elif rng.random() < 0.15:
        attribute.type = rng.choice(list(AttributeProto.AttributeType.values()))
    else:
        _value(attribute, rng)


def _value(attribute: AttributeProto, rng: random.Random) -> None:
    if attribute.ints:
        if rng.random() < 0.3:
            del attribute.ints[rng.randrange(len(attribute.ints)):]
        else:
            attribute.ints[rng.randrange(len(attribute.ints))] = rng.choice(INTEGERS)
    elif attribute.HasField("i"):
        attribute.i = rng.choice(INTEGERS)
    elif attribute.HasField("f"):
        attribute.f = rng.choice(FLOATS)
    elif attribute.HasField("s"):
        attribute.s = rng.choice((b"", b"\xff\xfe", b"constant", b"linear", b"x" * 5000, attribute.s + b"x"))
    elif attribute.HasField("t"):
        _tensor_field(attribute.t, rng)
    else:
        attribute.name = rng.choice(NAMES)


def _tensor(model: ModelProto, rng: random.Random) -> None:
    graph = _graph(model, rng)
    if graph.initializer:
        _tensor_field(rng.choice(graph.initializer), rng)


def _tensor_field(tensor: TensorProto, rng: random.Random) -> None:
    kind = rng.randrange(8)
    if kind == 0 and tensor.dims:
        tensor.dims[rng.randrange(len(tensor.dims))] = rng.choice(INTEGERS)
    elif kind == 1:
        tensor.dims.append(rng.choice(INTEGERS))
    elif kind == 2:
        tensor.data_type = rng.choice((*range(28), -1, 1 << 30))
    elif kind == 3:
        tensor.raw_data = tensor.raw_data[:rng.randrange(len(tensor.raw_data) + 1)] + bytes(rng.randrange(8))
    elif kind in (6, 7):
        _elements(tensor, rng)
    elif kind == 4:
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=rng.choice(LOCATIONS))
        tensor.external_data.add(key=rng.choice(("offset", "length")), value=rng.choice(("0", "-1", "1" * 30, "x", str(1 << 62))))
    else:
        tensor.name = rng.choice(NAMES)


def _elements(tensor: TensorProto, rng: random.Random) -> None:
    """Some numbers of a tensor, which stays one: of what a Reshape or a Resize reads, say."""
    try:
        array = numpy_helper.to_array(tensor).copy()
    except Exception:  # it was changed before
        return
    if array.dtype.kind not in "iuf" or not array.size:
        return
    with np.errstate(all="ignore"):
        for _ in range(rng.randint(1, 2)):
            chosen = rng.choice(INTEGERS if array.dtype.kind in "iu" else FLOATS)
            array.flat[rng.randrange(array.size)] = np.array(chosen).astype(array.dtype)
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def _interface(model: ModelProto, rng: random.Random) -> None:
    graph = _graph(model, rng)
    values = [*graph.input, *graph.output, *graph.value_info]
    if not values:
        return
    value = rng.choice(values)
    kind, dims = rng.randrange(6), value.type.tensor_type.shape.dim
    if kind == 0 and dims:
        rng.choice(dims).dim_value = rng.choice(INTEGERS)
    elif kind == 1 and dims:
        rng.choice(dims).dim_param = rng.choice(NAMES)
    elif kind == 2:
        dims.add(dim_value=rng.choice(INTEGERS))
    elif kind == 3:
        value.type.tensor_type.elem_type = rng.choice((*range(28), -1, 1 << 30))
    elif kind == 4:
        value.name = rng.choice(_names(graph))
    elif dims:
        rng.choice(dims).dim_param = rng.choice(("batch", "n", "n+1", "2*n", "seq", "-1", "n)", "n n"))
    else:
        value.ClearField("type")


def _versions(model: ModelProto, rng: random.Random) -> None:
    if rng.random() < 0.3:
        model.ir_version = rng.choice(INTEGERS)
    elif model.opset_import and rng.random() < 0.8:
        rng.choice(model.opset_import).version = rng.choice((*INTEGERS, *range(1, 27)))
    else:
        model.opset_import.add(domain=rng.choice(("", "com.microsoft", "no.such")), version=rng.choice(INTEGERS))


def _nest(model: ModelProto, rng: random.Random) -> None:
    """The whole graph within an If, many times over."""
    for _ in range(rng.choice((1, 3, 40))):
        inner = GraphProto()
        inner.CopyFrom(model.graph)
        del inner.input[:]
        model.graph.initializer.append(helper.make_tensor("condition", TensorProto.BOOL, (), [rng.random() < 0.5]))
        condition = rng.choice(_names(model.graph)) if rng.random() < 0.2 else "condition"
        node = helper.make_node("If", [condition], [v.name + "_" for v in inner.output],
                                then_branch=inner, else_branch=inner)
        if node.ByteSize() > 1 << 20:
            return
        del model.graph.node[:]
        del model.graph.initializer[:-1]
        model.graph.node.append(node)
        for value in model.graph.output:
            value.name += "_"


def _outputs(model: ModelProto, rng: random.Random) -> None:
    graph = _graph(model, rng)
    graph.output.append(helper.make_tensor_value_info(rng.choice(_names(graph)), rng.choice((1, 7, 9, 10)), None))


_CHANGES: tuple[Callable[[ModelProto, random.Random], None], ...] = (
    _node_list, _edge, _operator, _operator, *[_attribute] * 5, *[_tensor] * 5, _interface, _interface, _versions, _nest, _outputs)
