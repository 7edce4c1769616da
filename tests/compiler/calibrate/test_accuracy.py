"""Metrics, slices and budgets."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from infc.compiler.artifact.io import IoSpec, IoSymbol, IoTensor
from infc.compiler.artifact.layout import DIM_EXACT, DIM_PADS
from infc.compiler.calibrate import budget
from infc.compiler.calibrate.accuracy import Accuracy, Judge, fitted, scorer
from infc.compiler.calibrate.data import Arrays, Item
from infc.compiler.errors import UsageError
from infc.compiler.interface import Interface, TensorSpec

X = IoTensor("x", "f32", ("batch", "n"))
INTERFACE = Interface((TensorSpec("x", "f32", ("batch", "n")),), (TensorSpec("y", "f32", ("batch", "n")),))


def spec(policy: int = DIM_PADS) -> IoSpec:
    return IoSpec([X], [IoTensor("y", "f32", ("batch", "n"))], [IoSymbol("batch", policy), IoSymbol("n", policy)],
                  [{"batch": 1, "n": 4}, {"batch": 2, "n": 8}])


def judge(metric: str, slices: Sequence[str] = ("", "", "")) -> Judge:
    rng = np.random.default_rng(0)
    items = [Item({"x": rng.standard_normal((1, 4)).astype(np.float32)}, bytes([n]), s) for n, s in enumerate(slices)]
    return Judge(items, lambda item: item.content if isinstance(item.content, dict) else {}, lambda a: {"y": a["x"]}, spec(),
                 INTERFACE, metric)


def test_metrics_of_what_is_the_same() -> None:
    assert judge("cosine").accuracy(lambda a: {"y": a["x"]}).mean == pytest.approx(1.0)
    assert judge("max-abs").accuracy(lambda a: {"y": a["x"]}).mean == 0.0
    assert judge("top1").accuracy(lambda a: {"y": a["x"]}).mean == 1.0


def test_metrics_of_what_differs() -> None:
    assert judge("cosine").accuracy(lambda a: {"y": -a["x"]}).worst == pytest.approx(-1.0)
    assert judge("max-abs").accuracy(lambda a: {"y": a["x"] + 0.5}).worst == pytest.approx(0.5)
    assert judge("top1").accuracy(lambda a: {"y": -a["x"]}).mean == 0.0
    assert judge("cosine").accuracy(lambda a: {"y": a["x"] * np.nan}).mean == 0.0
    assert judge("cosine").loss(lambda a: {"y": -a["x"]}) == pytest.approx(2.0)


def test_the_worst_slice_is_told() -> None:
    calls = iter([0.0, 0.0, 3.0])
    found = judge("max-abs", ["news", "news", "poems"]).accuracy(lambda a: {"y": a["x"] + np.float32(next(calls))})
    assert found.worst_slice() == ("poems", pytest.approx(3.0))
    assert found.slices["news"] == (pytest.approx(0.0), 2)
    assert found.record()["worst_slice"] == "poems"
    assert "slices" not in judge("max-abs").accuracy(lambda a: {"y": a["x"]}).record()


def test_a_metric_in_a_file(tmp_path: Path) -> None:
    script = tmp_path / "mine.py"
    script.write_text("def score(expected, got, inputs):\n    return float((expected['y'] == got['y']).all()) + len(inputs)\n")
    found = judge(str(script)).accuracy(lambda a: {"y": a["x"]})
    assert (found.metric, found.mean) == ("mine.py", 2.0)


@pytest.mark.parametrize("text", ["raise ValueError", "x = 1", "def score(a, b, c):\n    return 'x'",
                                  "def score(a):\n    return 1", "def score(a, b, c):\n    return float('nan')",
                                  "raise SystemExit(3)"])
def test_a_metric_that_fails(text: str, tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text(text)
    with pytest.raises(UsageError, match="E0812"):
        judge(str(tmp_path / "bad.py")).accuracy(lambda a: {"y": a["x"]})


def test_what_is_no_metric() -> None:
    with pytest.raises(UsageError, match="E0812"):
        scorer("accuracy")
    with pytest.raises(UsageError, match="E0812"):
        scorer("nothing.py")


def test_samples_are_fitted_to_exact_profiles() -> None:
    small: Arrays = {"x": np.ones((1, 3), np.float32)}
    assert fitted(small, spec())["x"].shape == (1, 3)
    np.testing.assert_array_equal(fitted(small, spec(DIM_EXACT))["x"], [[1, 1, 1, 0]])
    assert fitted({"x": np.ones((1, 5), np.float32)}, spec(DIM_EXACT))["x"].shape == (2, 8)
    with pytest.raises(UsageError, match="E0813"):
        fitted({"x": np.ones((1, 9), np.float32)}, spec())


# --- budgets ------------------------------------------------------------------------------------------------------------------

LOSSES = {"a": 0.001, "bad": 0.5, "b": 0.002, "worse": 0.9, "c": 0.0}


def _measure(tried: list[int]) -> object:
    def measure(restored: Sequence[str]) -> Accuracy:
        tried.append(len(restored))
        left = 1 - sum(loss for name, loss in LOSSES.items() if name not in restored)
        return Accuracy("cosine", left, left, 1, {})

    return measure


@pytest.mark.parametrize(("least", "restored"), [
    (-1.0, ()), (0.4, ("worse",)), (0.99, ("worse", "bad")), (0.9985, ("worse", "bad", "b")), (0.9995, ("worse", "bad", "b", "a"))])
def test_the_worst_layers_go_back_and_no_more(least: float, restored: tuple[str, ...]) -> None:
    found = budget.restore(list(LOSSES), least, _measure([]), LOSSES.__getitem__)  # type: ignore[arg-type]
    assert found.restored == restored
    assert found.accuracy.holds(least)


def test_few_measurements_find_it() -> None:
    tried: list[int] = []
    names = [str(n) for n in range(100)]

    def measure(restored: Sequence[str]) -> Accuracy:
        tried.append(len(restored))
        return Accuracy("cosine", float(len(restored) >= 37), 0.0, 1, {})

    found = budget.restore(names, 1.0, measure, lambda name: -float(name))
    assert len(found.restored) == 37
    assert len(tried) <= 9


def test_an_engine_that_missed_gets_one_layer_more() -> None:
    for ranking in (budget.rank(list(LOSSES), LOSSES.__getitem__), []):  # none: the graph held, and the engine did not
        found = budget.restore(list(LOSSES), 0.99, _measure([]), LOSSES.__getitem__, 3, ranking)  # type: ignore[arg-type]
        assert found.restored == ("worse", "bad", "b")


def test_less_is_better_for_differences() -> None:
    assert Accuracy("max-abs", 0.1, 0.2, 1, {}).holds(0.15)
    assert not Accuracy("max-abs", 0.1, 0.2, 1, {}).holds(0.05)
    assert not Accuracy("cosine", float("nan"), 0.0, 1, {}).holds(0.0)
