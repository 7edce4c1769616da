"""Attention as TensorRT takes it.

It has fused kernels in f16 and bf16, for heads of 9 to 256 numbers. The parser takes one output, grouped heads, the 3-D form,
a scale, and either a mask or causality. So caches of keys and values are joined outside, causality becomes part of a mask, and the
rest is written out: a query whose keys are all masked gives zeros, as ONNX defines it. Batch and lengths may be named dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from infc.plugins.tensorrt.legalise.graph import add_constant, at, attribute, emit, ints, name_of, replace

HEADS = range(9, 257)
Dims = tuple[Any, ...]  # numbers, and names where the graph is not static
Q, K, V, MASK, PAST_K, PAST_V, NONPAD = range(7)


def rewrite_attention(node: ir.Node, fused: bool) -> list[str]:
    """Rewrites one Attention; ``fused`` if the type has kernels. Says why it was written out, if it was for another reason."""
    builder = _Attention(node)
    if any(at(node, i) is not None for i in (PAST_K, PAST_V)) or any(_is_used(o) for o in node.outputs[1:]):
        builder.split_heads()
        builder.join_past()
    builder.mask_future(fused)
    reason = builder.unfusable()
    if fused and not reason:
        builder.keep()
        return []
    builder.split_heads()
    builder.write_out()
    return [f"attention is not fused: {reason}"] if fused else []


def _is_used(value: ir.Value) -> bool:
    return bool(value.uses()) or value.is_graph_output()


class _Attention:
    """The parts of an Attention that is being rewritten; ``q``, ``k`` and ``v`` are [batch, seq, heads * size] or, after
    ``split_heads``, [batch, heads, seq, size]."""

    def __init__(self, node: ir.Node) -> None:
        assert isinstance(node.graph, ir.Graph)
        self.node, self.graph, self.name = node, node.graph, name_of(node)
        q, k, v = node.inputs[:3]
        assert q is not None
        assert k is not None
        assert v is not None
        self.q, self.k, self.v = q, k, v
        self.dtype = q.dtype
        self.mask = at(node, MASK)
        if self.mask is not None and self.mask.dtype not in (ir.DataType.BOOL, q.dtype):  # ONNX lets them differ
            self.mask = self.add("Cast", [self.mask], self.shape(self.mask), "mask", to=q.dtype)
        self.causal = bool(attribute(node, "is_causal", 0))
        self.is_flat = len(self.shape(q)) == 3
        self.has_past = False
        if self.is_flat:
            self.heads = (attribute(node, "q_num_heads"), attribute(node, "kv_num_heads"))
            self.size = self.shape(q)[2] // self.heads[0]
        else:
            self.heads = (self.shape(q)[1], self.shape(k)[1])
            self.size = self.shape(q)[3]
        self.scale = attribute(node, "scale") or self.size ** -0.5

    @staticmethod
    def shape(value: ir.Value) -> Dims:
        assert value.shape is not None  # by lint
        return tuple(value.shape)

    @property
    def value_size(self) -> int:
        width: int = self.shape(self.v)[-1]
        return width // self.heads[1] if self.is_flat else width

    def add(self, op_type: str, inputs: Sequence[ir.Value | None], shape: Dims, name: str, **attributes: object) -> ir.Value:
        return emit(self.node, op_type, inputs, self.dtype, shape, name=f"{self.name}/{name}", **attributes)

    def number(self, name: str, value: float) -> ir.Value:
        assert self.dtype is not None
        return add_constant(self.graph, f"{self.name}/{name}", np.array(value, self.dtype.numpy()))

    def split_heads(self) -> None:
        """From the 3-D form to the 4-D one."""
        if not self.is_flat:
            return
        kv = self.heads[1]
        self.q = self._split(self.q, self.heads[0], "q")
        self.k, self.v = self._split(self.k, kv, "k"), self._split(self.v, kv, "v")
        self.is_flat = False

    def _split(self, value: ir.Value, heads: int, name: str) -> ir.Value:
        batch, seq, width = self.shape(value)
        apart = [value, ints(self.graph, (0, 0, heads, width // heads))]
        value = self.add("Reshape", apart, (batch, seq, heads, width // heads), f"{name}_apart")
        return self.add("Transpose", [value], (batch, heads, seq, width // heads), f"{name}_heads", perm=[0, 2, 1, 3])

    def join_past(self) -> None:
        """Caches go before the new keys and values; the joined ones are the second and third output."""
        past_k, past_v = at(self.node, PAST_K), at(self.node, PAST_V)
        if past_k is not None and past_v is not None:
            self.has_past = True
            self.k, self.v = self._join(past_k, self.k, "present_key"), self._join(past_v, self.v, "present_value")
        for output, present in zip(self.node.outputs[1:3], (self.k, self.v), strict=False):
            if _is_used(output):
                copy = self.add("Identity", [present], self.shape(present), f"{output.name}/copy")
                replace(output, copy)

    def _join(self, past: ir.Value, new: ir.Value, name: str) -> ir.Value:
        (batch, heads, seq, size), cached = self.shape(new), self.shape(past)[2]
        total = seq + cached if isinstance(seq, int) and isinstance(cached, int) else None
        return self.add("Concat", [past, new], (batch, heads, total, size), name, axis=2)

    def mask_future(self, fused: bool) -> None:
        """Puts causality into the mask, where the kernel's own will not do: a query sees the cache and what is not after it."""
        queries, keys = self.shape(self.q)[-2], self.shape(self.k)[-2]
        is_square = not self.has_past and queries == keys and queries is not None
        if not self.causal or (fused and self.mask is None and is_square):
            return
        self.causal = False
        visible = self._visible(queries, keys)
        if visible is None:
            return
        if self.mask is None:
            self.mask = visible
            return
        shape = (*self.shape(self.mask)[:-2], queries, keys)
        if self.mask.dtype == ir.DataType.BOOL:
            self.mask = emit(self.node, "And", [self.mask, visible], ir.DataType.BOOL, shape, name=f"{self.name}/both")
        else:
            hidden = self.add("Where", [visible, self.number("zero", 0), self.number("minus_infinity", -np.inf)],
                              (queries, keys), "hidden")
            self.mask = self.add("Add", [self.mask, hidden], shape, "both")

    def _visible(self, queries: Any, keys: Any) -> ir.Value | None:
        """Booleans [queries, keys]; None if every query sees all keys."""
        if isinstance(queries, int) and isinstance(keys, int):
            seen = np.tri(queries, keys, keys - queries if self.has_past else 0, dtype=np.bool_)
            return None if seen.all() else add_constant(self.graph, f"{self.name}/visible", seen)
        zero, one = (add_constant(self.graph, f"infc.trt.{n}", np.array(n, np.int64)) for n in (0, 1))
        lengths = [self._integers("Squeeze", [self._integers("Shape", [x], (1,), f"{n}_shape", start=-2 + len(x.shape or ()),
                                                             end=-1 + len(x.shape or ()))], (), f"{n}_length")
                   for n, x in (("q", self.q), ("k", self.k))]
        row = self._integers("Range", [zero, lengths[0], one], (queries,), "q_range")
        if self.has_past:
            row = self._integers("Add", [row, self._integers("Sub", lengths[::-1], (), "cached")], (queries,), "q_places")
        column = self._integers("Range", [zero, lengths[1], one], (keys,), "k_range")
        row = self._integers("Unsqueeze", [row, ints(self.graph, [1])], (queries, 1), "q_column")
        return emit(self.node, "LessOrEqual", [column, row], ir.DataType.BOOL, (queries, keys), name=f"{self.name}/visible")

    def _integers(self, op_type: str, inputs: list[ir.Value], shape: Dims, name: str, **attributes: object) -> ir.Value:
        return emit(self.node, op_type, inputs, ir.DataType.INT64, shape, name=f"{self.name}/{name}", **attributes)

    def unfusable(self) -> str:
        """Why no fused kernel takes it, or nothing."""
        if self.size not in HEADS:
            return f"heads of {self.size} numbers, kernels have {HEADS.start} to {HEADS.stop - 1}"
        if self.value_size != self.size:
            return f"heads of {self.size} numbers in keys and {self.value_size} in values"
        return "softcap" if attribute(self.node, "softcap", 0.0) else ""

    def keep(self) -> None:
        """The same operator with what the parser takes."""
        attributes: dict[str, object] = {"scale": self.scale}
        if self.causal:
            attributes["is_causal"] = 1
        was_flat = len(self.shape(self.node.outputs[0])) == 3
        if self.is_flat:
            attributes |= {"q_num_heads": self.heads[0], "kv_num_heads": self.heads[1]}
        inputs = [self.q, self.k, self.v, *([self.mask] if self.mask is not None else [])]
        shape = self.shape(self.node.outputs[0]) if self.is_flat else (*self.shape(self.q)[:3], self.value_size)
        output = emit(self.node, "Attention", inputs, self.dtype, shape, name=self.name, **attributes)
        self._finish(output, was_flat and not self.is_flat)

    def write_out(self) -> None:
        """softmax(Q Kᵀ scale, capped, masked) V."""
        batch, heads, queries, size = self.shape(self.q)
        keys = self.shape(self.k)[2]
        k, v = (self._repeat(x, name) for x, name in ((self.k, "k"), (self.v, "v")))
        q = self.add("Mul", [self.q, self.number("scale", self.scale)], self.shape(self.q), "scaled")
        k = self.add("Transpose", [k], (batch, heads, size, keys), "k_transposed", perm=[0, 1, 3, 2])
        square = (batch, heads, queries, keys)
        scores = self.add("MatMul", [q, k], square, "scores")
        cap = attribute(self.node, "softcap", 0.0)
        if cap:
            number = self.number("softcap", cap)
            scores = self.add("Div", [scores, number], square, "before_cap")
            scores = self.add("Tanh", [scores], square, "tanh")
            scores = self.add("Mul", [scores, number], square, "capped")
        is_bool = self.mask is not None and self.mask.dtype == ir.DataType.BOOL
        if is_bool:
            scores = self.add("Where", [self.mask, scores, self.number("minus_infinity", -np.inf)], square, "masked")
        elif self.mask is not None:
            scores = self.add("Add", [scores, self.mask], square, "masked")
        weights = self.add("Softmax", [scores], square, "softmax", axis=-1)
        if is_bool:
            weights = self.add("Where", [self.mask, weights, self.number("zero", 0)], square, "weights")
        output = self.add("MatMul", [weights, v], (batch, heads, queries, self.value_size), "values")
        self._finish(output, len(self.shape(self.node.outputs[0])) == 3)

    def _repeat(self, value: ir.Value, name: str) -> ir.Value:
        """Grouped heads, once for each query head."""
        group = self.heads[0] // self.heads[1]
        if group == 1:
            return value
        batch, heads, seq, size = self.shape(value)
        value = self.add("Unsqueeze", [value, ints(self.graph, [2])], (batch, heads, 1, seq, size), f"{name}_one")
        wide = [value, ints(self.graph, (1, 1, group, 1, 1))]
        value = self.add("Expand", wide, (batch, heads, group, seq, size), f"{name}_group")
        flat = [value, ints(self.graph, (0, heads * group, -1, size))]
        return self.add("Reshape", flat, (batch, heads * group, seq, size), f"{name}_repeated")

    def _finish(self, output: ir.Value, join: bool) -> None:
        if join:
            shape = self.shape(self.node.outputs[0])
            batch, heads, seq, size = self.shape(output)
            output = self.add("Transpose", [output], (batch, seq, heads, size), "heads_last", perm=[0, 2, 1, 3])
            output = self.add("Reshape", [output, ints(self.graph, (0, 0, heads * size))], shape, "joined")
        replace(self.node.outputs[0], output)
