"""The operators of domain ``infc`` as ONNX functions, so that a graph that uses them runs in ONNX Runtime.

docs/domain.md defines the operators. A body is written for one node: its attributes and optional inputs are settled, and the node's
``overload`` names the body.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir
from onnx import parser

from infc.passes.graph import at, attribute

DOMAIN = "infc"
VERSION = 1
_OPSET = 23

ACTIVATIONS = {
    "": "y = Identity(x)",
    "relu": "y = Relu(x)",
    "gelu_erf": 'y = Gelu<approximate="none">(x)',
    "gelu_tanh": 'y = Gelu<approximate="tanh">(x)',
    "silu": "s = Sigmoid(x) \n y = Mul(x, s)",
    "tanh": "y = Tanh(x)",
    "sigmoid": "y = Sigmoid(x)",
    "hard_swish": "y = HardSwish(x)",
    "relu6": "l = Constant<value_float=0.0>() \n h = Constant<value_float=6.0>() \n low = CastLike(l, x) \n "
             "high = CastLike(h, x) \n y = Clip(x, low, high)",
    "quick_gelu": "c = Constant<value_float=1.702>() \n d = CastLike(c, x) \n e = Mul(x, d) \n s = Sigmoid(e) \n y = Mul(x, s)",
}


def add_functions(model: ir.Model) -> None:
    """Adds a body for each operator of the domain in use, and the opset import."""
    used = False
    for node in model.graph.all_nodes():
        if node.domain != DOMAIN:
            continue
        used = True
        body = _BODIES[node.op_type](node)
        node.overload = _overload(node)
        key = (DOMAIN, node.op_type, node.overload)
        if key not in model.functions:
            model.functions[key] = _function(node, body)
    if used:
        model.opset_imports[DOMAIN] = VERSION
        model.ir_version = max(model.ir_version or 0, 10)  # the first with overloads


def body(node: ir.Node) -> ir.Function | None:
    """What the node stands for; None of an operator that is not of the domain."""
    writer = _BODIES.get(node.op_type) if node.domain == DOMAIN else None
    return None if writer is None else _function(node, writer(node))


def strip_functions(model: ir.Model) -> None:
    """Undoes add_functions."""
    for key in [k for k in model.functions if k[0] == DOMAIN]:
        del model.functions[key]
    for node in model.graph.all_nodes():
        if node.domain == DOMAIN:
            node.overload = ""


def _overload(node: ir.Node) -> str:
    inputs = "".join("0" if v is None else "1" for v in node.inputs)
    rest = [f"{k}={a.value}" for k, a in sorted(node.attributes.items()) if k != "layer"]  # which decides no body
    return ",".join([inputs, str(len(node.outputs)), *rest])


def _function(node: ir.Node, body: str) -> ir.Function:
    inputs = ", ".join(f"i{i}" for i in range(len(node.inputs)))
    outputs = ", ".join(f"o{i}" for i in range(len(node.outputs)))
    text = f'<opset_import: ["" : {_OPSET}], domain: "{DOMAIN}"> {node.op_type} ({inputs}) => ({outputs}) {{ {body} }}'
    function = ir.from_proto(parser.parse_function(text))
    assert isinstance(function, ir.Function)
    function.overload = node.overload
    return function


def _int(name: str, *values: int) -> str:
    return f"{name} = Constant<value_ints=[{', '.join(map(str, values))}]>() \n"


def _float(name: str, value: float, like: str) -> str:
    return f"{name}_raw = Constant<value_float={value:.9e}>() \n {name} = CastLike({name}_raw, {like}) \n"


def _linear(node: ir.Node) -> str:
    bias = "p = Add(m, i2) \n" if at(node, 2) is not None else "p = Identity(m) \n"
    return "m = MatMul(i0, i1) \n" + bias + _finish(node)


def _conv(node: ir.Node) -> str:
    return _convolved(node, "i0", "i1", 2) + _finish(node)


def _convolved(node: ir.Node, x: str, w: str, bias: int) -> str:
    """``p``: the convolution, with the bias that is operand ``bias``."""
    names = ("group", "auto_pad", "dilations", "kernel_shape", "pads", "strides")
    given = [(n, attribute(node, n)) for n in names if attribute(node, n) is not None]
    text = ", ".join(f'{n}="{v}"' if isinstance(v, str) else f"{n}={list(v) if n != 'group' else v}" for n, v in given)
    last = f", i{bias}" if at(node, bias) is not None else ""
    return f"p = Conv{f'<{text}>' if text else ''}({x}, {w}{last}) \n"


def _finish(node: ir.Node, residual: int = 3, output: str = "o0", name: str = "") -> str:
    """From ``p`` to the output of Linear and Conv; ``residual`` is the number of that input, ``name`` what it is in f32."""
    some, activation, name = at(node, residual) is not None, ACTIVATIONS[attribute(node, "activation", "")], name or f"i{residual}"
    if some and attribute(node, "residual_first", 0):
        return f"x = Add(p, {name}) \n {activation} \n {output} = Identity(y)"
    return f"x = Identity(p) \n {activation} \n " + (f"{output} = Add(y, {name})" if some else f"{output} = Identity(y)")


def _groups(node: ir.Node, x: str, of: int) -> str:
    """``x`` [..., K] as ``grouped`` [..., G, group], and ``shape``, that of input ``of``, to come back to."""
    group = attribute(node, "group", 0)
    text = f"shape = Shape(i{of}) \n"
    if not group:
        return text + f"grouped = Unsqueeze({x}, next_to_last) \n"
    return (
        text
        + f"leading = Shape<start=0, end=-1>(i{of}) \n"
        + _int("tail", -1, group)
        + f"grouped_shape = Concat<axis=0>(leading, tail) \n grouped = Reshape<allowzero=1>({x}, grouped_shape) \n"
    )


# By the reciprocal, as kernels do it: the same bits. A scale whose reciprocal is beyond a float is none.
_SCALE = """
            raw_scale = Div({extent}, steps)
            tiny = Less(raw_scale, smallest)
            scale = Where(tiny, one, raw_scale)
            inverse = Reciprocal(scale)
            scaled = Mul(grouped, inverse)
            rounded = Round(scaled)
            """


def _quantize_rows(node: ir.Node) -> str:
    symmetric = attribute(node, "symmetric", 0)
    text = (
        _int("last", -1)
        + _int("next_to_last", -2)
        + _groups(node, "i0", 0)
        + _float("zero", 0.0, "i0")
        + _float("one", 1.0, "i0")
        + _float("smallest", 2.0**-126, "i0")
        + _float("steps", 127.0 if symmetric else 255.0, "i0")
    )
    if symmetric:
        text += (
            "size = Abs(grouped) \n top = ReduceMax<keepdims=1>(size, last) \n"
            + _SCALE.format(extent="top")
            + "low = Neg(steps) \n q = Clip(rounded, low, steps) \n q_grouped = Cast<to=3>(q) \n"
        )
    else:
        text += (
            """
            least = ReduceMin<keepdims=1>(grouped, last)
            most = ReduceMax<keepdims=1>(grouped, last)
            low = Min(least, zero)
            high = Max(most, zero)
            extent = Sub(high, low)
            """
            + _SCALE.format(extent="extent")
            + """
            depth = Neg(low)
            scaled_depth = Mul(depth, inverse)
            point = Round(scaled_depth)
            shifted = Add(rounded, point)
            q = Clip(shifted, zero, steps)
            q_grouped = Cast<to=2>(q)
            point_flat = Squeeze(point, last)
            o2 = Cast<to=2>(point_flat)
            """
        )
    return text + "o0 = Reshape<allowzero=1>(q_grouped, shape) \n o1 = Squeeze(scale, last)"


def _dequantize_rows(node: ir.Node) -> str:
    return _int("last", -1) + _int("next_to_last", -2) + _dequantized(node, "o0")


def _dequantized(node: ir.Node, y: str) -> str:
    """``y`` = (i0 - i2) * i1 in groups, of the scales and zeros that there are."""
    text = "wide = Cast<to=1>(i0) \n" + _groups(node, "wide", 0)
    if at(node, 2) is not None:
        text += "point = Cast<to=1>(i2) \n point_column = Unsqueeze(point, last) \n centred = Sub(grouped, point_column) \n"
    else:
        text += "centred = Identity(grouped) \n"
    return (
        text
        + "scale_column = Unsqueeze(i1, last) \n real = Mul(centred, scale_column) \n"
        + f"{y} = Reshape<allowzero=1>(real, shape) \n"
    )


def _dequantize_blocks(node: ir.Node) -> str:
    return _blocks(attribute(node, "axis", 0), attribute(node, "block_size"), ("i0", "i1", "i2"), "o0")


def _blocks(axis: int, block: int, operands: tuple[str, str, str], y: str) -> str:
    """``y`` = (data - zero / 16) * scale of a matrix, scales and zeros being for blocks along an axis."""
    data, scale, zero = operands
    sizes = ", ".join(("w_first", "w_block", "w_last") if axis == 0 else ("w_first", "w_last", "w_block"))
    return (_int("w_place", axis + 1) + _int("w_block", -1) + _float("part", 1 / 16, scale)
            + f"scaled = DequantizeLinear<axis={axis}, block_size={block}>({data}, {scale}) \n zeros = Cast<to=1>({zero}) \n "
            + f"whole = Mul(zeros, part) \n depth = Mul(whole, {scale}) \n w_column = Unsqueeze(depth, w_place) \n "
            + f"w_first = Shape<end=1>({scale}) \n w_last = Shape<start=1>({scale}) \n w_blocks = Concat<axis=0>({sizes}) \n "
            + "w_shape = Shape(scaled) \n w_grouped = Reshape(scaled, w_blocks) \n w_real = Sub(w_grouped, w_column) \n "
            + f"{y} = Reshape(w_real, w_shape) \n")


def _quantized_linear(node: ir.Node) -> str:
    text = _int("last", -1) + _int("next_to_last", -2)
    text += _dequantized(node, "a") if at(node, 1) is not None else "a = Cast<to=1>(i0) \n"
    block = attribute(node, "block", 0)
    how = f"axis=0, block_size={block}" if block else "axis=1"
    if at(node, 4) is not None:
        if attribute(node, "fine_zeros", 0) and at(node, 5) is not None:
            text += _blocks(0, block, ("i3", "i4", "i5"), "w")
        else:
            text += f"w = DequantizeLinear<{how}>(i3, i4{', i5' if at(node, 5) is not None else ''}) \n"
    else:
        text += "w = Cast<to=1>(i3) \n"
    text += "m = MatMul(a, w) \n" + ("p = Add(m, i6) \n" if at(node, 6) is not None else "p = Identity(m) \n")
    return text + _quantized_result(node)


def _quantized_conv(node: ir.Node) -> str:
    text = f"a = DequantizeLinear(i0, i1{', i2' if at(node, 2) is not None else ''}) \n"
    text += f"w = DequantizeLinear<axis=0>(i3, i4{', i5' if at(node, 5) is not None else ''}) \n"
    residual = ""
    if at(node, 10) is not None:
        residual = "r"
        text += f"r = DequantizeLinear(i7, i10{', i11' if at(node, 11) is not None else ''}) \n"
    return text + _convolved(node, "a", "w", 6) + _quantized_result(node, residual)


def _quantized_result(node: ir.Node, residual: str = "") -> str:
    """From ``p`` to the output of QuantizedLinear and QuantizedConv."""
    if at(node, 8) is None:
        return _finish(node, 7, name=residual)
    return _finish(node, 7, "o", residual) + f"\n o0 = QuantizeLinear(o, i8{', i9' if at(node, 9) is not None else ''})"


def _add_norm(node: ir.Node) -> str:
    epsilon, beta = attribute(node, "epsilon"), at(node, 3) is not None
    text = "s = Add(i0, i1) \n"
    if attribute(node, "kind") == "layer":
        text += f"o0 = LayerNormalization<axis=-1, epsilon={epsilon:.9e}>(s, i2{', i3' if beta else ''}) \n"
    else:
        text += (
            f"n = RMSNormalization<axis=-1, epsilon={epsilon:.9e}>(s, i2) \n"
            + ("o0 = Add(n, i3)" if beta else "o0 = Identity(n)")
            + "\n"
        )
    return text + ("o1 = Identity(s)" if len(node.outputs) > 1 else "")


def _l2_normalize(node: ir.Node) -> str:
    return (
        _int("axes", -1)
        + _float("epsilon", attribute(node, "epsilon"), "i0")
        + "n = ReduceL2<keepdims=1>(i0, axes) \n d = Max(n, epsilon) \n o0 = Div(i0, d)"
    )


def _embedding_sum(node: ir.Node) -> str:
    pairs = len(node.inputs) // 2
    gathers = [f"e{i} = Gather<axis=0>(i{2 * i + 1}, i{2 * i})" for i in range(pairs)]
    return " \n ".join(
        [*gathers, "s0 = Identity(e0)", *(f"s{i} = Add(s{i - 1}, e{i})" for i in range(1, pairs)), f"o0 = Identity(s{pairs - 1})"]
    )


def _attention(node: ir.Node, q: str, k: str, v: str) -> str:
    """Grouped attention over q, k, v of ``[B,S,H*d]`` into ``y``, given ``m`` that broadcasts to ``[B,Hk,H/Hk,S,S]``."""
    heads, kv_heads = attribute(node, "num_heads"), attribute(node, "kv_num_heads")
    return (
        _float("scale", attribute(node, "scale"), q)
        + _float("low", -3e38, q)
        + _float("zero", 0.0, q)
        + _int("q_shape", 0, 0, kv_heads, heads // kv_heads, -1)
        + _int("kv_shape", 0, 0, kv_heads, 1, -1)
        + _int("y_shape", 0, 0, -1)
        + f"q5 = Reshape({q}, q_shape) \n k5 = Reshape({k}, kv_shape) \n v5 = Reshape({v}, kv_shape)"
        + """
            qt = Transpose<perm=[0, 2, 3, 1, 4]>(q5)
            kt = Transpose<perm=[0, 2, 3, 4, 1]>(k5)
            vt = Transpose<perm=[0, 2, 3, 1, 4]>(v5)
            s = MatMul(qt, kt)
            scaled = Mul(s, scale)
            masked = Where(m, scaled, low)
            p = Softmax<axis=-1>(masked)
            kept = Where(m, p, zero)
            heads_first = MatMul(kept, vt)
            rows_first = Transpose<perm=[0, 3, 1, 2, 4]>(heads_first)
            y = Reshape(rows_first, y_shape)
            """
    )


def _padded_attention(node: ir.Node) -> str:
    return (
        _int("axes", 1, 2, 3)
        + "b = Cast<to=9>(i3) \n m = Unsqueeze(b, axes) \n"
        + _attention(node, "i0", "i1", "i2")
        + "o0 = Identity(y)"
    )


def _varlen_attention(node: ir.Node) -> str:
    """Each row's sequence is the number of sequence ends at or before it."""
    return (
        _int("zero_axis", 0)
        + _int("one_axis", 1)
        + _ROWS.format(x="i0", offsets="i3")
        + """
            has_ended = GreaterOrEqual(row_column, ends)
            passed = Cast<to=7>(has_ended)
            segment = ReduceSum<keepdims=0>(passed, one_axis)
            first_key = Gather<axis=0>(i4, segment)
            segment_column = Unsqueeze(segment, one_axis)
            segment_row = Unsqueeze(segment, zero_axis)
            same = Equal(segment_column, segment_row)
            first_key_column = Unsqueeze(first_key, one_axis)
            row_row = Unsqueeze(row, zero_axis)
            key = GreaterOrEqual(row_row, first_key_column)
            m = And(same, key)
            q = Unsqueeze(i0, zero_axis)
            k = Unsqueeze(i1, zero_axis)
            v = Unsqueeze(i2, zero_axis)
            """
        + _attention(node, "q", "k", "v")
        + "o0 = Squeeze(y, zero_axis)"
    )


def _cached_attention(node: ir.Node) -> str:
    """The rows, in order, are one sequence from its start: what a cache that was empty gives."""
    heads, kv_heads = attribute(node, "num_heads"), attribute(node, "kv_num_heads")
    softcap, window = attribute(node, "softcap", 0.0), attribute(node, "window", 0)
    text = (
        _int("flat", -1)
        + _int("zero_axis", 0)
        + _int("one_axis", 1)
        + _int("q_shape", 0, kv_heads, heads // kv_heads, -1)
        + _int("kv_shape", 0, kv_heads, 1, -1)
        + _int("y_shape", 0, -1)
        + _float("scale", attribute(node, "scale"), "i0")
        + _float("low", -3e38, "i0")
        + "".join(
            f"{n}_width = Shape<start=-1>({x}) \n {n}_rows_shape = Concat<axis=0>(flat, {n}_width) \n "
            f"{n}_rows = Reshape({x}, {n}_rows_shape) \n {n}_heads = Reshape({n}_rows, {'q' if n == 'q' else 'kv'}_shape) \n "
            for n, x in (("q", "i0"), ("k", "i1"), ("v", "i2"))
        )
    )
    rotated = at(node, 3) is not None
    if rotated:
        text += _int("last_axis", 3) + _rotation(node)
    q, k = ("q_turned", "k_turned") if rotated else ("q_heads", "k_heads")
    stored = _STORED[attribute(node, "cache", "f32")]
    text += stored.format(x=k, y="k_stored") + stored.format(x="v_heads", y="v_stored")
    short = _STORED["bf16" if attribute(node, "cache", "f32") == "bf16" else "f32"]  # whose products are of bf16
    text += short.format(x=q, y="q_taken") + """
            qt = Transpose<perm=[1, 2, 0, 3]>(q_taken)
            kt = Transpose<perm=[1, 2, 3, 0]>(k_stored)
            vt = Transpose<perm=[1, 2, 0, 3]>(v_stored)
            s = MatMul(qt, kt)
            scaled = Mul(s, scale)
            """
    if softcap:
        text += _float("cap", softcap, "i0") + "less = Div(scaled, cap) \n bent = Tanh(less) \n capped = Mul(bent, cap) \n"
    else:
        text += "capped = Identity(scaled) \n"
    text += """
            count64 = Shape<start=0, end=1>(q_rows)
            count = Squeeze(count64)
            zero64 = Constant<value_int=0>()
            one64 = Constant<value_int=1>()
            place = Range(zero64, count, one64)
            place_column = Unsqueeze(place, one_axis)
            place_row = Unsqueeze(place, zero_axis)
            behind = Sub(place_column, place_row)
            known = GreaterOrEqual(behind, zero64)
            """
    if window:
        text += f"window = Constant<value_int={window}>() \n near = Less(behind, window) \n m = And(known, near) \n"
    else:
        text += "m = Identity(known) \n"
    return (
        text
        + """
            masked = Where(m, capped, low)
            p = Softmax<axis=-1>(masked)
            """
        + short.format(x="p", y="p_taken")
        + """
            heads_first = MatMul(p_taken, vt)
            rows_first = Transpose<perm=[2, 0, 1, 3]>(heads_first)
            y_rows = Reshape(rows_first, y_shape)
            leading = Shape<start=0, end=-1>(i0)
            whole = Concat<axis=0>(leading, flat)
            o0 = Reshape(y_rows, whole)"""
    )


_SCALED = """
            {y}_top = Constant<value_float={most}>()
            {y}_one = Constant<value_float=1.0>()
            {y}_none = Constant<value_float=0.0>()
            {y}_size = Abs({x})
            {y}_largest = ReduceMax<keepdims=1>({y}_size, flat)
            {y}_raw = Div({y}_largest, {y}_top)
            {y}_zero = Equal({y}_raw, {y}_none)
            {y}_scale = Where({y}_zero, {y}_one, {y}_raw)
            {y}_small = Div({x}, {y}_scale)
            {y}_coded = {code}
            {y} = Mul({y}_coded, {y}_scale)
            """
# What a cache makes of keys and values, with a scale for each head of a token where elements have 8 bits.
_STORED = {
    "f32": "{y} = Identity({x}) \n",
    "bf16": "{y}_short = Cast<to=16>({x}) \n {y} = Cast<to=1>({y}_short) \n",
    "i8": _SCALED.replace("{most}", "127.0").replace("{code}", "Round({y}_small)"),
    "f8e4m3fn": _SCALED.replace("{most}", "448.0").replace("{y}_coded = {code}", "{y}_code = Cast<to=17>({y}_small) \n "
                                                           "{y}_coded = Cast<to=1>({y}_code)"),
}


def _rotation(node: ir.Node) -> str:
    """``q_turned`` and ``k_turned`` of ``q_heads`` and ``k_heads`` [T,Hk,G,d], by angles i3 and i4 of [...,R]."""
    text = (
        _int("none", 0)
        + _int("single", 1)
        + _int("double", 2)
        + _int("end", 2**62)
        + "half = Shape<start=-1>(i3) \n both = Mul(half, double) \n "
        + "turn_shape = Concat<axis=0>(flat, single, single, half) \n "
        + "cos = Reshape(i3, turn_shape) \n sin = Reshape(i4, turn_shape) \n"
    )
    for n in "qk":
        if attribute(node, "interleaved", 0):
            text += (
                f"{n}_a = Slice({n}_heads, none, both, last_axis, double) \n "
                f"{n}_b = Slice({n}_heads, single, both, last_axis, double) \n"
            )
        else:
            text += f"{n}_a = Slice({n}_heads, none, half, last_axis) \n {n}_b = Slice({n}_heads, half, both, last_axis) \n"
        text += f"""
            {n}_ac = Mul({n}_a, cos)
            {n}_bs = Mul({n}_b, sin)
            {n}_bc = Mul({n}_b, cos)
            {n}_as = Mul({n}_a, sin)
            {n}_x = Sub({n}_ac, {n}_bs)
            {n}_y = Add({n}_bc, {n}_as)
            {n}_rest = Slice({n}_heads, both, end, last_axis)
            """
        if attribute(node, "interleaved", 0):
            text += (
                f"{n}_xs = Unsqueeze({n}_x, flat) \n {n}_ys = Unsqueeze({n}_y, flat) \n "
                f"{n}_pairs = Concat<axis=-1>({n}_xs, {n}_ys) \n "
                f"{n}_lead = Shape<start=0, end=3>({n}_heads) \n {n}_joined = Concat<axis=0>({n}_lead, both) \n "
                f"{n}_mixed = Reshape({n}_pairs, {n}_joined) \n {n}_turned = Concat<axis=-1>({n}_mixed, {n}_rest) \n"
            )
        else:
            text += f"{n}_turned = Concat<axis=-1>({n}_x, {n}_y, {n}_rest) \n"
    return text


# row [T] counts rows; row_column [T,1]; ends [1,B] is where each sequence ends; starts [B] where it begins. All int32.
_ROWS = """
            rows64 = Shape<start=0, end=1>({x})
            rows_scalar64 = Squeeze(rows64)
            rows_scalar = Cast<to=6>(rows_scalar64)
            zero32 = Constant<value=int32 {{0}}>()
            one32 = Constant<value=int32 {{1}}>()
            row = Range(zero32, rows_scalar, one32)
            row_column = Unsqueeze(row, one_axis)
            from_one = Constant<value_ints=[1]>()
            to_end = Constant<value_ints=[9223372036854775807]>()
            to_last = Constant<value_ints=[-1]>()
            ends_flat = Slice({offsets}, from_one, to_end)
            ends = Unsqueeze(ends_flat, zero_axis)
            starts = Slice({offsets}, zero_axis, to_last)
            """


def _pool(node: ir.Node, rows: str) -> str:
    """Pools ``i0`` over axis 1 of ``[B,S,N]``, given bool ``keep`` ``[B,S]``."""
    kind = attribute(node, "kind")
    text = "weight_flat = CastLike(keep, i0) \n weight = Unsqueeze(weight_flat, last) \n keep_column = Unsqueeze(keep, last) \n"
    text += (
        _float("zero", 0.0, "i0") + f"kept = Where(keep_column, {rows}, zero) \n total = ReduceSum<keepdims=0>(kept, one_axis) \n"
    )
    text += "count = ReduceSum<keepdims=0>(weight, one_axis) \n"
    if kind == "sum":
        return text + "o0 = Identity(total)"
    if kind == "mean":
        return (
            text
            + _float("epsilon", attribute(node, "epsilon", 0.0), "i0")
            + "divisor = Max(count, epsilon) \n o0 = Div(total, divisor)"
        )
    return (
        text
        + _float("low", -3e38, "i0")
        + f"masked = Where(keep_column, {rows}, low) \n top = ReduceMax<keepdims=0>(masked, one_axis) \n"
        + "some = Greater(count, zero) \n o0 = Where(some, top, zero)"
    )


def _segment_pool(node: ir.Node) -> str:
    return _int("one_axis", 1) + _int("last", -1) + "keep = Cast<to=9>(i1) \n" + _pool(node, "i0")


def _segment_reduce(node: ir.Node) -> str:
    text = _int("zero_axis", 0) + _int("one_axis", 1) + _int("last", -1) + _ROWS.format(x="i0", offsets="i1")
    if attribute(node, "kind") == "first":
        return (
            text
            + _float("zero", 0.0, "i0")
            + """
            last_row = Sub(rows_scalar, one32)
            safe = Min(starts, last_row)
            picked = Gather<axis=0>(i0, safe)
            some = Less(starts, ends_flat)
            some_column = Unsqueeze(some, last)
            o0 = Where(some_column, picked, zero)"""
        )
    return (
        text
        + """
            row_row = Unsqueeze(row, zero_axis)
            ends_column = Unsqueeze(ends_flat, one_axis)
            keys_column = Unsqueeze(i2, one_axis)
            before = Less(row_row, ends_column)
            after = GreaterOrEqual(row_row, keys_column)
            keep = And(before, after)
            all_rows = Unsqueeze(i0, zero_axis)
            """
        + _pool(node, "all_rows")
    )


def _pack_tokens(node: ir.Node) -> str:
    keep_first = bool(attribute(node, "keep_first", 0))
    text = (
        _int("zero_axis", 0)
        + _int("one_axis", 1)
        + _int("flat", -1)
        + """
            is_key = Cast<to=9>(i0)
            size = Shape(i0)
            zero64 = Constant<value_int=0>()
            one64 = Constant<value_int=1>()
            seq = Gather(size, one64)
            positions = Range(zero64, seq, one64)
            first = Equal(positions, zero64)
            first_row = Unsqueeze(first, zero_axis)
            """
        + ("keep = Or(is_key, first_row)" if keep_first else "keep = Identity(is_key)")
        + """
            keep_flat = Reshape(keep, flat)
            where = NonZero(keep_flat)
            index64 = Squeeze(where, zero_axis)
            o0 = Cast<to=6>(index64)
            column64 = Mod(index64, seq)
            o1 = Cast<to=6>(column64)
            keep64 = Cast<to=7>(keep)
            counts = ReduceSum<keepdims=0>(keep64, one_axis)
            ends64 = CumSum(counts, zero64)
            offsets64 = Concat<axis=0>(zero_axis, ends64)
            o2 = Cast<to=6>(offsets64)
            starts64 = Sub(ends64, counts)
            """
    )
    if keep_first:
        return (
            text
            + """
            masked = Not(is_key)
            kept_no_key = And(masked, first_row)
            skipped_cells = Cast<to=7>(kept_no_key)
            skipped = ReduceSum<keepdims=0>(skipped_cells, one_axis)
            key_start64 = Add(starts64, skipped)
            o3 = Cast<to=6>(key_start64)"""
        )
    return text + "o3 = Cast<to=6>(starts64)"


def _pack_rows(node: ir.Node) -> str:
    return (
        _int("flat", -1)
        + """
            rest = Shape<start=2>(i0)
            shape = Concat<axis=0>(flat, rest)
            rows = Reshape(i0, shape)
            o0 = Gather<axis=0>(rows, i1)"""
    )


def _sum_until(node: ir.Node) -> str:
    value = attribute(node, "value")
    summed = "x = Identity(i0) \n"
    if value is not None:
        summed = f"raw = Constant<value_int={value}>() \n v = CastLike(raw, i0) \n e = Equal(i0, v) \n x = Not(e) \n"
    return (
        _int("flat", -1)
        + "axis = Constant<value_int=1>() \n"
        + summed
        + """
            x64 = Cast<to=7>(x)
            sums = CumSum(x64, axis)
            all = Reshape(sums, flat)
            o0 = Gather<axis=0>(all, i1)"""
    )


def _unpack_rows(node: ir.Node) -> str:
    return (
        _int("last", -1)
        + """
            size = Shape<start=0, end=2>(i2)
            rest = Shape<start=1>(i0)
            count = ReduceProd<keepdims=1>(size)
            flat_shape = Concat<axis=0>(count, rest)
            zeros = ConstantOfShape(flat_shape)
            blank = CastLike(zeros, i0)
            index64 = Cast<to=7>(i1)
            at = Unsqueeze(index64, last)
            filled = ScatterND(blank, at, i0)
            shape = Concat<axis=0>(size, rest)
            o0 = Reshape(filled, shape)"""
    )


def _grow(node: ir.Node) -> str:
    axes = range(len(attribute(node, "shape")))
    return (
        _int("axes", *axes)
        + _int("wanted", *attribute(node, "shape"))
        + _int("none", *(0 for _ in axes))
        + f"""
            size = Shape<start=0, end={len(axes)}>(i0)
            after = Sub(wanted, size)
            pads = Concat<axis=0>(none, after)
            zero_raw = Constant<value_int=0>()
            zero = CastLike(zero_raw, i0)
            o0 = Pad(i0, pads, zero, axes)"""
    )


def _crop(node: ir.Node) -> str:
    axes = range(attribute(node, "axes"))
    return (
        _int("axes", *axes)
        + _int("none", *(0 for _ in axes))
        + f"""
            ends = Shape<start=0, end={len(axes)}>(i1)
            o0 = Slice(i0, none, ends, axes)"""
    )


_BODIES: dict[str, Callable[[ir.Node], str]] = {
    "Linear": _linear,
    "Conv": _conv,
    "AddNorm": _add_norm,
    "L2Normalize": _l2_normalize,
    "EmbeddingSum": _embedding_sum,
    "PaddedAttention": _padded_attention,
    "SegmentPool": _segment_pool,
    "PackTokens": _pack_tokens,
    "PackRows": _pack_rows,
    "UnpackRows": _unpack_rows,
    "SumUntil": _sum_until,
    "VarlenAttention": _varlen_attention,
    "CachedAttention": _cached_attention,
    "SegmentReduce": _segment_reduce,
    "Grow": _grow,
    "Crop": _crop,
    "QuantizeRows": _quantize_rows,
    "DequantizeRows": _dequantize_rows,
    "DequantizeBlocks": _dequantize_blocks,
    "QuantizedLinear": _quantized_linear,
    "QuantizedConv": _quantized_conv,
}
