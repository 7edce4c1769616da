"""One target's graph in lower precision: quantised by a plan, measured in ONNX Runtime, and within a budget of accuracy."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import onnx_ir as ir

from infc.compiler.calibrate import budget
from infc.compiler.calibrate.accuracy import Accuracy, Judge, Run
from infc.compiler.calibrate.budget import Outcome
from infc.compiler.errors import UsageError
from infc.compiler.reference import OnnxReference
from infc.passes.quant import products
from infc.passes.quant.plan import Decision, LayerChoice, default_plan
from infc.passes.quant.quantise import quantise
from infc.passes.quant.statistics import Statistics

AUTO = "auto"
BUDGET = 0.9985  # of "auto" where none is given
CALIBRATED = ("int8", "int8-static", "fp8", "int4", AUTO)  # precisions that are made with data
_AUTO = ("int8", "bf16")  # the fastest, and what is next
_TRIED = 16  # samples that layers are ranked by


@dataclass(frozen=True)
class Wanted:
    """``precision`` as --precision; ``method`` and ``settings`` as ``default_plan``; ``target``: cpu or tensorrt."""

    precision: str
    target: str
    method: str = ""
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Quantised:
    """``model`` is in the Q/DQ form. ``outcome`` is None where nothing was measured."""

    model: ir.Model
    decisions: list[Decision]
    outcome: Outcome | None = None

    @property
    def restored(self) -> tuple[str, ...]:
        return self.outcome.restored if self.outcome else ()


def runner(model: ir.Model, prepare: Callable[[ir.Model], object]) -> Run:
    """The graph in ONNX Runtime; ``prepare`` gives a copy of it what it needs to run there."""
    copy = model.clone()
    prepare(copy)
    return OnnxReference(copy, threads=1).run  # of more threads the sums may depend on their number


class Quantiser:
    """``model`` is the graph after its fusion passes, which stays as it is; ``prepare`` gives a graph what it needs to run."""

    def __init__(self, model: ir.Model, wanted: Wanted, statistics: Statistics | None,
                 prepare: Callable[[ir.Model], object]) -> None:
        self._model, self._wanted, self._statistics, self._prepare = model, wanted, statistics, prepare
        precision, self._higher = _AUTO if wanted.precision == AUTO else (wanted.precision, "f32")
        self._plan = default_plan(model, precision, wanted.method, **wanted.settings)

    @property
    def grams(self) -> list[str]:
        """Names of the values whose Gram matrices the plan wants."""
        return [p.x.name or "" for p in products.find(self._model)[0]
                if p.name in self._plan and "gptq" in self._plan[p.name].methods]

    def graph(self, restored: Collection[str] = (), only: str | None = None) -> tuple[ir.Model, list[Decision]]:
        """The Q/DQ form, with ``restored`` in higher precision; ``only``: with one layer quantised and no other."""
        higher = LayerChoice(self._higher)
        plan = {name: higher if name in restored else replace(choice, precision="f32") if only not in (None, name) else choice
                for name, choice in self._plan.items()}
        model = self._model.clone()
        decisions = quantise(model, plan, self._statistics, self._wanted.target)
        return model, [replace(d, requested=self._wanted.precision) for d in decisions]

    def _run(self, model: ir.Model) -> Run:
        return runner(model, self._prepare)

    def within(self, judge: Judge | None, least: float | None, first: int = 0, before: Outcome | None = None,
               note: Callable[[str], None] = lambda line: None) -> Quantised:
        """Quantises; with a ``judge`` measures, and with a budget ``least`` restores layers, ``first`` or more of the ranking of
        ``before``. Raises UsageError E0815 for a budget that not even the float model meets."""
        if judge is None:
            return Quantised(*self.graph())
        whole = self.graph()[1]
        layers = [d.node for d in whole if d.actual not in ("f32", self._higher)]

        def measure(restored: Sequence[str]) -> Accuracy:
            found = judge.accuracy(self._run(self.graph(restored)[0]))
            note(f"{len(restored)} of {len(layers)} layers in higher precision: {judge.metric} {found.mean:.6f}")
            return found

        def loss(layer: str) -> float:
            return judge.loss(self._run(self.graph(only=layer)[0]), _TRIED)

        if least is None:
            outcome = Outcome((), measure(()), ())
        else:
            outcome = budget.restore(layers, least, measure, loss, first, before.ranking if before else ())
            if not outcome.accuracy.holds(least):
                raise UsageError("E0815", f"the budget {least} is not met even with all layers in higher precision: {judge.metric} "
                                 f"{outcome.accuracy.mean:.6f}", where="--budget", hint="give a lower budget, or another metric")
        model, decisions = self.graph(outcome.restored)
        return Quantised(model, [replace(d, why=d.why or "the budget of accuracy") if d.node in outcome.restored else d
                                 for d in decisions], outcome)
