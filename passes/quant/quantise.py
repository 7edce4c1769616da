"""Puts products with constant weights into the Q/DQ form: QuantizeRows or QuantizeLinear and their inverses before the product,
DequantizeLinear of a stored weight. The product itself stays the node that it is."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx_ir as ir

from infc.passes.domain import DOMAIN
from infc.passes.graph import add_constant, at, dims, emit, owner
from infc.passes.quant import balance, scaling
from infc.passes.quant.forms import Form, settle
from infc.passes.quant.gptq import gptq
from infc.passes.quant.numbers import FP8, KINDS, Stored, activation_scale, store, tensor
from infc.passes.quant.plan import Decision, LayerChoice, Plan
from infc.passes.quant.products import Product, find
from infc.passes.quant.seen import Seen
from infc.passes.quant.statistics import Statistics

Array = np.ndarray[Any, Any]
_F32, _BF16, _F16 = ir.DataType.FLOAT, ir.DataType.BFLOAT16, ir.DataType.FLOAT16
_LARGEST_F16 = 65504.0


@dataclass
class _Task:
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


def quantise(model: ir.Model, plan: Plan, statistics: Statistics | None = None, target: str = "cpu") -> list[Decision]:
    """Rewrites the graph in place and says for each product with a constant weight what became of it.

    ``plan`` names nodes; those it does not name stay f32. Weights are gone through one by one, and the f32 ones are let go.
    ``target``: cpu or tensorrt, whose rules are in forms.py. Static activations need their range, SmoothQuant and AWQ their
    channels, GPTQ their Gram matrix; without, a product stays f32, or the method is left out, and the decision says so.
    """
    seen = Seen(statistics)
    found, others = find(model)
    decisions: dict[str, Decision] = {}
    tasks = []
    for product in found:
        choice = plan.get(product.name, LayerChoice())
        form, actual, block, why = settle(product, choice, target)
        why = (why if form is None else _objection(product, form, seen)) or why
        if form is None or _objection(product, form, seen):
            decisions[product.name] = Decision(product.name, choice.precision, "f32", why)
        else:
            tasks.append(_Task(product, choice, form, actual, block, [why] if why else []))
    for name, why in others.items():
        decisions[name] = Decision(name, plan[name].precision if name in plan else "f32", "f32", why)
    _balance(tasks, seen)
    writer = _Writer(seen)
    for task in tasks:
        task.product = task.product.now()
        writer.write(task)
        decisions[task.product.name] = Decision(
            task.product.name, task.choice.precision, task.actual, "; ".join(task.notes), "+".join(task.done), task.error,
            task.details)
    return [decisions[n.name] for n in model.graph if n.name in decisions]


def _objection(product: Product, form: Form, seen: Seen) -> str:
    """Why a product cannot take the form."""
    if product.x.dtype != _F32 or product.weight.dtype != _F32:
        return f"it computes in {product.x.dtype}"
    if form.weight == "f16":
        largest = float(np.abs(product.matrix()).max())
        if not largest <= _LARGEST_F16:
            return f"a weight of {largest:.3g} is beyond float16"
    if form.activation in ("tensor", "fp8") and seen.range(product.x.name, True) is None:
        return f"the range of {product.x.name} was not calibrated"
    return ""


# --- channels -----------------------------------------------------------------------------------------------------------------


def _balance(tasks: Sequence[_Task], seen: Seen) -> None:
    """Scales the channels of values for the products that ask for it, together where they read one value."""
    groups: dict[ir.Value, list[_Task]] = defaultdict(list)
    for task in tasks:
        if task.choice.methods & {"smoothquant", "awq"}:
            groups[task.product.x].append(task)
    for x, group in groups.items():
        why = _scale(x, group, seen)
        for task in group:
            if why:
                task.notes.append(why)


def _scale(x: ir.Value, group: list[_Task], seen: Seen) -> str:
    """Why the channels stay as they are; "" if they do not."""
    channels, first = seen.channels(x.name), group[0]
    kind = KINDS.get(first.form.weight)
    if kind is None or any(t.product.conv for t in group):
        return "channels are scaled in front of matrices of integers only"
    if channels is None:
        return f"the channels of {x.name} were not calibrated"
    place = scaling.find(x, [t.product.node for t in group])
    weights = [t.product.now().matrix() for t in group]
    tie = place.tie if isinstance(place, scaling.Place) else lambda s: s
    if "awq" in first.choice.methods:
        if isinstance(place, str):
            return f"awq: {place}"
        found = balance.protect(channels, seen.gram(x.name), weights, tie, kind, first.block)
    else:
        columns = sum(w.shape[1] for w in weights)
        worth = balance.WORTH if isinstance(place, scaling.Place) else balance.worth_a_step(columns)
        found = balance.smooth(channels, weights, tie, first.form, worth)
    del weights
    if found is None:
        return ""
    divisors, strength = found
    now = x
    if isinstance(place, scaling.Place):
        place.divide(divisors)
    else:
        now = scaling.multiply(x, 1 / divisors, [t.product for t in group])
    seen.scale(now.name, divisors, x.name)
    for task in group:
        scaling.scale_rows(task.product, divisors)
        task.details["strength"] = round(strength, 3)
        task.done.append("awq" if "awq" in first.choice.methods else "smoothquant")
    return ""


# --- writing ------------------------------------------------------------------------------------------------------------------


class _Writer:
    """Writes products; values and weights that several share once."""

    def __init__(self, seen: Seen) -> None:
        self._seen = seen
        self._activations: dict[tuple[Any, ...], ir.Value] = {}
        self._weights: dict[tuple[Any, ...], tuple[ir.Value, Stored]] = {}

    def write(self, task: _Task) -> None:
        product, weight = task.product, task.product.weight
        if task.form.weight in ("bf16", "f16"):
            dequantised = self._narrow(product, _BF16 if task.form.weight == "bf16" else _F16)
        else:
            dequantised = self._integers(task)
        product.node.replace_input_with(0, self._activation(task))
        product.node.replace_input_with(1, dequantised)
        scaling.drop(weight)

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

    def _integers(self, task: _Task) -> ir.Value:
        product, form = task.product, task.form
        gram = self._seen.gram(product.x.name) if "gptq" in task.choice.methods else None
        if "gptq" in task.choice.methods and (gram is None or product.conv or form.weight == "fp8"):
            task.notes.append("gptq: it has no Gram matrix" if gram is None else "gptq is for matrices of integers")
            gram = None
        key = (product.weight, product.k_axis, form.weight, task.block, None if gram is None else product.x)
        if key not in self._weights:
            matrix = product.matrix()
            channels = None if product.conv else self._seen.channels(product.x.name)
            kind, importance = KINDS[form.weight], None if channels is None else channels.square_mean
            stored = (store(matrix, kind, task.block, importance) if gram is None
                      else gptq(matrix, gram, kind, task.block, task.choice.act_order))
            self._weights[key] = _dequantise(product, stored, len(self._weights)), stored
        task.done.append("rtn" if gram is None else "gptq")
        value, stored = self._weights[key]
        self._judge(task, stored, gram)
        return value

    def _judge(self, task: _Task, stored: Stored, gram: Array | None) -> None:
        """The error of the weights; and bias correction, of the mean that it moves (Nagel et al., ICCV 2019, section 4.2)."""
        matrix = task.product.matrix()
        change = stored.restore()
        change -= matrix
        channels = self._seen.channels(task.product.x.name)
        if channels is None:
            task.error = _ratio(float(np.vdot(change, change)), float(np.vdot(matrix, matrix)))
            return
        taps = task.product.taps
        wide = change.shape[0] == channels.mean.size * taps
        mean, square = (np.repeat(a, taps)[:, None] if wide else np.zeros((1, 1), np.float32)
                        for a in (channels.mean, channels.square_mean))
        task.error = _ratio(float(np.vdot(change, square * change)), float(np.vdot(matrix, square * matrix)))
        if "bias" in task.choice.methods and wide:
            _correct(task, -(mean * change).sum(axis=0))

    def _activation(self, task: _Task) -> ir.Value:
        x, form = task.product.x, task.form
        key = (x, form.activation, form.symmetric, task.block if form.grouped else 0)
        if key not in self._activations:
            self._activations[key] = self._quantised(x, task, f"{x.name}/{len(self._activations)}")
        return self._activations[key]

    def _quantised(self, x: ir.Value, task: _Task, name: str) -> ir.Value:
        form, anchor = task.form, task.product.node
        if form.activation == "":
            return x
        if form.activation == "bf16":
            narrow = emit(anchor, "Cast", [x], {"to": int(_BF16)}, name=f"{name}/bf16", like=[(_BF16, dims(x))])
            return emit(anchor, "Cast", narrow.outputs, {"to": int(_F32)}, name=f"{name}/dq", like=[x]).outputs[0]
        if form.activation == "rows":
            return _rows(x, anchor, task.block if form.grouped else 0, form.symmetric, name)
        found = self._seen.range(x.name, form.symmetric)
        assert found is not None
        if form.activation == "fp8":
            number = max(-found[0], found[1]) / FP8.largest or 1.0
            return _tensor(x, anchor, number, np.zeros((), FP8.numpy), FP8.dtype, name)
        number, zero = activation_scale(*found, form.symmetric)
        dtype = ir.DataType.INT8 if form.symmetric else ir.DataType.UINT8
        return _tensor(x, anchor, number, np.array(zero, dtype.numpy()), dtype, name)


_NOTHING = Stored(KINDS["int8"], np.empty((0, 0)), np.empty((0, 0)), None, 0)


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _dequantise(product: Product, stored: Stored, number: int) -> ir.Value:
    """DequantizeLinear of the stored weight: blocks along K, or a scale for each output channel."""
    weight, graph = product.weight, owner(product.node)
    name = f"{weight.name}/{stored.kind.dtype.name.lower()}" + (f".{number}" if number else "")
    k, n = stored.data.shape
    blocked = stored.block < k or stored.kind.dtype in (ir.DataType.INT4, ir.DataType.UINT4)
    data = product.from_matrix(stored.data)
    inputs = [add_constant(graph, name, tensor(data, stored.kind.dtype, name))]
    for part, suffix, dtype in ((stored.scale, "scale", _F32), (stored.zero, "zero", stored.kind.dtype)):
        if part is not None:
            laid = product.from_matrix(part) if blocked else part.reshape(n)
            inputs.append(add_constant(graph, f"{name}/{suffix}", tensor(laid, dtype, f"{name}/{suffix}")))
    attributes = {"axis": product.k_axis, "block_size": stored.block} if blocked else {"axis": product.n_axis}
    return emit(product.node, "DequantizeLinear", inputs, attributes, name=f"{name}/dq", like=[weight]).outputs[0]


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


def _correct(task: _Task, shift: Array) -> None:
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


def without(plan: Plan, *names: str) -> Plan:
    """The plan, with these nodes in f32."""
    return {**plan, **{name: replace(plan[name], precision="f32") for name in names if name in plan}}
