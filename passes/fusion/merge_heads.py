"""The projections that make query, key and value become one, and are split by heads instead of by columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from infc.passes.base import Miss, NodePass, PassResult
from infc.passes.fusion.attention import find
from infc.passes.fusion.merge_qkv import joined
from infc.passes.graph import at, attribute, constant, dims, emit, int_constant, owner, producer, replace, sole_use, split_constant

_HEADS_FIRST, _KEYS_LAST = [0, 2, 1, 3], [0, 2, 3, 1]


@dataclass
class _Projection:
    """``x`` ``[B,S,K]`` by ``weight`` ``[K,H*d]``, ``bias`` added, divided into ``heads`` of ``size`` numbers and transposed by
    ``root`` with ``perm``."""

    x: ir.Value
    weight: ir.Value
    bias: ir.Value | None
    heads: int
    size: int
    perm: list[int]
    root: ir.Node
    nodes: list[ir.Node]


class MergeHeads(NodePass):
    """MatMul by constants, Add, Reshape to heads and Transpose, three of one value that meet in an attention, become one of each
    and a Split by heads. TensorRT joins such products by itself, but adds each bias with a kernel of its own, so at least two must
    have one."""

    name = "merge_heads"
    roots: ClassVar[frozenset[str]] = frozenset({"Attention", "Softmax"})

    def run(self, model: ir.Model) -> PassResult:
        self._order = {node: i for i, node in enumerate(model.graph)}
        return super().run(model)

    def rewrite(self, node: ir.Node) -> str | None:
        if node.op_type == "Attention":
            operands: Sequence[ir.Value | None] = [at(node, i) for i in range(3)]
        else:
            found = find(node)
            operands = [] if found is None else [found.q, found.k, found.v]
        parts = [_projection(v) for v in operands]
        kept = [p for p in parts if p is not None]
        if not kept or len(kept) < len(parts):
            return None
        first = kept[0]
        if any(p.x is not first.x for p in kept):
            raise Miss(node, "query, key and value are not made from one value")
        if any(p.size != first.size or p.weight.dtype != first.weight.dtype for p in kept):
            raise Miss(node, "the heads of query, key and value differ in size or type")
        if sum(p.bias is not None for p in kept) < 2:
            return None
        return self._merge(kept)

    def _merge(self, parts: Sequence[_Projection]) -> str:
        product = min((p.nodes[-1] for p in parts), key=self._order.__getitem__)
        graph, first = owner(product), parts[0]
        name, dtype = f"{product.name}/merged", first.root.outputs[0].dtype
        nodes = [n for p in parts for n in reversed(p.nodes)]
        heads = [p.heads for p in parts]
        batch, seq, _ = dims(first.x) or (None, None, None)
        total, size = sum(heads), first.size
        widths = [h * size for h in heads]
        y = first.x
        for op_type, inputs, attributes, shape in (
            ("MatMul", [joined(graph, f"{name}/weight", [p.weight for p in parts], widths)], {}, (batch, seq, total * size)),
            ("Add", [joined(graph, f"{name}/bias", [p.bias for p in parts], widths)], {}, (batch, seq, total * size)),
            ("Reshape", [int_constant(graph, [0, 0, total, size])], {}, (batch, seq, total, size)),
            ("Transpose", [], {"perm": _HEADS_FIRST}, (batch, total, seq, size)),
        ):
            y = emit(
                product, op_type, [y, *inputs], attributes, name=f"{name}/{op_type}", like=[(dtype, shape)], sources=nodes
            ).outputs[0]
        split = emit(
            product,
            "Split",
            [y, int_constant(graph, heads)],
            {"axis": 1},
            name=f"{name}/Split",
            like=[(dtype, (batch, h, seq, size)) for h in heads],
            sources=nodes,
        )
        values = list(split.outputs)
        for i, part in enumerate(parts):
            if part.perm == _KEYS_LAST:
                perm, source = {"perm": [0, 1, 3, 2]}, part.root
                values[i] = emit(
                    product, "Transpose", [values[i]], perm, name=f"{source.name}/keys", like=source.outputs, sources=[source]
                ).outputs[0]
        for part, value in zip(parts, values, strict=True):
            replace(part.root.outputs[0], value)
        return name


def _projection(value: ir.Value | None) -> _Projection | None:
    root = producer(value, "Transpose")
    reshape = producer(at(root, 0), "Reshape") if root is not None else None
    if root is None or reshape is None:
        return None
    perm, shape = attribute(root, "perm"), dims(reshape.outputs[0])
    if perm is None or list(perm) not in (_HEADS_FIRST, _KEYS_LAST) or shape is None or len(shape) != 4:
        return None
    nodes, top = [root, reshape], producer(at(reshape, 0), "Add", "MatMul")
    bias = None
    if top is not None and top.op_type == "Add":
        sides = split_constant(top)
        if sides is None or len(dims(sides[1]) or ()) != 1:
            return None
        nodes.append(top)
        top, bias = producer(sides[0], "MatMul"), sides[1]
    if top is None:
        return None
    nodes.append(top)
    x, weight, (heads, size) = at(top, 0), at(top, 1), shape[2:]
    if x is None or weight is None or constant(weight) is None or not (isinstance(heads, int) and isinstance(size, int)):
        return None
    source = dims(x)
    if source is None or len(source) != 3 or source[:2] != shape[:2] or None in source:
        return None
    if dims(weight) != (source[2], heads * size) or (bias is not None and dims(bias) != (heads * size,)):
        return None
    if any(sole_use(n.outputs[0]) is None for n in nodes[1:]):
        return None
    return _Projection(x, weight, bias, heads, size, list(perm), root, nodes)
