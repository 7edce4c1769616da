"""Operators that order, sum up, transform or contract, with random shapes."""

from __future__ import annotations

import numpy as np
import pytest

from tests.plugins.cpu.rules.ops import check, floats, shape_of

SEEDS = range(20)


@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("seed", SEEDS)
def test_arg(op: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = shape_of(rng)
    x = rng.integers(-3, 4, shape).astype((np.float32, np.int32)[seed % 2])
    check(op, {"x": x}, axis=int(rng.integers(-len(shape), len(shape))), keepdims=int(rng.integers(2)),
          select_last_index=int(rng.integers(2)))


@pytest.mark.parametrize("seed", SEEDS)
def test_top_k(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = shape_of(rng, size=9)
    axis = int(rng.integers(len(shape)))
    x = rng.integers(-5, 6, shape).astype((np.float32, np.int64)[seed % 2])
    check("TopK", {"x": x, "k": np.array([rng.integers(1, shape[axis] + 1)])}, ["k"], outputs=2, axis=axis,
          largest=int(rng.integers(2)))


@pytest.mark.parametrize("seed", SEEDS)
def test_cumulative_sum(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = shape_of(rng)
    x = floats(rng, *shape) if seed % 2 else rng.integers(-9, 9, shape)
    check("CumSum", {"x": x, "a": np.array(rng.integers(-len(shape), len(shape)))}, ["a"], exclusive=int(rng.integers(2)),
          reverse=int(rng.integers(2)))


@pytest.mark.parametrize("seed", SEEDS)
def test_hardmax(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = shape_of(rng)
    check("Hardmax", {"x": rng.integers(-2, 3, shape).astype(np.float32)}, axis=int(rng.integers(-len(shape), len(shape))))


@pytest.mark.parametrize("seed", SEEDS)
def test_det(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 7))
    check("Det", {"x": floats(rng, *shape_of(rng, 0, 2), n, n)}, opset=22)


@pytest.mark.parametrize("seed", SEEDS)
def test_dft(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, parts = int(rng.integers(2, 40)), 1 + seed % 2
    x = floats(rng, 2, n, 3, parts)
    length = int(rng.integers(2, 40))
    signal = x[..., 0] + (1j * x[..., 1] if parts == 2 else 0)
    inverse, onesided = bool(seed % 4 == 3), bool(seed % 4 == 0)
    z = (np.fft.ifft if inverse else np.fft.fft)(signal, length, axis=1)
    z = z[:, : length // 2 + 1] if onesided else z
    want = np.stack([z.real, z.imag], axis=-1).astype(np.float32)
    check("DFT", {"x": x, "n": np.array(length), "a": np.array(-3)}, ["n", "a"], want=[want], opset=20, inverse=int(inverse),
          onesided=int(onesided))


@pytest.mark.parametrize("window", ["none", "known", "given"])
@pytest.mark.parametrize("seed", range(4))
def test_stft(window: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    length, step = int(rng.integers(2, 20)), int(rng.integers(1, 9))
    inputs = {"x": floats(rng, 2, 70, 1), "s": np.array(step), "w" if window != "none" else "-w": floats(rng, length),
              "n": np.array(length)}
    check("STFT", inputs, ["s", "n", *(["w"] if window == "known" else [])], opset=17, onesided=seed % 2)


EQUATIONS = ["ij,jk->ik", "bij,bjk->bik", "bhqd,bhkd->bhqk", "ij,ij->", "i,j->ij", "ii->i", "ii", "ij->ji", "...ij,...jk->...ik",
             "ijk->j", "ab,bc,cd->ad", "bij,bjk", "i,i", "bi,oij,bj->bo", "aab,bc->ac", "...i->...", "ij,kj", "abc,cd->abd"]


@pytest.mark.parametrize("equation", EQUATIONS)
@pytest.mark.parametrize("seed", range(3))
def test_einsum(equation: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    size = {c: int(rng.integers(1, 6)) for c in "abcdhijkoq"}
    lead = shape_of(rng, 1, 2)
    operands = []
    for term in equation.split("->")[0].split(","):
        shape = [*(lead if "..." in term else ()), *(size[c] for c in term.replace("...", ""))]
        operands.append(floats(rng, *shape))
    want = np.einsum(equation, *[o.astype(np.float64) for o in operands]).astype(np.float32)
    check("Einsum", {f"x{i}": o for i, o in enumerate(operands)}, want=[np.asarray(want)], equation=equation)


@pytest.mark.parametrize("op", ["InstanceNormalization", "GroupNormalization", "BatchNormalization", "LpNormalization"])
@pytest.mark.parametrize("seed", range(6))
def test_norms(op: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    groups, rank = int(rng.integers(1, 4)), int(rng.integers(1, 4))
    x = floats(rng, 2, groups * int(rng.integers(1, 5)), *rng.integers(2, 6, rank))
    c = x.shape[1]
    inputs = {"x": x, "s": floats(rng, c), "b": floats(rng, c)}
    known = ["s", "b"] if seed % 2 else []
    if op == "LpNormalization":
        x[0, :, 0] = 0
        axis, p = 1, 1 + seed % 2
        size = np.linalg.norm(x, p, axis=axis, keepdims=True) if p == 2 else np.abs(x).sum(axis=axis, keepdims=True)
        check(op, {"x": x}, want=[np.where(size == 0, 0, x / np.where(size == 0, 1, size)).astype(np.float32)], axis=axis, p=p)
    elif op == "BatchNormalization":
        inputs |= {"m": floats(rng, c), "v": np.abs(floats(rng, c)) + np.float32(0.1)}
        check(op, inputs, [*known, *(["m", "v"] if known else [])], epsilon=1e-3)
    elif op == "InstanceNormalization":
        check(op, inputs, known, epsilon=1e-3)
    else:
        check(op, inputs, known, opset=21, num_groups=groups)


@pytest.mark.parametrize("op", ["Tan", "Asin", "Acos", "Atan", "Sinh", "Cosh", "Asinh", "Acosh", "Atanh"])
def test_trigonometric(op: str) -> None:
    x = np.random.default_rng(1).uniform(1, 3, (3, 50)).astype(np.float32)
    x = x if op == "Acosh" else (x - 2) * np.float32(0.98)
    check(op, {"x": x}, opset=22)


@pytest.mark.parametrize("mode", ["TF", "IDF", "TFIDF"])
@pytest.mark.parametrize("seed", range(4))
def test_tf_idf(mode: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 4, (3, 12) if seed % 2 else (12,)).astype(np.int32)
    check("TfIdfVectorizer", {"x": x}, opset=9, mode=mode, min_gram_length=1 + seed // 2, max_gram_length=2, max_skip_count=seed,
          ngram_counts=[0, 4], ngram_indexes=[6, 1, 2, 0, 5, 4, 3], pool_int64s=[0, 1, 2, 3, 0, 1, 2, 2, 3, 0],
          weights=[0.5, 2, 3, 4, 5, 6, 7.0])
