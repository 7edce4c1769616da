"""Inputs for each operator, and what its outputs must be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from tests.gpu.operators import BY_NAME, Operator, dtypes, int4_mat_vec

Arrays = Mapping[str, np.ndarray]
ROUNDING = 4e-6  # of f32: the sums' order, and an approximate reciprocal square root


@dataclass(frozen=True)
class Case:
    """``text`` says which. ``exact``: nothing is rounded before the outputs are, so that ties are ties."""

    op: Operator
    text: str
    inputs: dict[str, np.ndarray]
    attributes: dict[str, float]
    exact: bool = False

    def wrong(self, outputs: Arrays) -> str:
        """ "", or what differs."""
        return CHECKS[self.op.name](self, outputs)


def norm(
    rows: tuple[int, ...], hidden: int, dtype: str, output: str, seed: int = 0, spread: float = 1.0, scale: float = 0.03
) -> Case:
    """``spread``: the activations' standard deviation. A few of them are outliers, as in language models."""
    rng = np.random.default_rng(seed)
    x, residual = (rng.standard_normal((*rows, hidden)).astype(np.float32) * spread for _ in range(2))
    x[..., rng.integers(0, hidden)] *= 40
    inputs = {
        "x": dtypes.from_f32(x, dtype),
        "residual": dtypes.from_f32(residual, dtype),
        "gamma": dtypes.from_f32(1 + rng.standard_normal(hidden).astype(np.float32) / 4, dtype),
        "scale": np.float32([scale]),
    }
    attributes = {"epsilon": 1e-5, "output_dtype": dtypes.DTYPES[output].onnx}
    return Case(BY_NAME["AddRMSNormQuantize"], f"{dtype} {output} [{', '.join(map(str, (*rows, hidden)))}]", inputs, attributes)


def mat_vec(rows: int, k: int, n: int, group: int, zeros: bool, seed: int = 0) -> Case:
    rng = np.random.default_rng(seed)
    weights = rng.integers(0, 16, (n, k), np.uint8)
    inputs = {
        "x": rng.standard_normal((rows, k)).astype(np.float16),
        "w": int4_mat_vec.pack(weights),
        "scales": (rng.random((n, k // group)) / 50 + 0.001).astype(np.float16),
    }
    if zeros:
        inputs["zeros"] = rng.integers(0, 16, (n, k // group)).astype(np.int8)
    return Case(
        BY_NAME["Int4MatVec"],
        f"rows {rows}, k {k}, n {n}, group {group}{', zero points' if zeros else ''}",
        inputs,
        {"group_size": group},
    )


def _wrong_norm(case: Case, outputs: Arrays) -> str:
    expected = case.op.reference(case.inputs, case.attributes)
    dtype = "f16" if case.inputs["x"].dtype == np.float16 else "bf16"
    output = next(t for t in ("int8", "fp8") if dtypes.DTYPES[t].onnx == case.attributes["output_dtype"])
    total = dtypes.to_f32(expected["sum"], dtype)
    if not np.array_equal(dtypes.to_f32(outputs["sum"], dtype), total, equal_nan=True):
        return "sum differs"
    with np.errstate(all="ignore"):  # in f64, without the rounding to the output's type
        mean = np.float32(np.mean(total.astype(np.float64) ** 2, axis=-1, keepdims=True)).astype(np.float64)
        values = (
            total / np.sqrt(mean + case.attributes["epsilon"]) * dtypes.to_f32(case.inputs["gamma"], dtype) / case.inputs["scale"]
        )
        slack = 0 if case.exact else ROUNDING
        ends = [dtypes.to_f32(dtypes.from_f32((values * s).astype(np.float32), output), output) for s in (1 - slack, 1 + slack)]
    got = dtypes.to_f32(outputs["y"], output)
    right = ((np.minimum(*ends) <= got) & (got <= np.maximum(*ends))) | (np.isnan(got) & np.isnan(ends[0]))
    return "" if right.all() else _first("y", got, ends[0], right)


def _wrong_mat_vec(case: Case, outputs: Arrays) -> str:
    x, k, group = case.inputs["x"], case.inputs["x"].shape[-1], int(case.attributes["group_size"])
    expected = case.op.reference(case.inputs, case.attributes)["y"].astype(np.float64)
    span = np.abs(x.astype(np.float64)) @ np.repeat(np.abs(case.inputs["scales"].astype(np.float64)) * 15, group, axis=1).T
    with np.errstate(all="ignore"):
        allowed = np.abs(expected) * 2.0**-10 + span * k**0.5 * 2.0**-24 + 2.0**-24  # a step of f16, and f32's sums
        got = outputs["y"].astype(np.float64)
        right = (np.abs(got - expected) <= allowed) | (got == expected) | (np.isnan(got) & np.isnan(expected))
    return "" if right.all() else _first("y", got, expected, right)


def _first(name: str, got: np.ndarray, expected: np.ndarray, right: np.ndarray) -> str:
    at = tuple(int(i) for i in np.argwhere(~right)[0])
    return f"{name}{list(at)} is {got[at]}, not {expected[at]}; {np.count_nonzero(~right)} of {right.size} are wrong"


CHECKS: dict[str, Callable[[Case, Arrays], str]] = {"AddRMSNormQuantize": _wrong_norm, "Int4MatVec": _wrong_mat_vec}


def small() -> list[Case]:
    """Every kernel, and sizes at the edges of vectors, warps, blocks and units."""
    cases = [
        norm(rows, hidden, dtype, output, seed=hidden)
        for dtype in ("f16", "bf16")
        for output in ("int8", "fp8")
        for rows, hidden in (((1,), 8), ((3,), 72), ((5,), 256), ((2, 3), 1024), ((2,), 1032), ((1,), 8192), ((1,), 8200))
    ]
    cases.append(norm((4,), 128, "bf16", "int8", spread=1e-3))  # epsilon weighs
    cases += [
        mat_vec(rows, k, n, group, zeros, seed=rows * k)
        for rows in (1, 2, 3, 4, 5, 8)
        for k, n, group, zeros in ((32, 1, 32, False), (896, 6, 64, True), (1280, 5, 128, False))
    ]
    cases += [mat_vec(1, k, 9, group, zeros) for k in (128, 384, 1024, 4224) for group in (32, 64, 128) for zeros in (False, True)]
    return cases + special()


def special() -> list[Case]:
    """Infinity, NaN, saturation, zeros and ties."""
    cases = []
    for dtype in ("f16", "bf16"):
        for output in ("int8", "fp8"):
            case = norm((6,), 64, dtype, output, scale=1e-4)  # saturates
            x = dtypes.to_f32(case.inputs["x"], dtype)
            x[1, 3], x[2, 5], x[3, 7], x[4] = np.nan, np.inf, -np.inf, 0
            residual = dtypes.to_f32(case.inputs["residual"], dtype)
            residual[4], residual[5], x[5] = 0, 6e4, 6e4  # a row of zeros; a sum that overflows f16
            for name, values in (("x", x), ("residual", residual)):
                case.inputs[name] = dtypes.from_f32(values, dtype)
            cases.append(Case(case.op, case.text + " special values", case.inputs, case.attributes))
            # sum = ±1 makes the norm 1, so that gamma / scale is the value before rounding: halves and steps of every size.
            steps = np.concatenate(
                [np.arange(-130, 130, 0.5), np.ldexp(np.float32(1.0625), np.arange(-12, 9)), [448, 460, 464, 480, 1e4]]
            )
            gamma = np.resize(steps, -(-steps.size // 8) * 8).astype(np.float32)
            x = np.where(np.arange(2 * gamma.size).reshape(2, -1) % 3 == 0, -1, 1)
            cases.append(
                Case(
                    case.op,
                    f"{dtype} {output} ties",
                    {
                        "x": dtypes.from_f32(x, dtype),
                        "residual": dtypes.from_f32(np.zeros(x.shape), dtype),
                        "gamma": dtypes.from_f32(gamma, dtype),
                        "scale": np.float32([1]),
                    },
                    {**case.attributes, "epsilon": 0.0},
                    exact=True,
                )
            )
    case = mat_vec(3, 256, 8, 64, True)
    case.inputs["x"][0, 5], case.inputs["x"][1, 9], case.inputs["x"][2] = np.nan, np.inf, 65504
    case.inputs["scales"][3] = 65504  # overflows to infinity
    return [*cases, Case(case.op, "special values", case.inputs, case.attributes)]


def large() -> list[Case]:
    """As large as in language models: for times."""
    return [
        norm((4096,), 4096, "f16", "int8"),
        norm((4096,), 4096, "bf16", "fp8"),
        norm((16384,), 1024, "f16", "int8"),
        *(mat_vec(rows, 4096, 14336, 128, True) for rows in (1, 2, 4, 8)),
        mat_vec(1, 14336, 4096, 128, True),
        mat_vec(1, 4096, 4096, 32, False),
    ]
