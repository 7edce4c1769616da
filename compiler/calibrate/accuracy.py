"""How close a quantised model is to the float one on held-out data: by sample, on average, and by slice of the data."""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from infc.compiler.artifact.io import IoSpec
from infc.compiler.artifact.layout import DIM_EXACT
from infc.compiler.calibrate.data import Arrays, Item
from infc.compiler.errors import UsageError
from infc.compiler.interface import Interface
from infc.compiler.reference import masked, numbers
from infc.compiler.replay import closeness

PERPLEXITY = "perplexity"
METRICS = ("cosine", "max-abs", "top1", PERPLEXITY)
LESS_IS_BETTER = ("max-abs", PERPLEXITY)
DEFAULT = "cosine"
SAMPLES = 256
_FUNCTION = "score"

Score = Callable[[Arrays, Arrays, Arrays], float]  # of outputs: those wanted, those got, and the inputs
Run = Callable[[Arrays], Mapping[str, NDArray[Any]]]


@dataclass(frozen=True)
class Accuracy:
    """``worst`` is the worst sample's score; ``slices`` gives the mean and the number of samples of each part of the data."""

    metric: str
    mean: float
    worst: float
    samples: int
    slices: Mapping[str, tuple[float, int]]

    @property
    def less_is_better(self) -> bool:
        return self.metric in LESS_IS_BETTER

    def holds(self, budget: float) -> bool:
        """Of the mean. NaN never does."""
        return self.mean <= budget if self.less_is_better else self.mean >= budget

    def worst_slice(self) -> tuple[str, float] | None:
        """Its name and mean."""
        if not self.slices:
            return None
        pick = max if self.less_is_better else min
        name = pick(self.slices, key=lambda s: self.slices[s][0])
        return name, self.slices[name][0]

    def record(self) -> dict[str, Any]:
        """For META: six digits each."""
        found: dict[str, Any] = {"metric": self.metric, "mean": _rounded(self.mean), "worst": _rounded(self.worst),
                                 "samples": self.samples}
        worst = self.worst_slice()
        if worst:
            found["slices"] = {name: {"mean": _rounded(mean), "samples": n} for name, (mean, n) in self.slices.items()}
            found["worst_slice"] = worst[0]
        return found


def _rounded(value: float) -> float | None:
    return float(f"{value:.6g}") if np.isfinite(value) else None


def scorer(metric: str) -> tuple[str, Score]:
    """Name and function of a metric: cosine, max-abs, top1, perplexity, or a Python file that defines ``score(expected, got,
    inputs)``, all three arrays by name: the greater the better. The file is run.

    Raises UsageError E0812 for what is none of these.
    """
    known: dict[str, Score] = {"cosine": _cosine, "max-abs": _max_abs, "top1": _top1, PERPLEXITY: _perplexity}
    if metric in known:
        return metric, known[metric]
    path = Path(metric)
    if path.suffix != ".py" or not path.is_file():
        raise UsageError("E0812", f"no metric is named '{metric}'", where="--metric",
                         hint=f"one of: {', '.join(METRICS)}, or a Python file with {_FUNCTION}(expected, got, inputs)")
    spec = importlib.util.spec_from_file_location(f"infc_metric_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        function = getattr(module, _FUNCTION)
    except (Exception, SystemExit) as error:  # of the user's code
        raise _script_failed(path, error) from error

    def call(want: Arrays, got: Arrays, inputs: Arrays) -> float:
        try:
            found = float(function(want, got, inputs))
        except (Exception, SystemExit) as error:
            raise _script_failed(path, error) from error
        if not np.isfinite(found):
            raise _script_failed(path, ValueError(f"its score is {found}"))
        return found

    return path.name, call


def _script_failed(path: Path, error: BaseException) -> UsageError:
    return UsageError("E0812", f"the metric failed: {type(error).__name__}: {error}"[:500], where=str(path),
                      hint=f"define {_FUNCTION}(expected, got, inputs), which takes arrays by name and returns a number")


def _floats(arrays: Arrays) -> Arrays:
    return {name: a for name, a in arrays.items() if a.dtype.kind == "f"}


def _cosine(want: Arrays, got: Arrays, inputs: Arrays) -> float:
    """The least among the outputs."""
    return min((closeness(got[name], a) for name, a in _floats(want).items()), default=1.0)


def _max_abs(want: Arrays, got: Arrays, inputs: Arrays) -> float:
    def apart(x: NDArray[Any], y: NDArray[Any]) -> float:
        with np.errstate(invalid="ignore"):
            return float(np.where(x == y, 0.0, np.abs(x.astype(np.float64) - y)).max(initial=0.0))  # equal infinities too

    return max((apart(got[name], a) for name, a in _floats(want).items()), default=0.0)


def _top1(want: Arrays, got: Arrays, inputs: Arrays) -> float:
    """The part of places at which the largest entry of the first output is the same one."""
    name = next((n for n, a in _floats(want).items() if a.ndim and a.shape[-1] > 1), None)
    if name is None:
        raise UsageError("E0812", "the model has no output with classes", where="--metric top1", hint="use --metric cosine")
    return float((want[name].argmax(-1) == got[name].argmax(-1)).mean())


def check(metric: str, interface: Interface) -> None:
    """Raises UsageError E0812 for a metric that the model's outputs do not have."""
    if metric == PERPLEXITY and "logit_rows" not in interface.indices:
        raise UsageError("E0812", "the model does not predict tokens", where=f"--metric {PERPLEXITY}", hint="use --metric cosine")


def surprise(logits: NDArray[Any], tokens: NDArray[Any]) -> NDArray[np.float64]:
    """-log p of each of ``tokens`` [n] by its row of ``logits`` [n, vocabulary]; perplexity is e to its mean."""
    apart = logits - logits.max(axis=1, keepdims=True)
    chosen = apart[np.arange(len(tokens)), tokens].astype(np.float64)
    found: NDArray[np.float64] = np.log(np.exp(apart, out=apart).sum(axis=1, dtype=np.float64)) - chosen
    return found


def _followed(inputs: Arrays) -> tuple[NDArray[np.bool_], NDArray[Any]]:
    """Which of the rows of logits have a next token in the text, and those tokens."""
    ids, rows = inputs["input_ids"], inputs["logit_rows"]
    known = rows + 1 < len(ids)
    return known, ids[rows[known] + 1]


def _perplexity(want: Arrays, got: Arrays, inputs: Arrays) -> float:
    """That of the tokens which are predicted, as a multiple of the model's: both are of the same ones."""
    known, tokens = _followed(inputs)
    with np.errstate(over="ignore", invalid="ignore"):  # of logits that are no numbers, or far away
        return float(np.exp((surprise(got["logits"][known], tokens) - surprise(want["logits"][known], tokens)).mean()))


def _mean(scores: Sequence[float], metric: str) -> float:
    """Of multiples the geometric one."""
    return float(np.exp(np.mean(np.log(scores))) if metric == PERPLEXITY else np.mean(scores))


class Judge:
    """Held-out samples and what the float model makes of them, kept in files.

    ``prepared`` gives an item's inputs, ``reference`` runs the float model. Where a dimension must match a profile exactly, rows
    are filled up to it, for the float model too; what the mask hides is not compared. For perplexity texts of one token are left
    out. Raises UsageError E0812 if all are. Samples of which the model itself makes NaN tell nothing: ``left_out`` counts them.
    Raises UsageError E0825 if there are no others.
    """

    def __init__(self, items: Iterable[Item], prepared: Callable[[Item], Arrays], reference: Run, spec: IoSpec,
                 interface: Interface, metric: str = DEFAULT) -> None:
        self.metric, self._score = scorer(metric)
        self._interface = interface
        self._folder = tempfile.TemporaryDirectory(prefix="infc-judge-")
        self._slices: list[str] = []
        self.left_out = 0
        for item in items:
            inputs = fitted(prepared(item), spec)
            if metric == PERPLEXITY and not _followed(inputs)[0].any():
                continue
            outputs = self._comparable(reference(inputs), inputs)
            if any(np.isnan(a).any() for a in _floats(outputs).values()):
                self.left_out += 1
                continue
            self._keep(f"{len(self._slices)}-in", inputs)
            self._keep(f"{len(self._slices)}-out", outputs)
            self._slices.append(item.slice)
        if not self._slices and self.left_out:
            raise UsageError("E0825", f"of all {self.left_out} samples to judge by the model makes NaN", where="--evaluation",
                             hint="look for NaN and infinity in the data, and in the model's weights")
        if not self._slices and metric == PERPLEXITY:
            raise UsageError("E0812", "no text has two tokens", where=f"--metric {PERPLEXITY}", hint="give longer texts")

    def __len__(self) -> int:
        return len(self._slices)

    def accuracy(self, run: Run, most: int | None = None) -> Accuracy:
        """Of an engine or a graph, on the first ``most`` samples. Raises UsageError E0812 from a metric that fails."""
        return self._measure(run, self._score, self.metric, most)

    def loss(self, run: Run, most: int | None = None) -> float:
        """1 - the mean cosine, whatever the metric: it tells apart what is close."""
        return 1.0 - self._measure(run, _cosine, DEFAULT, most).mean

    def _measure(self, run: Run, score: Score, metric: str, most: int | None) -> Accuracy:
        scores = [score(want, self._comparable(run(inputs), inputs), inputs) for inputs, want in self._samples(most)]
        parts: dict[str, list[float]] = {}
        for name, value in zip(self._slices, scores, strict=False):
            parts.setdefault(name, []).append(value)
        slices = {name: (_mean(v, metric), len(v)) for name, v in sorted(parts.items())} if set(parts) != {""} else {}
        worst = max(scores) if metric in LESS_IS_BETTER else min(scores)
        return Accuracy(metric, _mean(scores, metric), float(worst), len(scores), slices)

    def _samples(self, most: int | None) -> Iterator[tuple[Arrays, Arrays]]:
        for n in range(len(self) if most is None else min(most, len(self))):
            yield self._kept(f"{n}-in"), self._kept(f"{n}-out")

    def _comparable(self, outputs: Mapping[str, NDArray[Any]], inputs: Arrays) -> Arrays:
        return numbers(masked(outputs, inputs, self._interface), self._interface)

    def _keep(self, name: str, arrays: Arrays) -> None:
        np.savez(Path(self._folder.name) / f"{name}.npz", **{f"a_{k}": v for k, v in arrays.items()})  # type: ignore[arg-type]

    def _kept(self, name: str) -> Arrays:
        with np.load(Path(self._folder.name) / f"{name}.npz", allow_pickle=False) as file:
            return {key.removeprefix("a_"): value for key, value in file.items()}


def fitted(inputs: Arrays, spec: IoSpec) -> Arrays:
    """Inputs of one sample at sizes that an engine takes. Raises UsageError E0813 for a sample that is larger than any profile."""
    sizes = {d: n for t in spec.inputs for d, n in zip(t.dims, inputs[t.name].shape, strict=True) if isinstance(d, str)}
    profile = next((p for p in spec.profiles if all(p[d] >= n for d, n in sizes.items())), None)
    if profile is None:
        raise UsageError("E0813", f"a sample is larger than any profile: {', '.join(f'{k}={v}' for k, v in sizes.items())}",
                         where="--evaluation", hint="build for it with --profile, or give smaller samples")
    exact = {s.name for s in spec.symbols if s.policy == DIM_EXACT}
    return {t.name: _filled(inputs[t.name], [profile[str(d)] if d in exact else n
                                             for d, n in zip(t.dims, inputs[t.name].shape, strict=True)]) for t in spec.inputs}


def _filled(array: NDArray[Any], shape: list[int]) -> NDArray[Any]:
    """Rows of a batch are repeated; other dimensions get zeros."""
    if array.shape == tuple(shape):
        return array
    rest = np.pad(array, [(0, 0), *((0, size - n) for size, n in zip(shape[1:], array.shape[1:], strict=True))])
    return np.pad(rest, [(0, shape[0] - len(rest)), *((0, 0) for _ in shape[1:])], mode="edge")
