"""RNN, GRU and LSTM: one product of all inputs, and a step that goes through the sequences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from infc.compiler.artifact.ops import RECURRENT, RECURRENT_ACTIVATION, RECURRENT_UNITS
from infc.plugins.cpu.layout import permuted
from infc.plugins.cpu.lower import Lowering, rule, word
from infc.plugins.cpu.rules.elementwise import binary
from infc.plugins.cpu.rules.linear import gemm, matmul
from infc.plugins.cpu.rules.movement import cut, reshape, transpose
from infc.plugins.cpu.values import Ref, Tensor

GATES = {"rnn": 1, "gru": 3, "lstm": 4}
FUNCTIONS = {"rnn": ["Tanh"], "gru": ["Sigmoid", "Tanh"], "lstm": ["Sigmoid", "Tanh", "Tanh"]}
# Parameters of activations that have any, where the node gives none.
ALPHAS = {"affine": 1.0, "leaky_relu": 0.01, "thresholded_relu": 1.0, "scaled_tanh": 1.0, "hard_sigmoid": 0.2, "elu": 1.0}
BETAS = {"affine": 0.0, "scaled_tanh": 1.0, "hard_sigmoid": 0.5}


@dataclass(frozen=True)
class _Layer:
    """Sizes of a node."""

    kind: str
    seq: int
    batch: int
    directions: int
    hidden: int

    @property
    def gates(self) -> int:
        return GATES[self.kind]

    @property
    def blocks(self) -> int:
        return -(-self.hidden // RECURRENT_UNITS)


def _functions(lo: Lowering, layer: _Layer) -> list[int]:
    """Words of the activations: three of two directions each, those that are not there being the first."""
    names = [n.lower() for n in lo.attribute("activations") or FUNCTIONS[layer.kind] * layer.directions]
    alphas, betas = (iter(lo.attribute(f"activation_{n}") or ()) for n in ("alpha", "beta"))
    per_direction = len(FUNCTIONS[layer.kind])
    known = {name.replace("_", ""): name for name in RECURRENT_ACTIVATION}
    if len(names) != per_direction * layer.directions or any(n not in known for n in names):
        raise lo.unsupported(f"activations {names}")
    found = []
    for name in (known[n] for n in names):
        alpha = next(alphas, ALPHAS[name]) if name in ALPHAS else 0.0
        beta = next(betas, BETAS[name]) if name in BETAS else 0.0
        found.append([RECURRENT_ACTIVATION.index(name), word(alpha), word(beta)])
    rows = [found[d * per_direction : (d + 1) * per_direction] for d in range(layer.directions)]
    return [w for row in (*rows, rows[0])[:2] for i in range(3) for w in row[i if i < per_direction else 0]]


def _biases(lo: Lowering, layer: _Layer, b: Tensor | None, keep_hidden: bool) -> tuple[Tensor | None, Tensor | None]:
    """Of all gates, [directions * gates * hidden], and of a GRU's hidden gate within the reset, [directions, hidden]."""
    width, h = layer.gates * layer.hidden, layer.hidden
    if b is None:
        return None, lo.constant(np.zeros((layer.directions, h), np.float32)) if keep_hidden else None
    if b.constant is not None:
        ours, theirs = b.constant[:, :width].copy(), b.constant[:, width:].copy()
        inner = lo.constant(theirs[:, 2 * h :].copy()) if keep_hidden else None
        if keep_hidden:
            theirs[:, 2 * h :] = 0
        return lo.constant((ours + theirs).reshape(-1)), inner
    if keep_hidden:
        total = lo.new("f32", (layer.directions, width))
        both = binary(lo, cut(b, 1, 0, 2 * h), cut(b, 1, width, 2 * h), "add")
        lo.copy_into(both, cut(total, 1, 0, 2 * h))
        lo.copy_into(cut(b, 1, 2 * h, h), cut(total, 1, 2 * h, h))
        return reshape(lo, total, (layer.directions * width,), (None,)), lo.dense(cut(b, 1, width + 2 * h, h))
    total = binary(lo, cut(b, 1, 0, width), cut(b, 1, width, width), "add")
    return reshape(lo, total, (layer.directions * width,), (None,)), None


def _project(lo: Lowering, layer: _Layer, x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
    """x W^T + bias: [rows of x, directions * gates * hidden]."""
    columns = layer.directions * layer.gates * layer.hidden
    if w.constant is not None:
        weight = w.constant.reshape(columns, -1).T
        fused = bias is not None and bias.constant is not None
        y = gemm(lo, x, np.ascontiguousarray(weight), bias if fused else None)
        return y if fused or bias is None else binary(lo, y, bias, "add")
    flat = reshape(lo, x, (layer.seq * layer.batch, x.dims[-1]), (None, None))
    y = matmul(lo, flat, transpose(reshape(lo, w, (columns, w.dims[-1]), (None, None)), (1, 0)))
    return y if bias is None else binary(lo, y, bias, "add")


def _packed(lo: Lowering, layer: _Layer, r: Tensor) -> Tensor:
    """R as [directions, blocks, from unit, gate, to unit in its block]."""
    n, units = layer.hidden, RECURRENT_UNITS
    shape = (layer.directions, layer.gates, n, n)
    dims = (layer.directions, layer.blocks, n, layer.gates, units)
    if r.constant is not None:
        padded = np.zeros((layer.directions, layer.gates, layer.blocks * units, n), np.float32)
        padded[:, :, :n] = r.constant.reshape(shape)
        parts = padded.reshape(layer.directions, layer.gates, layer.blocks, units, n)
        return lo.constant(np.ascontiguousarray(parts.transpose(0, 2, 4, 1, 3)))
    source = reshape(lo, r, shape, (None,) * 4)
    y = lo.new("f32", dims)
    whole, rest = divmod(n, units)
    if rest:
        lo.emit("fill", [], [Ref(y.buffer, y.dtype, (y.size,), 0, 1)], (0, 0), 1)
    for block, count, width in ((0, whole, units), (whole, 1, rest)):
        if count and width:
            part = reshape(lo, cut(source, 2, block * units, count * width), (*shape[:2], count, width, n), (None,) * 5)
            lo.copy_into(permuted(part, (0, 2, 4, 1, 3)), cut(cut(y, 1, block, count), 4, 0, width))
    return y


def _state(lo: Lowering, index: int, by_batch: bool) -> Tensor | None:
    state = lo.optional(index)
    return None if state is None else lo.dense(transpose(state, (1, 0, 2)) if by_batch else state)


def _in_order(x: Tensor) -> tuple[Tensor, bool]:
    """The sequences [seq, batch, size] so that their rows lie evenly, and whether they are [batch, seq, size] in that order."""
    other = transpose(x, (1, 0, 2))
    swap = x.rows(2) is None and other.rows(2) is not None
    return (other, True) if swap else (x, False)


@rule("RNN", "GRU", "LSTM")
def _recurrent(lo: Lowering, node: ir.Node) -> list[Tensor | None]:
    kind = node.op_type.lower()
    by_batch = bool(lo.attribute("layout", 0))
    x, w, r, b, lens = lo.want(lo.input(0), "f32"), lo.input(1), lo.input(2), lo.optional(3), lo.optional(4)
    if any(s for t in (x, w, r) for s in t.symbols):
        raise lo.unsupported("a number of sequences or steps that varies at run time")
    if any(len(t.dims) != 3 for t in (x, w, r)):
        raise lo.unsupported(f"inputs of {list(x.dims)}, {list(w.dims)} and {list(r.dims)}, each must have three dimensions")
    steps_first = transpose(x, (1, 0, 2)) if by_batch else x
    layer = _Layer(kind, steps_first.dims[0], steps_first.dims[1], r.dims[0], r.dims[2])
    if lo.attribute("hidden_size", layer.hidden) != layer.hidden:
        raise lo.unsupported(f"hidden_size {lo.attribute('hidden_size')} with weights for {layer.hidden}")
    reverse = {"forward": 0, "reverse": 1, "bidirectional": 2}[lo.attribute("direction", "forward")]
    keep_hidden = kind == "gru" and bool(lo.attribute("linear_before_reset", 0))
    rows, swapped = _in_order(steps_first)
    bias, inner = _biases(lo, layer, b, keep_hidden)
    gates = lo.dense(_project(lo, layer, rows, w, bias))
    h = _state(lo, 5, by_batch)
    c, peephole = (_state(lo, 6, by_batch), lo.optional(7)) if kind == "lstm" else (None, None)
    peephole = None if peephole is None else lo.dense(peephole)
    lens = None if lens is None else lo.dense(lo.want(lens, "i32"))
    extra = [inner, lens, h, c, peephole]
    outputs = _outputs(lo, node, layer)
    words = [RECURRENT.index(kind), layer.seq, layer.batch, layer.hidden, reverse, int(swapped),
             int(lo.attribute("input_forget", 0)), word(lo.attribute("clip", 0.0)),
             *(int(t is not None) for t in (*extra, *outputs)), *_functions(lo, layer)]
    operands: Sequence[Tensor] = [gates, _packed(lo, layer, r), *(t for t in extra if t is not None)]
    lo.emit("recurrent", [t.ref(t.dims) for t in operands], [t.ref(t.dims) for t in outputs if t is not None], words,
            layer.directions * layer.batch)
    if not by_batch:
        return list(outputs)
    orders = ((2, 0, 1, 3), (1, 0, 2), (1, 0, 2))
    return [None if t is None else transpose(t, order) for t, order in zip(outputs, orders, strict=True)]


def _outputs(lo: Lowering, node: ir.Node, layer: _Layer) -> list[Tensor | None]:
    """Those that anybody reads: Y, Y_h and Y_c."""
    state = (layer.directions, layer.batch, layer.hidden)
    shapes = ((layer.seq, *state), state, state)
    read = [v.name != "" and (bool(v.uses()) or v.is_graph_output()) for v in node.outputs] + [False] * 3
    return [lo.new("f32", shape) if wanted else None for shape, wanted in zip(shapes, read, strict=False)]
