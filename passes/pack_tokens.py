"""Rewrites a graph over ``[batch, seq]`` rectangles into one over the rows whose mask is not zero, so that padding is not computed.

Every value with leading dimensions ``[batch, seq]``, or ``[1, seq]`` and ``[seq]`` for what depends on the position only, gets
a packed counterpart ``[tokens, …]``. Operators that work row by row carry over; rows may meet only in PaddedAttention and
SegmentPool by one and the same mask, and where position 0 is selected. Anything else that touches a row leaves the graph as it
was, with a near miss.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from infc.passes.base import Miss, NearMiss, Pass, PassResult
from infc.passes.domain import DOMAIN
from infc.passes.graph import (
    Dims,
    add_constant,
    array,
    at,
    attribute,
    constant,
    dims,
    erase,
    inherit,
    int_constant,
    ints,
    is_op,
    scalar,
)
from infc.passes.row_rules import RULES
from infc.passes.shapes import is_clipped

TOKENS = "tokens"
PACKED = "infc.packed"  # model metadata: JSON, the packed dimension and the dimensions whose product bounds it
_SUFFIX = "/packed"


class PackTokens(Pass):
    """See the module. The match is the mask's name."""

    name = "pack_tokens"

    def run(self, model: ir.Model) -> PassResult:
        users = [n for n in model.graph if n.domain == DOMAIN and n.op_type in ("PaddedAttention", "SegmentPool")]
        if not users or PACKED in model.metadata_props:
            return PassResult(False)
        packer = None
        try:
            packer = Packer(model.graph, users)
            for node in model.graph:
                packer.visit(node)
            packer.finish()
        except Miss as miss:
            if packer is not None:
                packer.discard()
            return PassResult(False, [], [NearMiss(miss.node.name or "", miss.reason)])
        model.metadata_props[PACKED] = json.dumps({TOKENS: [packer.batch, packer.seq]})
        return PassResult(True, [packer.mask.name or ""])


@dataclass
class Row:
    """The packed counterpart of a value. ``lead`` counts the rectangle's leading dimensions: 2 for ``[batch or 1, seq, …]``, 1 for
    ``[seq, …]``; ``trailing`` is what follows; ``from_input`` says that the rectangle costs little, being made of graph inputs and
    positions row by row, and so may stay for others that read it."""

    value: ir.Value
    lead: int
    trailing: Dims
    from_input: bool = False


class Packer:
    """Makes the packed nodes beside the rectangular ones, and puts them in their place only when all went well."""

    def __init__(self, graph: ir.Graph, users: Sequence[ir.Node]) -> None:
        masks = list(dict.fromkeys(n.inputs[-1] for n in users))
        if len(masks) > 1 or masks[0] is None or not masks[0].is_graph_input():
            raise Miss(users[-1], f"rows meet by several masks: {', '.join(str(m and m.name) for m in masks)}")
        self.graph, self.mask = graph, masks[0]
        self._given = set(graph.initializers)
        shape = dims(self.mask)
        if shape is None or len(shape) != 2 or not all(isinstance(d, str) for d in shape) or shape[0] == shape[1]:
            raise Miss(users[0], f"the mask {self.mask.name} has the shape {shape}, not two symbolic dimensions")
        self.batch, self.seq = str(shape[0]), str(shape[1])
        if any(TOKENS in (dims(v) or ()) for v in graph.inputs):
            raise Miss(users[0], f"the model has a dimension '{TOKENS}' already")
        self.rows: dict[ir.Value, Row] = {}
        self._new: list[tuple[ir.Node, ir.Node]] = []  # (old node in front of which it goes, new node)
        self._anchor = next(iter(graph))
        self.replaced: list[tuple[ir.Value, ir.Value]] = []
        int32 = ir.DataType.INT32
        self._pack = self.make(
            "PackTokens",
            [self.mask],
            {"keep_first": 0},
            domain=DOMAIN,
            name="pack_tokens",
            outputs=[(int32, (TOKENS,)), (int32, (TOKENS,)), (int32, (f"{self.batch} + 1",)), (int32, (self.batch,))],
        )
        self.index, self.column, self.offsets, self.key_start = self._pack.outputs

    # --- making nodes ---

    def make(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        attributes: dict[str, Any] | None = None,
        *,
        name: str,
        domain: str = "",
        outputs: Sequence[tuple[ir.DataType | None, Dims]],
        sources: Sequence[ir.Node] = (),
    ) -> ir.Node:
        values = [
            ir.Value(
                name=f"{name}/{op_type}.{i}" if len(outputs) > 1 or sources else name,
                shape=ir.Shape(shape),
                type=None if dtype is None else ir.TensorType(dtype),
            )
            for i, (dtype, shape) in enumerate(outputs)
        ]
        node = ir.node(op_type, inputs, attributes or {}, domain=domain, outputs=values, name=name)
        if sources:
            inherit(node, sources)
        self._new.append((self._anchor, node))
        return node

    def like(
        self,
        node: ir.Node,
        inputs: Sequence[ir.Value | None],
        attributes: dict[str, Any] | None = None,
        *,
        op_type: str = "",
        trailing: Sequence[Dims] | None = None,
        lead: int = 2,
        from_input: bool = False,
    ) -> None:
        """A packed copy of ``node`` with these inputs, whose outputs are the rows of the node's."""
        given = {k: a.value for k, a in node.attributes.items()} if attributes is None else attributes
        shapes = [(dims(v) or ())[lead:] for v in node.outputs] if trailing is None else trailing
        copy = self.make(
            op_type or node.op_type,
            inputs,
            given,
            domain=node.domain,
            name=f"{node.name}{_SUFFIX}",
            sources=[node],
            outputs=[(v.dtype, (TOKENS, *s)) for v, s in zip(node.outputs, shapes, strict=True)],
        )
        for old, new, shape in zip(node.outputs, copy.outputs, shapes, strict=True):
            self.rows[old] = Row(new, lead, shape, from_input)

    # --- reading rows ---

    def is_rectangle(self, shape: Dims | None) -> bool:
        return shape is not None and shape[:2] == (self.batch, self.seq)

    def is_input(self, value: ir.Value) -> bool:
        """Whether the value is a rectangle from which rows are taken."""
        return value.is_graph_input() and self.is_rectangle(dims(value))

    def row(self, value: ir.Value | None) -> Row | None:
        """The packed counterpart, made on demand for inputs; None for a value that has no rows."""
        if value is None:
            return None
        shape = dims(value)
        if value not in self.rows and self.is_input(value):
            assert shape is not None
            packed = self.make(
                "PackRows",
                [value, self.index],
                domain=DOMAIN,
                name=f"pack_rows/{value.name}",
                outputs=[(value.dtype, (TOKENS, *shape[2:]))],
            )
            self.rows[value] = Row(packed.outputs[0], 2, shape[2:], True)
        return self.rows.get(value)

    def ids(self, row: Row) -> ir.Value:
        """A row to look up by; `column` itself where that was only cast."""
        node = row.value.producer()
        return self.column if is_op(node, "Cast") and node is not None and node.inputs[0] is self.column else row.value

    def plain(self, node: ir.Node, value: ir.Value | None, rank: int) -> ir.Value | None:
        """An operand without rows, for broadcasting against rows of ``rank`` trailing dimensions."""
        shape = dims(value)
        if value is None or (shape is not None and len(shape) <= rank):
            return value
        if shape is None or any(d != 1 for d in shape[: len(shape) - rank]):
            raise Miss(node, f"{value.name} of shape {shape} does not broadcast over rows")
        data, name = array(value), f"{value.name}/row"
        if data is not None:
            return add_constant(self.graph, name, data.reshape(data.shape[len(shape) - rank :]))
        axes = int_constant(self.graph, list(range(len(shape) - rank)))
        return self.make(
            "Squeeze",
            [value, axes],
            name=f"{node.name}/{value.name}/row",
            sources=[node],
            outputs=[(value.dtype, shape[len(shape) - rank :])],
        ).outputs[0]

    # --- the walk ---

    def visit(self, node: ir.Node) -> None:
        self._anchor = node
        if node.domain == "" and self._position_source(node):
            return
        reads = [v for v in node.inputs if v is not None and (v in self.rows or self.is_input(v))]
        if not reads:
            return
        if is_op(node, "Shape"):
            self._shape(node)
            return
        rule = RULES.get((node.domain, node.op_type))
        if rule is not None:
            rule(self, node)
        elif all(self.is_input(v) or self.rows[v].from_input for v in reads):
            pass  # computed on the rectangle of an input, as before
        else:
            raise Miss(node, f"{node.domain or 'ONNX'} {node.op_type} may mix the rows of {reads[0].name}")

    def _shape(self, node: ir.Node) -> None:
        """A shape of rows is taken from the mask."""
        value = node.inputs[0]
        assert value is not None
        if value.is_graph_input() or self.rows[value].from_input:
            return
        start, end = attribute(node, "start", 0), attribute(node, "end", len(dims(value) or ()))
        if not self.is_rectangle(dims(value)) or not 0 <= start <= end <= 2:
            raise Miss(node, f"the shape of {value.name} is read beyond batch and seq")
        copy = self.make(
            "Shape",
            [self.mask],
            {"start": start, "end": end},
            name=f"{node.name}{_SUFFIX}",
            sources=[node],
            outputs=[(ir.DataType.INT64, (end - start,))],
        )
        self.replaced.append((node.outputs[0], copy.outputs[0]))

    def _position_source(self, node: ir.Node) -> bool:
        """Positions 0 to seq - 1, as a Range or as a slice of a constant from its start."""
        out = node.outputs[0]
        shape = dims(out)
        if node.op_type == "Range" and shape == (self.seq,) and scalar(at(node, 0)) == 0 and scalar(at(node, 2)) == 1:
            self._positions(node, out, 1)
            return True
        data, axes = at(node, 0), ints(at(node, 3))
        if (
            node.op_type != "Slice"
            or constant(data) is None
            or axes is None
            or len(axes) != 1
            or ints(at(node, 1)) != [0]
            or shape is None
        ):
            return False
        axis = axes[0] % len(shape)
        steps = ints(at(node, 4)) if at(node, 4) is not None else [1]
        if axis > 1 or steps != [1] or shape[:axis] != (1,) * axis or not is_clipped(shape[axis], self.seq):
            return False
        table = array(data)
        assert table is not None
        table = table.reshape(table.shape[axis:])
        if table.ndim == 1 and table.dtype == np.int64 and (table == np.arange(len(table))).all():
            self._positions(node, out, axis + 1)
            return True
        rows = add_constant(self.graph, f"{node.name}/table", table)
        self.like(node, [rows, self.column], {"axis": 0}, op_type="Gather", lead=axis + 1, from_input=True)
        return True

    def _positions(self, node: ir.Node, out: ir.Value, lead: int) -> None:
        self.like(node, [self.column], {"to": int(out.dtype or ir.DataType.INT64)}, op_type="Cast", lead=lead, from_input=True)

    def reduce(self, node: ir.Node, row: Row, attributes: dict[str, Any], shape: Dims) -> ir.Value:
        """A SegmentReduce over the rows of each sequence."""
        operands = [row.value, self.offsets, self.key_start]
        outputs = [(node.outputs[0].dtype, shape)]
        name = f"{node.name}{_SUFFIX}"
        return self.make("SegmentReduce", operands, attributes, domain=DOMAIN, name=name, outputs=outputs, sources=[node]).outputs[
            0
        ]

    def sum_until(self, node: ir.Node, x: ir.Value, value: int | None) -> None:
        """The rows of a running sum along seq of the input ``x``, or of where it is not ``value``."""
        out, name = node.outputs[0], f"{node.name}{_SUFFIX}"
        wide = out.dtype == ir.DataType.INT64
        summed = self.make(
            "SumUntil",
            [x, self.index, self.column],
            {} if value is None else {"value": value},
            domain=DOMAIN,
            name=name if wide else f"{name}/wide",
            outputs=[(ir.DataType.INT64, (TOKENS,))],
            sources=[node],
        ).outputs[0]
        if not wide:
            summed = self.make(
                "Cast", [summed], {"to": int(out.dtype or 0)}, name=name, outputs=[(out.dtype, (TOKENS,))], sources=[node]
            ).outputs[0]
        self.rows[out] = Row(summed, 2, ())

    def select_first(self, node: ir.Node, x: ir.Value, row: Row, keeps_axis: bool) -> None:
        """``x[:, 0]``: the first row of each sequence, which then is a row even if it is masked."""
        if len(row.trailing) != 1 or not self.is_rectangle(dims(x)):
            raise Miss(node, f"position 0 is selected from {x.name} of shape {dims(x)}, not [batch, seq, N]")
        self._pack.attributes["keep_first"] = ir.AttrInt64("keep_first", 1)
        first = self.reduce(node, row, {"kind": "first", "epsilon": 0.0}, (self.batch, *row.trailing))
        if keeps_axis:
            first = self.make(
                "Unsqueeze",
                [first, int_constant(self.graph, [1])],
                name=f"{node.name}/axis",
                sources=[node],
                outputs=[(x.dtype, (self.batch, 1, *row.trailing))],
            ).outputs[0]
        self.replaced.append((node.outputs[0], first))

    # --- the end ---

    def finish(self) -> None:
        """Unpacks the outputs, then exchanges the nodes."""
        self._anchor = last = list(self.graph)[-1]
        tail = []
        for value in self.graph.outputs:
            row = self.rows.get(value)
            if row is None:
                continue
            if not self.is_rectangle(dims(value)):
                raise Miss(last, f"the output {value.name} has the shape {dims(value)}")
            if not row.from_input:
                node = self.make(
                    "UnpackRows",
                    [row.value, self.index, self.mask],
                    domain=DOMAIN,
                    name=f"unpack_rows/{value.name}",
                    outputs=[(value.dtype, dims(value) or ())],
                )
                tail.append(self._new.pop()[1])
                self.replaced.append((value, node.outputs[0]))
        old_nodes = list(self.graph)
        for anchor, node in self._new:
            anchor.prepend(node)
        for node in tail:
            last.append(node)
        for old, new in self.replaced:
            name, old.name = old.name, f"{old.name}/rows"
            new.name = name
            ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
        for node in [*reversed(old_nodes), *(n for _, n in reversed(self._new))]:
            erase(node)
        self._rename()

    def _rename(self) -> None:
        """Packed nodes and values take the names of the rectangular ones that are gone."""
        names = {n.name for n in self.graph} | {v.name for n in self.graph for v in n.outputs}
        for node in self.graph:
            if node.name and node.name.endswith(_SUFFIX) and node.name.removesuffix(_SUFFIX) not in names:
                node.name = node.name.removesuffix(_SUFFIX)
        for old, row in self.rows.items():
            producer = old.producer()
            if producer is not None and producer.graph is None and row.value.graph is self.graph and old.name not in names:
                row.value.name = old.name

    def discard(self) -> None:
        """Takes back the uses that unplaced nodes registered, and the constants made for them."""
        for _, node in self._new:
            for i in range(len(node.inputs)):
                node.replace_input_with(i, None)
        for name in [n for n in self.graph.initializers if n not in self._given]:
            del self.graph.initializers[name]
