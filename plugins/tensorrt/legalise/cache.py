"""Attention over a cache: keys and values of past tokens are inputs of the engine, updated in place as its outputs.

TensorRT's KVCacheUpdate, ONNX's TensorScatter, writes a run's keys and values behind those that are there, and the output has the
input's memory. The cache of a layer has room for a whole context and one run more, since a run writes all of its profile's tokens:
those beyond the ones in use are overwritten later, and no query sees them. One sequence a run.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from infc.plugins.tensorrt.legalise.graph import add_constant, attribute, emit, ints, is_op, name_of, new_value, replace

LENGTH = "cache.length"  # [1] int64: tokens that are in the cache
NEW = ".new"  # what an output's name has more than that of the input in whose memory it is
_OPSET = 24  # of TensorScatter
_PREFIX = "infc.trt.cache"


def open_cache(model: ir.Model, capacity: int) -> tuple[str, ...]:
    """Writes the graph's CachedAttention in ONNX's operators, with inputs for caches of so many tokens; the inputs' names."""
    nodes = [n for n in model.graph if n.domain == "infc" and n.op_type == "CachedAttention"]
    if not nodes:
        return ()
    first = len(model.graph.inputs)
    model.opset_imports[""] = max(_OPSET, model.opset_imports.get("", 0))
    model.graph.inputs.append(new_value(LENGTH, ir.DataType.INT64, (1,)))
    masks: dict[int, ir.Value] = {}
    for node in nodes:
        _Layer(node, capacity).write(masks)
    return tuple(str(v.name) for v in model.graph.inputs[first:])


class _Layer:
    """One attention. Queries, keys and values are ``[tokens, 1, heads * size]``."""

    def __init__(self, node: ir.Node, capacity: int) -> None:
        assert isinstance(node.graph, ir.Graph)
        q = node.inputs[0]
        assert q is not None
        assert q.shape is not None
        self.node, self.graph, self.name, self.capacity = node, node.graph, name_of(node), capacity
        self.length = next(v for v in self.graph.inputs if v.name == LENGTH)
        self.tokens: Any = q.shape[0]
        self.dtype = q.dtype

    def write(self, masks: dict[int, ir.Value]) -> None:
        """Replaces it. ``masks``: by window, shared by layers."""
        node, heads, kv = self.node, attribute(self.node, "num_heads"), attribute(self.node, "kv_num_heads")
        window = attribute(node, "window", 0)
        if window not in masks:
            masks[window] = self._visible(window)
        q = self._apart(node.inputs[0], heads, "query")
        k, v = (self._cached(self._apart(node.inputs[i], kv, what), what) for i, what in ((1, "key"), (2, "value")))
        size = v.shape[3]  # type: ignore[index]
        y = self._add("Attention", [q, k, v, masks[window]], (1, heads, self.tokens, size), "attention",
                      scale=attribute(node, "scale"), softcap=attribute(node, "softcap", 0.0))
        y = self._add("Transpose", [y], (1, self.tokens, heads, size), "rows", perm=[0, 2, 1, 3])
        replace(node.outputs[0], self._add("Reshape", [y, ints(self.graph, (-1, 1, heads * size))],
                                           (self.tokens, 1, heads * size), "joined"))

    def _add(self, op_type: str, inputs: list[ir.Value], shape: tuple[Any, ...], name: str, **attributes: Any) -> ir.Value:
        return emit(self.node, op_type, inputs, self.dtype, shape, name=f"{self.name}/{name}", **attributes)

    def _apart(self, value: ir.Value | None, heads: int, name: str) -> ir.Value:
        """``[1, heads, tokens, size]``."""
        assert value is not None
        assert value.shape is not None
        size = int(value.shape[-1]) // heads  # type: ignore[arg-type]
        rows = self._add("Reshape", [value, ints(self.graph, (1, -1, heads, size))], (1, self.tokens, heads, size), f"{name}_apart")
        return self._add("Transpose", [rows], (1, heads, self.tokens, size), f"{name}_heads", perm=[0, 2, 1, 3])

    def _cached(self, new: ir.Value, what: str) -> ir.Value:
        """Past ones with the new ones behind them, ``[1, heads, capacity, size]``: an output of the graph."""
        assert new.shape is not None
        shape = (1, new.shape[1], self.capacity, new.shape[3])
        past = new_value(f"cache.{attribute(self.node, 'layer')}.{what}", self.dtype, shape)
        self.graph.inputs.append(past)
        joined = self._add("TensorScatter", [past, new, self.length], shape, f"{what}_cache", axis=2)
        joined.name = f"{past.name}{NEW}"
        self.graph.outputs.append(joined)
        return joined

    def _visible(self, window: int) -> ir.Value:
        """Booleans ``[tokens, capacity]``: a token sees itself and those before, or of these the last ones."""
        columns = add_constant(self.graph, f"{_PREFIX}.columns", np.arange(self.capacity, dtype=np.int64)[None])
        places = self._integers("Add", [self._numbers(), self.length], (self.tokens, 1), "places")
        shape = (self.tokens, self.capacity)
        seen = self._booleans("LessOrEqual", [columns, places], shape, "past")
        if not window:
            return seen
        before = self._integers("Sub", [places, add_constant(self.graph, f"{_PREFIX}.{window}", np.array(window, np.int64))],
                                (self.tokens, 1), "left")
        return self._booleans("And", [seen, self._booleans("Greater", [columns, before], shape, "near")], shape, "window")

    def _numbers(self) -> ir.Value:
        """``[tokens, 1]``: 0, 1, …"""
        if isinstance(self.tokens, int):
            return add_constant(self.graph, f"{_PREFIX}.tokens", np.arange(self.tokens, dtype=np.int64)[:, None])
        q = self.node.inputs[0]
        assert q is not None
        count = self._integers("Squeeze", [self._integers("Shape", [q], (1,), "shape", end=1)], (), "count")
        zero, one = (add_constant(self.graph, f"infc.trt.{n}", np.array(n, np.int64)) for n in (0, 1))
        row = self._integers("Range", [zero, count, one], (self.tokens,), "numbers")
        return self._integers("Unsqueeze", [row, ints(self.graph, [1])], (self.tokens, 1), "column")

    def _integers(self, op_type: str, inputs: list[ir.Value], shape: tuple[Any, ...], name: str, **attributes: Any) -> ir.Value:
        return emit(self.node, op_type, inputs, ir.DataType.INT64, shape, name=f"{self.name}/{name}", **attributes)

    def _booleans(self, op_type: str, inputs: list[ir.Value], shape: tuple[Any, ...], name: str) -> ir.Value:
        return emit(self.node, op_type, inputs, ir.DataType.BOOL, shape, name=f"{self.name}/{name}")


def narrow_cache(model: ir.Model) -> None:
    """After the graph was lowered: caches have the type of what is written to them, without Casts at the border."""
    for node in [n for n in model.graph if is_op(n, "TensorScatter")]:
        past, joined = node.inputs[0], node.outputs[0]
        cast = past.producer() if past is not None else None
        if cast is None or not is_op(cast, "Cast"):
            continue
        border, output = cast.inputs[0], next(u.node for u in joined.uses() if is_op(u.node, "Cast") and u.node.outputs[0]
                                              .is_graph_output()).outputs[0]
        assert border is not None
        border.type = joined.type
        node.replace_input_with(0, border)
        model.graph.remove(cast, safe=True)
        model.graph.outputs[list(model.graph.outputs).index(output)] = joined
        name, output.name = output.name, f"{output.name}/wide"
        joined.name = name
        model.graph.remove(output.producer(), safe=True)  # type: ignore[arg-type]


def closed(model: ir.Model, state: tuple[str, ...]) -> ir.Model:
    """With caches that are empty, in place: what a run of a new sequence computes."""
    graph = model.graph
    first = graph[0]
    for value in [v for v in graph.inputs if v.name in state]:
        assert value.shape is not None
        shape, zero = ints(graph, tuple(value.shape)), ir.tensor(np.zeros(1, value.dtype.numpy()))  # type: ignore[union-attr,arg-type]
        empty = emit(first, "ConstantOfShape", [shape], value.dtype, value.shape, name=f"{value.name}/empty", value=zero)
        ir.convenience.replace_all_uses_with(value, empty)
        graph.inputs.remove(value)
    graph.outputs[:] = [v for v in graph.outputs if str(v.name).removesuffix(NEW) not in state]
    return model
