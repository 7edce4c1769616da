"""MiniLM through the whole of infc, beside PyTorch."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

Arrays = dict[str, np.ndarray]
OUTPUTS = ("last_hidden_state", "sentence_embedding")
SAME = 2e-6  # the same sums in another order


def difference(a: np.ndarray, b: np.ndarray) -> float:
    assert a.shape == b.shape
    assert np.isfinite(a).all()
    return float(np.abs(a - b).max())


@pytest.mark.parametrize(("batch", "seq"), [(1, 128), (1, 16), (8, 128)])
@pytest.mark.parametrize("threads", [1, 2])
def test_parity_with_pytorch(batch: int, seq: int, threads: int, engine_path: Path, reference: Any, tokens: Any) -> None:
    import infc

    rng = np.random.default_rng(batch * seq)
    real = tokens([seq] * batch)
    random = {**real, "input_ids": rng.integers(0, 30522, (batch, seq)), "token_type_ids": rng.integers(0, 2, (batch, seq))}
    engine = infc.Engine(engine_path, threads=threads)
    for inputs in (real, random):
        got, want = engine.run(inputs), reference(inputs)
        assert set(got) == set(OUTPUTS)
        for name in OUTPUTS:
            assert difference(got[name], want[name]) <= 1e-4


def test_padding_changes_nothing(engine: Any, reference: Any, tokens: Any) -> None:
    bare, padded = tokens([77]), tokens([77], width=128)
    a, b, want = engine.run(bare), engine.run(padded), reference(bare)
    assert difference(a["last_hidden_state"], b["last_hidden_state"][:, :77]) <= SAME
    assert difference(a["sentence_embedding"], b["sentence_embedding"]) <= SAME
    assert difference(b["sentence_embedding"], want["sentence_embedding"]) <= 1e-4


def test_what_stands_at_padding_does_not_matter(engine: Any, tokens: Any) -> None:
    padded = tokens([77], width=128)
    scribbled = {**padded, "input_ids": np.where(padded["attention_mask"] == 1, padded["input_ids"], 30521)}
    a, b = engine.run(padded), engine.run(scribbled)
    assert difference(a["last_hidden_state"][:, :77], b["last_hidden_state"][:, :77]) == 0
    assert difference(a["sentence_embedding"], b["sentence_embedding"]) == 0


def test_a_batch_of_mixed_lengths_equals_its_rows_alone(engine: Any, reference: Any, tokens: Any) -> None:
    lengths = [128, 5, 77, 16, 100, 3, 64, 31]
    mixed = tokens(lengths)
    got, want = engine.run(mixed), reference(mixed)
    assert difference(got["sentence_embedding"], want["sentence_embedding"]) <= 1e-4
    for row, length in enumerate(lengths):
        alone = engine.run({name: value[row:row + 1, :length] for name, value in mixed.items()})
        assert difference(got["last_hidden_state"][row, :length], alone["last_hidden_state"][0]) <= SAME
        assert difference(got["sentence_embedding"][row], alone["sentence_embedding"][0]) <= SAME


def test_a_mask_that_is_left_out_means_every_token_counts(engine: Any, tokens: Any) -> None:
    full = tokens([50])
    got = engine.run({"input_ids": full["input_ids"]})
    assert difference(got["sentence_embedding"], engine.run(full)["sentence_embedding"]) == 0


@pytest.mark.slow
def test_time_goes_with_tokens_not_with_the_rectangle(engine: Any, tokens: Any) -> None:
    """A quarter of the tokens of an (8,128) batch takes about a quarter of its time."""
    full = _bound(engine, tokens([128] * 8))
    quarter = _bound(engine, tokens([64, 20, 32, 50, 10, 30, 40, 10], width=128))
    best = {"full": float("inf"), "quarter": float("inf")}
    for _ in range(15):
        best["full"] = min(best["full"], _seconds(full))
        best["quarter"] = min(best["quarter"], _seconds(quarter))
    assert 0.15 <= best["quarter"] / best["full"] <= 0.35


def _bound(engine: Any, inputs: Arrays) -> Callable[[], None]:
    context = engine.context()
    context.bind(inputs, None)
    return context.run  # type: ignore[no-any-return]


def _seconds(run: Callable[[], None]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


@pytest.mark.parametrize(("change", "named"), [
    (lambda f: {**f, "input_ids": np.full_like(f["input_ids"], 30522)}, "input_ids"),
    (lambda f: {**f, "input_ids": np.full_like(f["input_ids"], -1)}, "input_ids"),
    (lambda f: {**f, "input_ids": f["input_ids"].astype(np.float32)}, "input_ids"),
    (lambda f: {**f, "input_ids": f["input_ids"][0]}, "input_ids"),
    (lambda f: {name: np.tile(value, (9, 1)) for name, value in f.items()}, "input_ids"),
    (lambda f: {**f, "attention_mask": f["attention_mask"][:, :-1]}, "attention_mask"),
    (lambda f: {**f, "inputs_ids": f["input_ids"]}, "inputs_ids"),
    (lambda f: {"attention_mask": f["attention_mask"]}, "input_ids"),
], ids=["beyond vocabulary", "negative", "dtype", "rank", "batch too large", "lengths differ", "wrong name", "missing"])
def test_a_wrong_input_is_an_error_that_names_it(change: Any, named: str, engine: Any, tokens: Any) -> None:
    import infc

    with pytest.raises(infc.Error, match=named):
        engine.run(change(tokens([16])))
    assert np.isfinite(engine.run(tokens([16]))["sentence_embedding"]).all()


def test_the_same_bytes_from_two_directories_and_processes(build: Any, minilm: Path, engine_path: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    build(minilm, tmp_path / "again.infc", "--no-tune", cwd=tmp_path / "elsewhere")
    assert _digest(tmp_path / "again.infc") == _digest(engine_path)


@pytest.mark.slow
def test_the_same_bytes_with_a_warm_timing_cache(build: Any, minilm: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.symlink_to(minilm)
    cache = tmp_path / "timing.json"
    build(minilm, tmp_path / "cold.infc", "--timing-cache", str(cache))
    build(minilm, tmp_path / "a.infc", "--timing-cache", str(cache))
    build(copy.resolve(), tmp_path / "b.infc", "--timing-cache", str(cache), cwd=tmp_path)
    assert len({_digest(tmp_path / f"{n}.infc") for n in ("cold", "a", "b")}) == 1


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_nothing_of_this_machine_is_in_the_artifact(engine_path: Path, minilm: Path) -> None:
    data = engine_path.read_bytes()
    for path in (minilm, Path(__file__).resolve().parents[2], engine_path.parent):
        assert str(path).encode() not in data
