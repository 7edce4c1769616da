"""One target's graph in lower precision: quantised by a plan, measured in ONNX Runtime, and within a budget of accuracy."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import onnx_ir as ir

from infc.compiler.calibrate import budget
from infc.compiler.calibrate.accuracy import Accuracy, Judge, Run
from infc.compiler.calibrate.budget import Outcome, Sensitivity
from infc.compiler.errors import UsageError
from infc.compiler.reference import OnnxReference
from infc.passes.quant import products
from infc.passes.quant.forms import no_sparse
from infc.passes.quant.plan import Decision, LayerChoice, Plan, default_plan
from infc.passes.quant.quantise import quantise
from infc.passes.quant.statistics import Statistics
from infc.passes.sparsity.sparsify import DENSE, SPARSE, SparseDecision, sparsify

AUTO = "auto"
BUDGET = 0.9985  # of "auto" where none is given
CALIBRATED = ("int8", "int8-static", "fp8", "int4", AUTO)  # precisions that are made with data
_AUTO = ("int8", "bf16")  # the fastest, and what is next
_TRIED = 16  # samples that layers are ranked by


@dataclass(frozen=True)
class Wanted:
    """``precision`` as --precision; ``method`` and ``settings`` as ``default_plan``; ``target``: cpu or tensorrt. ``sparsity`` is
    the method by which weights become 2:4, "" to use those that are, None to use none. ``whole``: the target computes the graph
    in this precision as it is."""

    precision: str
    target: str
    method: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    sparsity: str | None = None
    whole: bool = False


@dataclass(frozen=True)
class Quantised:
    """``model`` is in the Q/DQ form. ``sparse`` says what became of products where 2:4 was asked for. ``outcome`` is None where
    nothing was measured."""

    model: ir.Model
    decisions: list[Decision]
    sparse: list[SparseDecision] = field(default_factory=list)
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
        precision, self._higher = _AUTO if wanted.precision == AUTO else ("f32" if wanted.whole else wanted.precision, "f32")
        self._plan = default_plan(model, precision, wanted.method, sparse=wanted.sparsity is not None, **wanted.settings)

    @property
    def methods(self) -> frozenset[str]:
        """All that the plan asks for, of one product or another."""
        return frozenset(method for choice in self._plan.values() for method in choice.methods)

    @property
    def grams(self) -> list[str]:
        """Names of the Gram matrices that the plan wants."""
        return [p.gram for p in products.find(self._model)[0]
                if p.name in self._plan and ("gptq" in self._plan[p.name].methods or self._wanted.sparsity == "sparsegpt")]

    def graph(self, restored: Collection[str] = (), only: str | None = None) -> Quantised:
        """The Q/DQ form, with ``restored`` in higher precision and dense; ``only``: with one layer changed and no other."""
        higher = LayerChoice(self._higher)
        plan = {name: higher if name in restored else replace(choice, precision="f32") if only not in (None, name) else choice
                for name, choice in self._plan.items()}
        model = self._model.clone()
        kept = set(restored) if only is None else set(plan) - {only}
        sparse = self._sparsified(model, plan, kept)
        decisions = quantise(model, plan, self._statistics, self._wanted.target)
        if self._wanted.whole:
            return Quantised(model, [], sparse)
        pruned = {d.node: {"sparsity": SPARSE} for d in sparse if d.actual == SPARSE}
        return Quantised(model, [replace(d, requested=self._wanted.precision, details={**d.details, **pruned.get(d.node, {})})
                                 for d in decisions], sparse)

    def _sparsified(self, model: ir.Model, plan: Plan, dense: Collection[str]) -> list[SparseDecision]:
        """Makes weights 2:4 where that was asked for and the target gains by it; ``dense``: those that may not become it."""
        wanted = self._wanted
        if wanted.sparsity is None:
            return []
        objections, ever = ({p.name: no_sparse(p, by.get(p.name, LayerChoice()), wanted.target) for p in products.find(model)[0]}
                            for by in (plan, self._plan))
        may = [name for name, why in objections.items() if not why and name not in dense]
        done = sparsify(model, wanted.sparsity, self._statistics, may)
        return [d if not objections[d.node] else
                replace(d, actual=DENSE, why=objections[d.node], eligible=d.eligible and not ever[d.node]) for d in done]

    def _run(self, model: ir.Model) -> Run:
        return runner(model, self._prepare)

    def _layers(self) -> list[str]:
        """Those whose numbers change."""
        whole = self.graph()
        pruned = [d.node for d in whole.sparse if d.actual == SPARSE and not d.found]
        return list(dict.fromkeys([d.node for d in whole.decisions if d.actual not in ("f32", self._higher)] + pruned))

    def _loss(self, judge: Judge, layer: str) -> float:
        return judge.loss(self._run(self.graph(only=layer).model), _TRIED)

    def ranking(self, judge: Judge, progress: Callable[[int, int], None] = lambda done, of: None) -> list[Sensitivity]:
        """The layers that would be quantised, by what each alone costs, the worst first. ``progress``: those done, of how many."""
        layers = self._layers()
        losses = {}
        for number, layer in enumerate(layers, 1):
            losses[layer] = self._loss(judge, layer)
            progress(number, len(layers))
        return budget.rank(layers, losses.__getitem__)

    def within(self, judge: Judge | None, least: float | None, first: int = 0, before: Outcome | None = None,
               note: Callable[[str], None] = lambda line: None) -> Quantised:
        """Quantises; with a ``judge`` measures, and with a budget ``least`` restores layers, ``first`` or more of the ranking of
        ``before``. Raises UsageError E0815 for a budget that not even the float model meets."""
        if judge is None:
            return self.graph()
        layers = self._layers()

        def measure(restored: Sequence[str]) -> Accuracy:
            found = judge.accuracy(self._run(self.graph(restored).model))
            note(f"{len(restored)} of {len(layers)} layers in higher precision: {judge.metric} {found.mean:.6f}")
            return found

        if least is None:
            outcome = Outcome((), measure(()), ())
        else:
            outcome = budget.restore(layers, least, measure, lambda layer: self._loss(judge, layer), first,
                                     before.ranking if before else ())
            if not outcome.accuracy.holds(least):
                raise UsageError("E0815", f"the budget {least} is not met even with all layers in higher precision: {judge.metric} "
                                 f"{outcome.accuracy.mean:.8g}", where="--budget", hint="give a budget that the float model keeps")
        found, why = self.graph(outcome.restored), "the budget of accuracy"
        return replace(found, outcome=outcome,
                       decisions=[replace(d, why=d.why or why) if d.node in outcome.restored else d for d in found.decisions],
                       sparse=[replace(d, why=why) if d.node in outcome.restored and d.actual == DENSE else d
                               for d in found.sparse])
