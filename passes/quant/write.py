"""Writes the Q/DQ form of one product after another."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from infc.passes.domain import DOMAIN
from infc.passes.graph import add_constant, at, attribute, channels_first, channels_last, dims, emit, owner, producer
from infc.passes.quant import scaling
from infc.passes.quant.forms import FORMS, Form
from infc.passes.quant.gptq import gptq, gptq_conv
from infc.passes.quant.kernels import keep_sums
from infc.passes.quant.numbers import FP8, KINDS, UINT4, Kind, Stored, activation_scale, store, tensor
from infc.passes.quant.patches import moments
from infc.passes.quant.plan import BLOCKS, LayerChoice
from infc.passes.quant.products import Product
from infc.passes.quant.seen import Seen
from infc.passes.quant.stored import Weight, read
from infc.passes.quant.stored import write as write_weight
from infc.passes.sparsity.two_in_four import is_sparse

Array = np.ndarray[Any, Any]
_F32, _BF16, _F16 = ir.DataType.FLOAT, ir.DataType.BFLOAT16, ir.DataType.FLOAT16


@dataclass
class Task:
    """A product that will be quantised. ``notes`` are what was left out, ``details`` what was chosen."""

    product: Product
    choice: LayerChoice
    form: Form
    actual: str
    block: int
    notes: list[str] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)
    done: list[str] = field(default_factory=list)  # methods that were applied
    error: float | None = None


class Writer:
    """Writes products; values and weights that several share once."""

    def __init__(self, seen: Seen) -> None:
        self._seen = seen
        self._activations: dict[tuple[Any, ...], ir.Value] = {}
        self._weights: dict[tuple[Any, ...], tuple[ir.Value, Stored]] = {}

    def write(self, task: Task) -> None:
        product, weight = task.product, task.product.weight
        if task.form.weight in ("bf16", "f16"):
            dequantised = self._narrow(product, _BF16 if task.form.weight == "bf16" else _F16)
        else:
            dequantised = self._integers(task)
        product.node.replace_input_with(0, self._activation(task))
        self._residual(task)
        product.node.replace_input_with(1, dequantised)
        scaling.drop(weight)

    def keep(self, node: ir.Node, choice: LayerChoice, target: str) -> str:
        """The precision of a product whose weight is stored. If integers were asked for, activations that are floats become
        integers as well, where the target computes such."""
        weight, x = read(at(node, 1)), at(node, 0)
        assert weight is not None
        assert weight.data.dtype is not None
        form = FORMS[target].get(choice.precision)
        integers = weight.data.dtype in (ir.DataType.INT4, ir.DataType.UINT4, ir.DataType.INT8, ir.DataType.UINT8)
        if (form is not None and form.activation == "rows" and integers and x is not None and node.op_type != "Conv"
                and producer(x, "DequantizeLinear", "Cast") is None and producer(x, "DequantizeRows", domain=DOMAIN) is None
                and weight.block in (0, *BLOCKS)):
            key = (x, "rows", bool(weight.block), weight.block)
            if key not in self._activations:
                name = f"{x.name}/{len(self._activations)}"
                self._activations[key] = _rows(x, node, weight.block, bool(weight.block), name)
            node.replace_input_with(0, self._activations[key])
        return _NAMES[weight.data.dtype]

    def _narrow(self, product: Product, dtype: ir.DataType) -> ir.Value:
        weight = product.weight
        key = (weight, dtype)
        if key not in self._weights:
            assert weight.const_value is not None
            name = f"{weight.name}/{dtype.name.lower()}"
            data = np.asarray(weight.const_value.numpy(), np.float32).astype(dtype.numpy())
            stored = add_constant(owner(product.node), name, tensor(data, dtype, name))
            cast = emit(product.node, "Cast", [stored], {"to": int(_F32)}, name=f"{weight.name}/dq", like=[weight])
            self._weights[key] = cast.outputs[0], _NOTHING
        return self._weights[key][0]

    def _integers(self, task: Task) -> ir.Value:
        product, form = task.product, task.form
        gram = self._gram(product) if "gptq" in task.choice.methods else None
        if "gptq" in task.choice.methods and (gram is None or form.weight == "fp8"):
            task.notes.append("gptq: it has no Gram matrix" if gram is None else "gptq is for matrices of integers")
            gram = None
        key = (product.weight, product.k_axis, form.weight, task.block, None if gram is None else product.gram)
        if key not in self._weights:
            matrix = product.matrix()
            channels = None if product.conv else self._seen.channels(product.x.name)
            importance = None if channels is None else channels.square_mean
            stored = self._rounded(task, matrix, _kind(form, matrix), gram, importance)
            shared = len(product.weight.uses()) > 1  # else nobody asks for it again
            value = _dequantise(product, stored, len(self._weights))
            self._weights[key] = value, stored if shared else _NOTHING
        else:
            value, stored = self._weights[key]
        task.done.append("rtn" if gram is None else "gptq")
        self._judge(task, stored, gram)
        return value

    def _rounded(self, task: Task, matrix: Array, kind: Kind, gram: Array | None, importance: Array | None) -> Stored:
        """The weight, by GPTQ where there is a Gram matrix, else to nearest."""
        product, known = task.product, self._seen.rounded
        if gram is None:
            stored = store(matrix, kind, task.block, importance)
            return keep_sums(stored, matrix, product.taps) if product.taps > 1 and kind.dtype == ir.DataType.INT8 else stored
        if not product.conv:
            return gptq(matrix, gram, kind, task.block, task.choice.act_order)
        key = product.gram, kind, hashlib.sha256(matrix.tobytes()).digest()  # it may have been pruned since
        if key not in known:
            known[key] = gptq_conv(matrix, gram, kind)
        made: Stored = known[key]
        return made

    def _gram(self, product: Product) -> Array | None:
        """What GPTQ needs, if it is of this product's shape."""
        gram = self._seen.gram(product.gram)
        patches = product.patches()
        wide = product.shape[0] if patches is None else patches.width
        rows = wide if patches is None else wide * patches.groups
        return gram if gram is not None and gram.shape == (rows, wide) else None

    def _judge(self, task: Task, stored: Stored, gram: Array | None) -> None:
        """The error of the weights; and bias correction, of the mean that it moves (Nagel et al., ICCV 2019, section 4.2)."""
        matrix = task.product.matrix()
        change = stored.restore()
        change -= matrix
        channels = self._seen.channels(task.product.x.name)
        if channels is None:
            task.error = _ratio(float(np.vdot(change, change)), float(np.vdot(matrix, matrix)))
            return
        groups = attribute(task.product.node, "group", 1) if task.product.conv else 1
        wide = change.shape[0] * groups == channels.mean.size * task.product.taps
        if task.product.conv and gram is not None:
            mean, square = (_columns_of(a, change.shape[1]) for a in moments(gram)[:2])
        else:
            mean, square = (_rows_of(a, task.product.taps, groups, change.shape[1]) if wide else np.zeros((1, 1), np.float32)
                            for a in (channels.mean, channels.square_mean))
        task.error = _ratio(float(np.vdot(change, square * change)), float(np.vdot(matrix, square * matrix)))
        if "bias" in task.choice.methods and wide:
            _correct(task, -(mean * change).sum(axis=0))

    def _residual(self, task: Task) -> None:
        """What a convolution adds stays in bytes too, if an earlier product reads it in them: nobody needs it in f32 then."""
        residual = at(task.product.node, 3) if task.product.node.domain == DOMAIN and task.product.conv else None
        if residual is not None and task.form.activation == "tensor" and not task.form.symmetric:
            task.product.node.replace_input_with(3, self._activations.get(_key(residual, task), residual))

    def _activation(self, task: Task) -> ir.Value:
        x, key = task.product.x, _key(task.product.x, task)
        if key not in self._activations:
            self._activations[key] = self._quantised(x, task, f"{x.name}/{len(self._activations)}")
        return self._activations[key]

    def _quantised(self, x: ir.Value, task: Task, name: str) -> ir.Value:
        form, anchor = task.form, task.product.node
        if form.activation == "":
            return x
        if form.activation == "bf16":
            narrow = emit(anchor, "Cast", [x], {"to": int(_BF16)}, name=f"{name}/bf16", like=[(_BF16, dims(x))])
            return emit(anchor, "Cast", narrow.outputs, {"to": int(_F32)}, name=f"{name}/dq", like=[x]).outputs[0]
        if form.activation == "rows":
            rows = channels_last(anchor, x, name) if task.product.conv else x
            rows = _rows(rows, anchor, task.block if form.grouped else 0, form.symmetric, name)
            return channels_first(anchor, rows, name) if task.product.conv else rows
        found = self._seen.range(x.name, form.symmetric)
        assert found is not None
        if form.activation == "fp8":
            number = max(-found[0], found[1]) / FP8.largest or 1.0
            return _tensor(x, anchor, number, np.zeros((), FP8.numpy), FP8.dtype, name)
        number, zero = activation_scale(*found, form.symmetric)
        dtype = ir.DataType.INT8 if form.symmetric else ir.DataType.UINT8
        return _tensor(x, anchor, number, np.array(zero, dtype.numpy()), dtype, name)


_NAMES = {ir.DataType.INT4: "int4", ir.DataType.UINT4: "int4", ir.DataType.INT8: "int8", ir.DataType.UINT8: "int8",
          ir.DataType.FLOAT8E4M3FN: "fp8", _BF16: "bf16", _F16: "f16"}
_NOTHING = Stored(KINDS["int8"], np.empty((0, 0)), np.empty((0, 0)), None, 0)


def _kind(form: Form, matrix: Array) -> Kind:
    """The numbers of a matrix; kernels skip zeros of those that are whole numbers."""
    kind = KINDS[form.weight]
    return UINT4 if kind.parts > 1 and is_sparse(matrix) else kind


def _key(x: ir.Value, task: Task) -> tuple[Any, ...]:
    """Products that quantise a value in the same way share what it becomes."""
    return x, task.form.activation, task.form.symmetric, task.block if task.form.grouped else 0


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _columns_of(groups: Array, n: int) -> Array:
    """``[G, K]`` for each row and column of the weight's matrix: [K, N], or [K, 1] where all columns see the same."""
    rows = groups.T.astype(np.float32)
    return rows if len(groups) == 1 else np.repeat(rows, n // len(groups), axis=1)


def _rows_of(channels: Array, taps: int, groups: int, n: int) -> Array:
    """Of each row of the weight's matrix [K, N] the number of its channel: [K, 1] where all columns see the same ones."""
    rows = np.repeat(channels.reshape(groups, -1), taps, axis=1).T
    return rows if groups == 1 else np.repeat(rows, n // groups, axis=1)


def _dequantise(product: Product, stored: Stored, number: int) -> ir.Value:
    """The f32 weight read from the stored one: blocks along K, or a scale for each output channel."""
    weight, graph, kind = product.weight, owner(product.node), stored.kind
    name = f"{weight.name}/{kind.dtype.name.lower()}" + (f".{number}" if number else "")
    k, n = stored.data.shape
    blocked = stored.block < k or kind.dtype in (ir.DataType.INT4, ir.DataType.UINT4)

    def part(array: Array, suffix: str, dtype: ir.DataType) -> ir.Value:
        laid = product.from_matrix(array) if blocked else array.reshape(n)
        return add_constant(graph, f"{name}/{suffix}", tensor(laid, dtype, f"{name}/{suffix}"))

    data = add_constant(graph, name, tensor(product.from_matrix(stored.data), kind.dtype, name))
    zero = None if stored.zero is None else part(stored.zero, "zero", kind.zero_dtype)
    place = (product.k_axis, stored.block) if blocked else (product.n_axis, 0)
    made = Weight(data, part(stored.scale, "scale", _F32), zero, kind.parts > 1, *place)
    return write_weight(made, product.node, f"{name}/dq", dims(weight) or ())


def _rows(x: ir.Value, anchor: ir.Node, group: int, symmetric: bool, name: str) -> ir.Value:
    shape = dims(x) or ()
    width = shape[-1] if shape else None
    scales = (*shape[:-1], width // group if group and isinstance(width, int) else 1)
    like: list[ir.Value | tuple[ir.DataType | None, Any]] = [
        (ir.DataType.INT8 if symmetric else ir.DataType.UINT8, shape), (_F32, scales)]
    if not symmetric:
        like.append((ir.DataType.UINT8, scales))
    q = emit(anchor, "QuantizeRows", [x], {"group": group, "symmetric": int(symmetric)}, domain=DOMAIN, name=f"{name}/q", like=like)
    return emit(anchor, "DequantizeRows", q.outputs, {"group": group}, domain=DOMAIN, name=f"{name}/dq", like=[x]).outputs[0]


def _tensor(x: ir.Value, anchor: ir.Node, scale: float, zero: Array, dtype: ir.DataType, name: str) -> ir.Value:
    graph = owner(anchor)
    parameters = [add_constant(graph, f"{name}/scale", np.array(scale, np.float32)),
                  add_constant(graph, f"{name}/zero", tensor(zero, dtype, f"{name}/zero"))]
    q = emit(anchor, "QuantizeLinear", [x, *parameters], name=f"{name}/q", like=[(dtype, dims(x))])
    return emit(anchor, "DequantizeLinear", [q.outputs[0], *parameters], name=f"{name}/dq", like=[x]).outputs[0]


def _correct(task: Task, shift: Array) -> None:
    """Adds to the product's bias, if its operator has one."""
    node = task.product.node
    bias = at(node, 2)
    if node.op_type == "MatMul" or (bias is not None and (bias.const_value is None or dims(bias) != (shift.size,))):
        task.notes.append("bias: it has none that is a constant row")
        return
    if bias is None:
        node.resize_inputs(max(3, len(node.inputs)))
        number = add_constant(owner(node), f"{node.name}/bias", shift.astype(np.float32))
        node.replace_input_with(2, number)
    else:
        scaling.derive(node, 2, lambda data: np.asarray(data + shift, np.float32))
    task.done.append("bias")
