"""Pooling over pixels whose channels are innermost: see layout.py."""

from __future__ import annotations

import onnx_ir as ir

from infc.compiler.artifact.ops import POOL
from infc.plugins.cpu.layout import channels_first, channels_last
from infc.plugins.cpu.lower import Lowering, rule, word
from infc.plugins.cpu.rules.window import Window, three, window
from infc.plugins.cpu.values import Tensor

MAX_TYPES = ("f32", "f64", "u8", "i8")


def pool(lo: Lowering, x: Tensor, w: Window, kind: str, count_pad: bool = False, p: float = 0.0, want_argmax: bool = False,
         by_column: bool = False) -> tuple[Tensor, Tensor | None]:
    """The pooled x [N, C, spatial...], and the places of the maxima, i64."""
    lo.want(x, *(MAX_TYPES if kind == "max" else ("f32",)))
    if x.symbol:
        raise lo.unsupported("images whose number is known at run time")
    x = channels_last(lo, x)
    source, _, channels = lo.matrix(x, strided=True)
    dims = (x.dims[0], *w.out, channels)
    y = lo.new(x.dtype, dims)
    argmax = lo.new("i64", dims) if want_argmax else None
    rows = y.size // channels
    ends = [n + e for n, e in zip(w.size, w.end, strict=True)]
    words = (POOL.index(kind), int(count_pad), word(p), int(want_argmax), int(by_column), *w.words(), *three(ends, 1))
    outputs = [y] if argmax is None else [y, argmax]
    lo.emit("pool", [source], [t.ref((rows, channels)) for t in outputs], words, rows)
    return channels_first(y), None if argmax is None else channels_first(argmax)


def _window(lo: Lowering, x: Tensor) -> Window:
    kernel = lo.attribute("kernel_shape")
    if not kernel or len(kernel) != len(x.dims) - 2:
        raise lo.unsupported(f"kernel_shape {kernel} for {list(x.dims)}")
    return window(lo, x.dims[2:], kernel)


@rule("MaxPool")
def _max_pool(lo: Lowering, node: ir.Node) -> list[Tensor | None]:
    x = lo.input(0)
    want = len(node.outputs) > 1 and bool(node.outputs[1].uses() or node.outputs[1].is_graph_output())
    return list(pool(lo, x, _window(lo, x), "max", want_argmax=want, by_column=bool(lo.attribute("storage_order", 0))))


@rule("AveragePool")
def _average_pool(lo: Lowering, node: ir.Node) -> Tensor:
    x = lo.input(0)
    return pool(lo, x, _window(lo, x), "average", count_pad=bool(lo.attribute("count_include_pad", 0)))[0]


@rule("LpPool")
def _lp_pool(lo: Lowering, node: ir.Node) -> Tensor:
    x = lo.input(0)
    return pool(lo, x, _window(lo, x), "lp", p=float(lo.attribute("p", 2)))[0]


@rule("GlobalLpPool")
def _global_lp_pool(lo: Lowering, node: ir.Node) -> Tensor:
    x = lo.input(0)
    return pool(lo, x, window(lo, x.dims[2:], x.dims[2:]), "lp", p=float(lo.attribute("p", 2)))[0]
