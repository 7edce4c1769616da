"""Which layers go back to higher precision so that a model keeps its accuracy: the worst offenders, no more of them than needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from infc.compiler.calibrate.accuracy import Accuracy


@dataclass(frozen=True)
class Sensitivity:
    """``loss`` is 1 - the mean cosine when this layer alone is quantised."""

    node: str
    loss: float


@dataclass(frozen=True)
class Outcome:
    """``restored``, worst first; ``ranking`` of all layers; ``accuracy`` with the restored ones in higher precision."""

    restored: tuple[str, ...]
    accuracy: Accuracy
    ranking: tuple[Sensitivity, ...]


def rank(layers: Sequence[str], loss_of: Callable[[str], float]) -> list[Sensitivity]:
    """The worst first; ties in the graph's order."""
    return sorted((Sensitivity(name, loss_of(name)) for name in layers), key=lambda s: -s.loss)


def restore(layers: Sequence[str], budget: float, measure: Callable[[Sequence[str]], Accuracy], loss_of: Callable[[str], float],
            first: int = 0, ranking: Sequence[Sensitivity] = ()) -> Outcome:
    """The shortest prefix of the ranking whose restoring meets the budget, of ``first`` layers or more, found by halving.

    ``measure`` takes the layers in higher precision. If not even all of them do, all are restored: the accuracy says so.
    """
    ranked = list(ranking) or (rank(layers, loss_of) if first else [])
    restored = tuple(s.node for s in ranked[:first])
    accuracy = measure(restored)
    if accuracy.holds(budget) or not layers:
        return Outcome(restored, accuracy, tuple(ranked))
    everything = measure(layers)
    if not everything.holds(budget):
        return Outcome(tuple(layers), everything, tuple(ranked))
    ranked = ranked or rank(layers, loss_of)
    names = [s.node for s in ranked]
    low, high = first, len(names)  # low does not hold
    tried = {high: everything}
    while high - low > 1:
        middle = (low + high) // 2
        tried[middle] = measure(names[:middle])
        if tried[middle].holds(budget):
            high = middle
        else:
            low = middle
    return Outcome(tuple(names[:high]), tried[high], tuple(ranked))
