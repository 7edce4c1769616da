"""ONNX's Attention is written out where TensorRT then needs fewer kernels, with one form of padding mask for all layers."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import onnx_ir as ir

from infc.passes.base import Miss, NodePass, PassResult
from infc.passes.fusion.attention import Found, find
from infc.passes.graph import Dims, add_constant, dims, emit, int_constant, is_op, owner, replace
from infc.passes.masks import MaskProver, hides_padding

_MASKED = -1e4  # float16 holds it, even added to a score


class WriteOutAttention(NodePass):
    """Attention without cache and causality becomes MatMul, scale, mask, Softmax, MatMul: TensorRT fuses both into one kernel, but
    only that of the latter writes the layout that the next operator reads. A mask proven to be padding becomes an addend
    ``[batch, 1, 1, seq]`` made once. A single query stays with the operator, which alone has a kernel for it."""

    name = "write_out_attention"
    roots: ClassVar[frozenset[str]] = frozenset({"Attention", "Softmax"})

    def run(self, model: ir.Model) -> PassResult:
        self._masks = MaskProver(model)
        self._addends = {n.name: n.outputs[0] for n in model.graph if is_op(n, "Unsqueeze")}
        return super().run(model)

    def rewrite(self, node: ir.Node) -> str | None:
        found = find(node)
        if found is None or len(found.masks) > 1 or (found.mask is None and node.op_type == "Softmax"):
            return None
        scores = _scores(found)
        if scores[2] == 1:
            return None
        if found.mask is None or self._masks.hides_nothing(found.mask.value, found.mask.view):
            return _write(found, scores, None)
        mask, reason = self._masks.prove(found.mask.value, hides_padding, found.mask.form, found.mask.view)
        if mask is None:
            raise Miss(node, f"the mask {found.mask.value.name} is not known to be padding: {reason}")
        if dims(mask) != (scores[0], scores[3]):
            raise Miss(node, f"the mask {mask.name} is not {scores[0]} x {scores[3]}")
        addend = self._addend(mask, found.q.dtype)
        return None if found.mask.value is addend else _write(found, scores, addend)

    def _addend(self, mask: ir.Value, dtype: ir.DataType | None) -> ir.Value:
        assert dtype is not None
        name = f"{mask.name}/addend_{dtype.name.lower()}"
        if name not in self._addends:
            self._addends[name] = _make_addend(mask, dtype, name)
        return self._addends[name]


def _scores(found: Found) -> Dims:
    """The shape of the scores ``[batch, heads, queries, keys]``."""
    root = found.nodes[-1]
    q, k, v = dims(found.q), found.key_shape(), dims(found.v)
    if q is None or k is None or v is None or not (len(q) == len(k) == len(v) == 4):
        raise Miss(root, "query, key and value are not known to be [batch, heads, seq, size]")
    if not (isinstance(q[1], int) and q[1] == k[1] == v[1]):
        raise Miss(root, f"{q[1]} heads share {k[1]} heads of keys")
    return (*q[:3], k[2])


def _make_addend(mask: ir.Value, dtype: ir.DataType, name: str) -> ir.Value:
    """0 where ``mask`` ``[batch, seq]`` is not 0 and -10⁴ elsewhere, ``[batch, 1, 1, seq]``; made where the graph begins."""
    graph, shape = mask.graph, dims(mask)
    assert isinstance(graph, ir.Graph)
    assert shape is not None
    anchor, keep = graph[0], mask
    if mask.dtype != ir.DataType.BOOL:
        boolean = ir.DataType.BOOL
        keep = emit(anchor, "Cast", [mask], {"to": boolean}, name=f"{name}/keep", like=[(boolean, shape)]).outputs[0]
    levels = [_number(graph, level, dtype) for level in (0.0, _MASKED)]
    chosen = emit(anchor, "Where", [keep, *levels], name=f"{name}/row", like=[(dtype, shape)]).outputs[0]
    like = [(dtype, (shape[0], 1, 1, shape[1]))]
    return emit(anchor, "Unsqueeze", [chosen, int_constant(graph, [1, 2])], name=name, like=like).outputs[0]


def _number(graph: ir.Graph, number: float, dtype: ir.DataType) -> ir.Value:
    return add_constant(graph, f"infc.{dtype.name.lower()}[{number:g}]", np.array(number, dtype.numpy()))


def _write(found: Found, shape: Dims, addend: ir.Value | None) -> str | None:
    root, dtype = found.nodes[-1], found.q.dtype
    assert dtype is not None

    def step(op_type: str, inputs: list[ir.Value], suffix: str, shape: Dims, **attributes: Any) -> ir.Value:
        name = f"{root.name}/{suffix}"
        return emit(root, op_type, inputs, attributes, name=name, like=[(dtype, shape)], sources=found.nodes).outputs[0]

    keys = found.k
    if not found.keys_last:
        batch, heads, seq, size = dims(found.k) or ()
        keys = step("Transpose", [keys], "keys", (batch, heads, size, seq), perm=[0, 1, 3, 2])
    scores = step("MatMul", [found.q, keys], "scores", shape)
    scores = step("Mul", [scores, _number(owner(root), found.scale, dtype)], "scaled", shape)
    if addend is not None:
        scores = step("Add", [scores, addend], "masked", shape)
    weights = step("Softmax", [scores], "weights", shape, axis=-1)
    result = emit(root, "MatMul", [weights, found.v], name=root.name or "", like=[root.outputs[0]], sources=found.nodes)
    replace(root.outputs[0], result.outputs[0])
    return result.name
