"""The operators that ONNX Runtime's optimizer writes (domain com.microsoft), in ONNX's own.

A body is written for one node, as in passes/domain.py: its attributes and optional inputs are settled. Inputs are i0, i1, …,
outputs o0, o1, …; an output that the body does not make is refused. Source: ONNX Runtime's docs/ContribOperators.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx_ir as ir
from onnx import parser

from infc.compiler.errors import UnsupportedError
from infc.passes.graph import at, attribute, dims, producer, reduced_axes

DOMAIN = "com.microsoft"
OPSET = 23


def body(node: ir.Node) -> ir.Function:
    """The node's definition. Raises UnsupportedError E0401 for an operator and E0402 for a use of one that is not known."""
    writer = BODIES.get(node.op_type)
    if writer is None:
        raise UnsupportedError("E0401", f"{DOMAIN}::{node.op_type} is not known", where=f"node '{node.name}'", node=node.name or "",
                               hint="save the model without ONNX Runtime's optimizations, or with basic ones")
    text = writer(node)
    wanted = [f"o{i}" for i, v in enumerate(node.outputs) if v.name and (v.uses() or v.is_graph_output())]
    for name in wanted:
        if f"{name} =" not in text and f"{name}," not in text:
            raise _unsupported(node, f"its output {name[1:]}")
    inputs = ", ".join(f"i{i}" for i in range(len(node.inputs)))
    outputs = ", ".join(f"o{i}" for i in range(len(node.outputs)))
    unread = (f"o{i}" for i in range(len(node.outputs)) if f"o{i} =" not in text and f"o{i}," not in text)
    text += "".join(f" \n {name} = Identity(o0)" for name in unread)
    function = ir.from_proto(parser.parse_function(
        f'<opset_import: ["" : {OPSET}], domain: "{DOMAIN}"> {node.op_type} ({inputs}) => ({outputs}) {{ {text} }}'))
    assert isinstance(function, ir.Function)
    return function


def _unsupported(node: ir.Node, what: str) -> UnsupportedError:
    return UnsupportedError("E0402", f"{DOMAIN}::{node.op_type}: {what} is not supported", where=f"node '{node.name}'",
                            node=node.name or "", hint="save the model without ONNX Runtime's optimizations, or with basic ones")


def read_masks(model: ir.Model) -> None:
    """An attention whose mask is the number of tokens a sequence, counted in a mask ``[batch, seq]``, reads that mask instead. The
    operators define such numbers for padding on the right alone, where both say the same; a mask says it to the passes too."""
    for node in model.graph.all_nodes():
        index = _MASK_AT.get(node.op_type)
        counted = _counted(at(node, index)) if node.domain == DOMAIN and index is not None else None
        if index is not None and counted is not None:
            node.replace_input_with(index, counted)


_MASK_AT = {"Attention": 3, "MultiHeadAttention": 4}


def _counted(lengths: ir.Value | None) -> ir.Value | None:
    """The mask ``[batch, seq]`` whose rows are summed."""
    total, embedding = producer(lengths, "ReduceSum"), producer(lengths, "EmbedLayerNormalization", domain=DOMAIN)
    if total is not None and reduced_axes(total) == [1] and not attribute(total, "keepdims", 1):
        mask = at(total, 0)
    else:
        mask = at(embedding, 7) if embedding is not None and lengths is embedding.outputs[1] else None
    return mask if len(dims(mask) or ()) == 2 else None


# --- pieces -------------------------------------------------------------------------------------------------------------------


def _ints(name: str, *values: int) -> str:
    return f"{name} = Constant<value_ints=[{', '.join(map(str, values))}]>() \n"


def _float(name: str, value: float, like: str) -> str:
    return f"{name}_raw = Constant<value_float={value:.9e}>() \n {name} = CastLike({name}_raw, {like}) \n"


def _activation(node: ir.Node, x: str, y: str) -> str:
    """The activation of FusedConv and FusedGemm."""
    kind = attribute(node, "activation", "")
    alpha, beta = attribute(node, "activation_alpha"), attribute(node, "activation_beta")
    first, second = [*(attribute(node, "activation_params") or ()), alpha, beta][:2]  # a list in FusedConv
    if kind == "Clip":
        return _float("low", first, x) + _float("high", second, x) + f"{y} = Clip({x}, low, high)"
    given = {"LeakyRelu": {"alpha": first}, "HardSigmoid": {"alpha": first, "beta": second}, "Elu": {"alpha": first}}.get(kind, {})
    settings = ", ".join(f"{k}={v:.9e}" for k, v in given.items() if v is not None)
    return f"{y} = {kind or 'Identity'}{f'<{settings}>' if settings else ''}({x})"


def _settings(node: ir.Node, *names: str) -> str:
    """Attributes as they are, as text."""
    found = {n: attribute(node, n) for n in names if n in node.attributes}
    texts = [f"{n}={_text(v)}" for n, v in found.items()]
    return f"<{', '.join(texts)}>" if texts else ""


def _text(value: Any) -> str:
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, float):
        return f"{value:.9e}"
    return str(list(value)) if isinstance(value, list | tuple) else str(value)


def _places(x: str) -> str:
    """``places``: 0, 1, … along dimension 1 of x."""
    return (_ints("first", 0) + "zero = Constant<value_int=0>() \n one = Constant<value_int=1>() \n"
            f"length = Shape<start=1, end=2>({x}) \n size = Squeeze(length, first) \n places = Range(zero, size, one) \n")


def _has(node: ir.Node, index: int) -> bool:
    return at(node, index) is not None


# --- activations and products -------------------------------------------------------------------------------------------------


def _gelu(node: ir.Node) -> str:
    return 'o0 = Gelu<approximate="none">(i0)'


def _bias_gelu(node: ir.Node) -> str:
    return 'x = Add(i0, i1) \n o0 = Gelu<approximate="none">(x)'


def _fast_gelu(node: ir.Node) -> str:
    return ("x = Add(i0, i1) \n" if _has(node, 1) else "x = Identity(i0) \n") + 'o0 = Gelu<approximate="tanh">(x)'


def _quick_gelu(node: ir.Node) -> str:
    return _float("alpha", attribute(node, "alpha", 1.702), "i0") + "a = Mul(i0, alpha) \n s = Sigmoid(a) \n o0 = Mul(i0, s)"


def _fused_mat_mul(node: ir.Node) -> str:
    """transBatch: the operand's first dimension comes before the last; trans: its last two are swapped, then."""
    text = ""
    for index, name in ((0, "A"), (1, "B")):
        shape = dims(at(node, index))
        if shape is None:
            raise _unsupported(node, "an operand of unknown rank")
        order = list(range(len(shape)))
        if attribute(node, f"transBatch{name}", 0):
            order = [*order[1:-1], 0, order[-1]]
        if attribute(node, f"trans{name}", 0) and len(order) > 1:
            order[-2:] = order[-1], order[-2]
        text += f"m{index} = Transpose<perm={order}>(i{index}) \n" if order else f"m{index} = Identity(i{index}) \n"
    return text + "p = MatMul(m0, m1) \n" + _float("alpha", attribute(node, "alpha", 1.0), "p") + "o0 = Mul(p, alpha)"


def _fused_gemm(node: ir.Node) -> str:
    settings = _settings(node, "alpha", "beta", "transA", "transB")
    return f"p = Gemm{settings}({', '.join(f'i{i}' for i in range(len(node.inputs)))}) \n" + _activation(node, "p", "o0")


def _fused_conv(node: ir.Node) -> str:
    settings = _settings(node, "auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
    text = f"c = Conv{settings}(i0, i1{', i2' if _has(node, 2) else ''}) \n"
    return text + ("s = Add(c, i3) \n" if _has(node, 3) else "s = Identity(c) \n") + _activation(node, "s", "o0")


def _bias_add(node: ir.Node) -> str:
    return "x = Add(i0, i1) \n o0 = Add(x, i2)"


# --- norms --------------------------------------------------------------------------------------------------------------------


def _skip(node: ir.Node, bias: int) -> str:
    """The sum that SkipLayerNormalization and its like norm, which is their output 3 too. The bias is that of the product among the
    operands."""
    if not _has(node, bias):
        return "o3 = Add(i0, i1) \n"
    x, y = (1, 0) if producer(at(node, 1), "MatMul") is not None else (0, 1)
    return f"s0 = Add(i{x}, i{bias}) \n o3 = Add(s0, i{y}) \n"


def _skip_layer_norm(node: ir.Node) -> str:
    shift = ", i3" if _has(node, 3) else ""
    return _skip(node, 4) + f"o0 = LayerNormalization<axis=-1, epsilon={attribute(node, 'epsilon', 1e-12):.9e}>(o3, i2{shift})"


def _skip_rms_norm(node: ir.Node) -> str:
    return _skip(node, 3) + f"o0 = RMSNormalization<axis=-1, epsilon={attribute(node, 'epsilon', 1e-6):.9e}>(o3, i2)"


def _rms_norm(node: ir.Node) -> str:
    return f"o0 = RMSNormalization<axis={attribute(node, 'axis', -1)}, epsilon={attribute(node, 'epsilon', 1e-5):.9e}>(i0, i1)"


def _embed_layer_norm(node: ir.Node) -> str:
    """Inputs: ids, segments, tables of words, positions and segments, scale, shift, mask, positions."""
    text = "words = Gather(i2, i0) \n"
    if _has(node, 8):
        text += "places = Identity(i8) \n"
    else:
        text += _places("i0")
    text += "positions = Gather(i3, places) \n sum0 = Add(words, positions) \n"
    segments = "segments = Gather(i4, i1) \n o2 = Add(sum0, segments) \n"
    text += segments if _has(node, 1) and _has(node, 4) else "o2 = Identity(sum0) \n"
    text += f"o0 = LayerNormalization<axis=-1, epsilon={attribute(node, 'epsilon', 1e-12):.9e}>(o2, i5, i6) \n"
    if _has(node, 7):
        return text + _ints("along", 1) + "kept = Cast<to=6>(i7) \n o1 = ReduceSum<keepdims=0>(kept, along)"
    return text + "batch = Shape<start=0, end=1>(i0) \n zeros = ConstantOfShape(batch) \n o1 = Cast<to=6>(zeros)"


# --- attention ----------------------------------------------------------------------------------------------------------------


# The mask of every query, from that of one.
_ROWS = (_ints("unit", 1) + "queries = Shape<start=1, end=2>(q) \n wide = Concat<axis=0>(unit, unit, queries, unit) \n"
         "mask = Expand(row, wide) \n")


def _mask(node: ir.Node, index: int, keys: str) -> str:
    """``mask``: true where a key takes part, [batch, 1, queries, keys]. One of sizes is [batch], of padding [batch, keys]."""
    shape = dims(at(node, index))
    if shape is None or len(shape) not in (1, 2, 3):
        raise _unsupported(node, "a mask of such a rank")
    if len(shape) == 3:
        return f"given = Cast<to=9>(i{index}) \n" + _ints("heads", 1) + "mask = Unsqueeze(given, heads) \n"
    if len(shape) == 2:
        return f"given = Cast<to=9>(i{index}) \n" + _ints("inner", 1, 2) + "row = Unsqueeze(given, inner) \n" + _ROWS
    if shape[0] != (dims(at(node, 0)) or (shape[0],))[0]:
        raise _unsupported(node, "a mask of starts and ends")
    return (_places(keys) + _ints("after", 1, 2, 3)
            + f"ends = Cast<to=7>(i{index}) \n column = Unsqueeze(ends, after) \n row = Less(places, column) \n" + _ROWS)


def _attend(node: ir.Node, mask: int, bias: int, keys: str) -> str:
    """``o0`` from q, k and v, [batch, positions, heads·size] each."""
    text, last = "", ""
    if _has(node, mask):
        text, last = _mask(node, mask, keys), ", mask"
    if _has(node, bias):
        if _has(node, mask):
            text += (_float("off", attribute(node, "mask_filter_value", -10000.0), "q") + _float("on", 0.0, "q")
                     + f"hidden = Where(mask, on, off) \n whole = Add(hidden, i{bias}) \n")
            last = ", whole"
        else:
            last = f", i{bias}"
    heads, scale = attribute(node, "num_heads"), attribute(node, "scale", 0.0)
    settings = [f"q_num_heads={heads}, kv_num_heads={heads}, is_causal={int(bool(attribute(node, 'unidirectional', 0)))}"]
    settings += [f"scale={scale:.9e}"] if scale else []
    return text + f"o0 = Attention<{', '.join(settings)}>(q, k, v{last})"


def _attention(node: ir.Node) -> str:
    weight = dims(at(node, 1))
    if _has(node, 4) or attribute(node, "do_rotary", 0):
        raise _unsupported(node, "a cache, or a rotary embedding")
    if weight is None or not isinstance(weight[-1], int):
        raise _unsupported(node, "weights of unknown size")
    sizes = attribute(node, "qkv_hidden_sizes") or [weight[-1] // 3] * 3
    text = "p = MatMul(i0, i1) \n" + ("b = Add(p, i2) \n" if _has(node, 2) else "b = Identity(p) \n")
    return text + _ints("sizes", *sizes) + "q, k, v = Split<axis=-1>(b, sizes) \n" + _attend(node, 3, 5, "i0")


def _multi_head_attention(node: ir.Node) -> str:
    query, values = dims(at(node, 0)), dims(at(node, 2))
    if not (_has(node, 1) and _has(node, 2)) or any(_has(node, i) for i in (6, 7, 8, 9)) or query is None or len(query) != 3:
        raise _unsupported(node, "packed operands or a cache")
    names = ("q", "k", "v")
    if not _has(node, 3):
        text = "".join(f"{n} = Identity(i{i}) \n" for i, n in enumerate(names))
    elif isinstance(query[-1], int) and values is not None and isinstance(values[-1], int):
        text = _ints("sizes", query[-1], query[-1], values[-1]) + "bq, bk, bv = Split<axis=0>(i3, sizes) \n"
        text += "".join(f"{n} = Add(i{i}, b{n}) \n" for i, n in enumerate(names))
    else:
        raise _unsupported(node, "operands of unknown size")
    return text + _attend(node, 4, 5, "i1")


# --- quantised ----------------------------------------------------------------------------------------------------------------


def _zero(node: ir.Node, index: int) -> str:
    return f", i{index}" if _has(node, index) else ""


def _quantised_binary(op_type: str) -> Callable[[ir.Node], str]:
    """Inputs: a, its scale and zero point, b, its scale and zero point, scale and zero point of the result."""

    def text(node: ir.Node) -> str:
        return (f"a = DequantizeLinear(i0, i1{_zero(node, 2)}) \n b = DequantizeLinear(i3, i4{_zero(node, 5)}) \n"
                f"y = {op_type}(a, b) \n o0 = QuantizeLinear(y, i6{_zero(node, 7)})")

    return text


def _quantised_unary(op_type: str, *names: str) -> Callable[[ir.Node], str]:
    """Inputs: x, its scale and zero point, scale and zero point of the result."""

    def text(node: ir.Node) -> str:
        if attribute(node, "channels_last", 0):
            raise _unsupported(node, "channels last")
        return (f"x = DequantizeLinear(i0, i1{_zero(node, 2)}) \n y = {op_type}{_settings(node, *names)}(x) \n"
                f"o0 = QuantizeLinear(y, i3{_zero(node, 4)})")

    return text


def _quantised_gemm(node: ir.Node) -> str:
    """Inputs: a, its scale and zero point, b, its, a bias in steps of their product, scale and zero point of the result."""
    axis = 0 if attribute(node, "transB", 0) else 1
    text = f"a = DequantizeLinear(i0, i1{_zero(node, 2)}) \n b = DequantizeLinear<axis={axis}>(i3, i4{_zero(node, 5)}) \n"
    if _has(node, 6):
        text += "step = Mul(i1, i4) \n" + _float("alpha", attribute(node, "alpha", 1.0), "step") + "steps = Mul(step, alpha) \n"
        text += "c = DequantizeLinear<axis=0>(i6, steps) \n"
    text += f"y = Gemm{_settings(node, 'alpha', 'transA', 'transB')}(a, b{', c' if _has(node, 6) else ''}) \n"
    return text + (f"o0 = QuantizeLinear(y, i7{_zero(node, 8)})" if _has(node, 7) else "o0 = Identity(y)")


def _quantised_concat(node: ir.Node) -> str:
    """Inputs: scale and zero point of the result, then three for each operand."""
    parts = range(2, len(node.inputs), 3)
    text = "".join(f"x{i} = DequantizeLinear(i{i}, i{i + 1}, i{i + 2}) \n" for i in parts)
    return text + f"y = Concat{_settings(node, 'axis')}({', '.join(f'x{i}' for i in parts)}) \n o0 = QuantizeLinear(y, i0, i1)"


def _mat_mul_integer_to_float(node: ir.Node) -> str:
    """Inputs: a, b, their scales, their zero points, a bias."""
    text = f"p = MatMulInteger(i0, i1{', i4' if _has(node, 4) else ', ' if _has(node, 5) else ''}{_zero(node, 5)}) \n"
    text += "f = Cast<to=1>(p) \n s = Mul(i2, i3) \n y = Mul(f, s) \n"
    return text + ("o0 = Add(y, i6)" if _has(node, 6) else "o0 = Identity(y)")


def _dynamic_quantize_mat_mul(node: ir.Node) -> str:
    """Inputs: a in floats, b, its scale and zero point, a bias."""
    text = f"a, sa, za = DynamicQuantizeLinear(i0) \n p = MatMulInteger(a, i1, za{_zero(node, 3)}) \n"
    text += "f = Cast<to=1>(p) \n s = Mul(sa, i2) \n y = Mul(f, s) \n"
    return text + ("o0 = Add(y, i4)" if _has(node, 4) else "o0 = Identity(y)")


def _same(op_type: str, *names: str) -> Callable[[ir.Node], str]:
    """ONNX took the operator in."""
    return lambda node: f"o0 = {op_type}{_settings(node, *names)}({', '.join(f'i{i}' for i in range(len(node.inputs)))})"


BODIES: dict[str, Callable[[ir.Node], str]] = {
    "Attention": _attention,
    "BiasAdd": _bias_add,
    "BiasGelu": _bias_gelu,
    "DynamicQuantizeMatMul": _dynamic_quantize_mat_mul,
    "DequantizeLinear": _same("DequantizeLinear", "axis", "block_size"),
    "EmbedLayerNormalization": _embed_layer_norm,
    "FastGelu": _fast_gelu,
    "FusedConv": _fused_conv,
    "FusedGemm": _fused_gemm,
    "FusedMatMul": _fused_mat_mul,
    "Gelu": _gelu,
    "MatMulIntegerToFloat": _mat_mul_integer_to_float,
    "MultiHeadAttention": _multi_head_attention,
    "QGemm": _quantised_gemm,
    "QLinearAdd": _quantised_binary("Add"),
    "QLinearAveragePool": _quantised_unary("AveragePool", "auto_pad", "ceil_mode", "count_include_pad", "kernel_shape", "pads",
                                           "strides"),
    "QLinearConcat": _quantised_concat,
    "QLinearGlobalAveragePool": _quantised_unary("GlobalAveragePool"),
    "QLinearLeakyRelu": _quantised_unary("LeakyRelu", "alpha"),
    "QLinearMul": _quantised_binary("Mul"),
    "QLinearSigmoid": _quantised_unary("Sigmoid"),
    "QLinearSoftmax": _quantised_unary("Softmax", "axis"),
    "QuantizeLinear": _same("QuantizeLinear", "axis", "block_size"),
    "QuickGelu": _quick_gelu,
    "SimplifiedLayerNormalization": _rms_norm,
    "SkipLayerNormalization": _skip_layer_norm,
    "SkipSimplifiedLayerNormalization": _skip_rms_norm,
    "TransposeMatMul": _fused_mat_mul,
    "Trilu": _same("Trilu", "upper"),
}
