"""Puts products with constant weights into the Q/DQ form: QuantizeRows or QuantizeLinear and their inverses before the product,
DequantizeLinear of a stored weight. The product itself stays the node that it is."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from infc.passes.quant import balance, scaling
from infc.passes.quant.forms import FORMS, STATIC_PIXELS, Form, settle
from infc.passes.quant.numbers import KINDS, activation_scale
from infc.passes.quant.plan import Decision, LayerChoice, Plan
from infc.passes.quant.products import KEPT, Product, find
from infc.passes.quant.seen import Seen, Spread
from infc.passes.quant.statistics import Statistics
from infc.passes.quant.write import Task, Writer

_F32 = ir.DataType.FLOAT
_LARGEST_F16 = 65504.0
# Root mean square of rounding, in parts of that of the values, from which static activations are not worth it; and of a convolution
# that makes more channels than it reads, so that steps of each pixel's own cost little beside the product.
LOST, LOST_OF_WIDENING = 0.02, 0.01


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
        refused = why if form is None else _objection(product, form, seen)
        if form is None or refused:
            decisions[product.name] = Decision(product.name, choice.precision, "f32", refused)
        else:
            tasks.append(Task(product, choice, form, actual, block, [why] if why else []))
    writer = Writer(seen)
    for node in [n for n in model.graph if n.name in others]:
        name, why = node.name or "", others[node.name or ""]
        choice = plan.get(name, LayerChoice())
        actual = writer.keep(node, choice, target) if why == KEPT else "f32"
        decisions[name] = Decision(name, choice.precision, actual, why)
    _balance(tasks, seen)
    for task in tasks:
        task.product = task.product.now()
        why = _settle_noise(task, seen, target)
        if why:
            decisions[task.product.name] = Decision(task.product.name, task.choice.precision, "f32", why, "+".join(task.done))
            continue
        spread = _spread(task, seen)
        if spread is not None:
            task.details["range"] = spread.record()
        writer.write(task)
        decisions[task.product.name] = Decision(
            task.product.name, task.choice.precision, task.actual, "; ".join(task.notes), "+".join(task.done), task.error,
            task.details)
    return [decisions[n.name] for n in model.graph if n.name in decisions]


def _objection(product: Product, form: Form, seen: Seen) -> str:
    """Why a product cannot take the form."""
    if product.x.dtype != _F32 or product.weight.dtype != _F32:
        return f"it computes in {product.x.dtype}"
    largest = float(np.abs(product.matrix()).max())
    if not np.isfinite(largest):
        return "its weights are not all finite"
    if form.weight == "f16" and largest > _LARGEST_F16:
        return f"a weight of {largest:.3g} is beyond float16"
    if form.activation in ("tensor", "fp8") and seen.range(product.x.name, True) is None:
        return f"the range of {product.x.name} was not calibrated"
    return ""


def _settle_noise(task: Task, seen: Seen, target: str) -> str:
    """Where one step for a matrix of activations is so wide that rounding would lose more than LOST of them, SmoothQuant or not,
    the CPU quantises them row by row; else the product stays f32, and this says why. Methods without SmoothQuant leave all as it
    is. Pixels are rows of a convolution that sees one at a time; others, and those of other targets, keep the one step."""
    conv = task.product.conv
    if task.form.activation != "tensor" or not (task.product.pointwise if conv else "smoothquant" in task.choice.methods):
        return ""
    channels, span = seen.channels(task.product.x.name), seen.range(task.product.x.name, task.form.symmetric)
    if channels is None or span is None:
        return ""
    step, _ = activation_scale(*span, task.form.symmetric)
    lost = step / float(np.sqrt(12 * channels.square_mean.mean())) if channels.square_mean.any() else 0.0
    k, n = task.product.shape
    if lost <= (LOST_OF_WIDENING if conv and n > k else LOST):
        return ""
    why = f"one scale for its activations loses {lost:.1%} of them"
    if "int8" not in FORMS[target] or FORMS[target]["int8"].activation != "rows":
        return "" if conv else why
    task.form, task.actual = FORMS[target]["int8"], "int8"
    task.notes = [n for n in task.notes if n != STATIC_PIXELS]
    if task.choice.precision != "int8":
        task.notes.append(f"{why}: each {'pixel' if conv else 'row'} has its own")
    return ""


def _spread(task: Task, seen: Seen) -> Spread | None:
    """Of activations that become integers."""
    if task.form.activation not in ("rows", "tensor"):
        return None
    return seen.spread(task.product.x.name, task.form.activation == "tensor", task.form.symmetric)


# --- channels -----------------------------------------------------------------------------------------------------------------


def _balance(tasks: Sequence[Task], seen: Seen) -> None:
    """Scales the channels of values for the products that ask for it, together where they read one value."""
    groups: dict[ir.Value, list[Task]] = defaultdict(list)
    for task in tasks:
        if task.choice.methods & {"smoothquant", "awq"}:
            groups[task.product.x].append(task)
    for x, group in groups.items():
        why = _scale(x, group, seen)
        for task in group:
            if why:
                task.notes.append(why)


def _scale(x: ir.Value, group: list[Task], seen: Seen) -> str:
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
