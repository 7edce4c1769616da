"""Metrics, slices and budgets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from infc.compiler.artifact.io import IoSpec, IoSymbol, IoTensor
from infc.compiler.artifact.layout import DIM_EXACT, DIM_PADS
from infc.compiler.calibrate import budget
from infc.compiler.calibrate.accuracy import Accuracy, Judge, check, fitted, scorer
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


def odd(number: float, cosine: bool) -> Judge:
    """Of three samples the first has an odd number."""
    items = [Item({"x": np.array([[n, 2, 3, 4]], np.float32)}, bytes([n]), "") for n in range(3)]
    items[0].content["x"][0, 0] = number  # type: ignore[index]
    return Judge(items, lambda item: item.content if isinstance(item.content, dict) else {}, lambda a: {"y": a["x"]}, spec(),
                 INTERFACE, "cosine" if cosine else "max-abs")


def test_samples_of_which_the_model_makes_nan_tell_nothing() -> None:
    found = odd(np.nan, True)
    assert (len(found), found.left_out) == (2, 1)
    assert found.accuracy(lambda a: {"y": a["x"]}).worst == pytest.approx(1)
    items = [Item({"x": np.full((1, 4), np.nan, np.float32)}, b"", "")]
    with pytest.raises(UsageError, match="of all 1 samples"):
        Judge(items, lambda item: item.content, lambda a: {"y": a["x"]}, spec(), INTERFACE, "cosine")  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize("cosine", [True, False])
def test_infinity_is_what_it_is_and_no_number(cosine: bool) -> None:
    found = odd(np.inf, cosine)
    assert len(found) == 3
    right, wrong = 1.0 if cosine else 0.0, 0.0 if cosine else np.inf
    assert found.accuracy(lambda a: {"y": a["x"]}).worst == pytest.approx(right)
    assert found.accuracy(lambda a: {"y": np.where(np.isinf(a["x"]), np.float32(7), a["x"])}).worst == wrong


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


# --- perplexity ---------------------------------------------------------------------------------------------------------------

VOCABULARY = 11
TOKENS = [3, 1, 4, 1, 5, 9, 2, 6]
LANGUAGE = Interface((TensorSpec("input_ids", "i64", ("tokens",)), TensorSpec("logit_rows", "i64", ("rows",))),
                     (TensorSpec("logits", "f32", ("rows", VOCABULARY)),), indices={"logit_rows": "tokens"})


def language_judge(texts: Sequence[Sequence[int]], rows: Sequence[int], model: Callable[[Arrays], Arrays]) -> Judge:
    io = IoSpec([IoTensor("input_ids", "i64", ("tokens",)), IoTensor("logit_rows", "i64", ("rows",))],
                [IoTensor("logits", "f32", ("rows", VOCABULARY))], [IoSymbol(n, DIM_PADS) for n in ("tokens", "rows")],
                [{"tokens": 16, "rows": 16}])
    items = [Item({"input_ids": np.array(t), "logit_rows": np.array([r for r in rows if r < len(t)])}, bytes([n]), f"of {len(t)}")
             for n, t in enumerate(texts)]
    return Judge(items, lambda item: item.content if isinstance(item.content, dict) else {}, model, io, LANGUAGE, "perplexity")


def logits(seed: int, sharper: float = 1.0) -> Callable[[Arrays], Arrays]:
    """Of a model that knows nothing but the place."""
    table = np.random.default_rng(seed).standard_normal((16, VOCABULARY)).astype(np.float32)
    return lambda a: {"logits": table[a["logit_rows"]] * np.float32(sharper)}


def always(found: np.ndarray) -> Callable[[Arrays], Arrays]:
    return lambda a: {"logits": found}


def loss(model: Callable[[Arrays], Arrays], text: Sequence[int], rows: Sequence[int]) -> float:
    """Written out: the mean of -log softmax at the tokens that follow."""
    found = model({"logit_rows": np.array(rows)})["logits"].astype(np.float64)
    chances = np.exp(found) / np.exp(found).sum(1, keepdims=True)
    return float(np.mean([-np.log(chances[i, text[row + 1]]) for i, row in enumerate(rows)]))


def test_perplexity_is_a_multiple_of_the_models() -> None:
    rows, texts = [0, 2, 5, 7], [TOKENS, TOKENS[::-1], TOKENS[:3]]  # what follows the last token is not known
    ours, theirs = logits(1, 3.0), logits(0)
    rises = [loss(ours, t, r) - loss(theirs, t, r) for t, r in ((texts[0], [0, 2, 5]), (texts[1], [0, 2, 5]), (texts[2], [0]))]
    found = language_judge(texts, rows, theirs).accuracy(ours)
    assert found.mean == pytest.approx(np.exp(np.mean(rises)), rel=1e-5)
    assert found.worst == pytest.approx(np.exp(max(rises)), rel=1e-5)
    assert found.slices["of 3"] == (pytest.approx(np.exp(rises[2]), rel=1e-5), 1)
    assert found.worst_slice() == max(((n, m) for n, (m, _) in found.slices.items()), key=lambda s: s[1])
    assert language_judge(texts, rows, theirs).accuracy(theirs).mean == 1
    assert found.holds(found.mean * 1.01)
    assert not found.holds(found.mean * 0.99)


def test_perplexity_of_logits_that_are_broken_holds_no_budget() -> None:
    judge = language_judge([TOKENS], [0, 1], logits(0))
    for broken in (np.nan, np.inf):
        assert not judge.accuracy(always(np.full((2, VOCABULARY), broken, np.float32))).holds(1e9)
    certain = np.full((2, VOCABULARY), -1e5, np.float32)
    certain[:, 0] = 1e5  # which none of the tokens is
    assert judge.accuracy(always(certain)).mean == np.inf


def test_perplexity_needs_what_follows() -> None:
    assert len(language_judge([[1], TOKENS], [0], logits(0))) == 1
    with pytest.raises(UsageError, match="E0812"):
        language_judge([[1], [2]], [0], logits(0))
    check("perplexity", LANGUAGE)
    check("cosine", INTERFACE)
    with pytest.raises(UsageError, match="E0812"):
        check("perplexity", INTERFACE)


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
    assert Accuracy("perplexity", 1.03, 1.2, 1, {}).holds(1.04)
    assert not Accuracy("perplexity", 1.05, 1.2, 1, {}).holds(1.04)
    assert not Accuracy("cosine", float("nan"), 0.0, 1, {}).holds(0.0)
