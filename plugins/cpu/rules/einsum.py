"""Einsum, as products of matrices where two operands share a sum, else of elements."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from infc.plugins.cpu.lower import Lowering, rule
from infc.plugins.cpu.rules.elementwise import binary
from infc.plugins.cpu.rules.linear import matmul
from infc.plugins.cpu.rules.movement import expand, reshape, transpose
from infc.plugins.cpu.rules.rows import reduce
from infc.plugins.cpu.values import Tensor, product

Labelled = tuple[str, Tensor]  # a letter a dimension


def _parse(lo: Lowering, equation: str, ranks: Sequence[int]) -> tuple[list[str], str]:
    """Letters of each operand and of the result; dimensions of an ellipsis become capitals that no letter uses."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(ranks):
        raise lo.unsupported(f"{len(ranks)} operands for '{equation}'")
    spare = [c for c in "ABCDEFGHIJKLMNOPQRSTUVWXYZ" if c not in equation]
    widest = max((rank - len(t) + 3 for t, rank in zip(terms, ranks, strict=True) if "..." in t), default=0)
    free = "".join(spare[:widest])
    terms = [t.replace("...", free[widest - (rank - len(t) + 3) :]) for t, rank in zip(terms, ranks, strict=True)]
    if any(len(t) != rank for t, rank in zip(terms, ranks, strict=True)):
        raise lo.unsupported(f"'{equation}' for operands of rank {list(ranks)}")
    if arrow:
        return terms, right.replace("...", free)
    letters = "".join(terms)
    return terms, free + "".join(c for c in sorted(set(letters) - set(free)) if letters.count(c) == 1)


def _diagonal(lo: Lowering, letters: str, x: Tensor) -> Labelled:
    """With every letter once: dimensions of the same letter are walked together."""
    once = "".join(dict.fromkeys(letters))
    axes = [[i for i, c in enumerate(letters) if c == o] for o in once]
    if any(len({x.dims[i] for i in group}) > 1 for group in axes):
        raise lo.unsupported("dimensions of one letter that differ")
    lo.rectangle(x)
    return once, x.view([x.dims[g[0]] for g in axes], [sum(x.strides[i] for i in g) for g in axes], [x.symbols[g[0]] for g in axes])


def _sum(lo: Lowering, operand: Labelled, kept: str) -> Labelled:
    """Summed over the letters that nobody needs."""
    letters, x = operand
    axes = [i for i, c in enumerate(letters) if c not in kept]
    return "".join(c for c in letters if c in kept), reduce(lo, x, "sum", axes, False) if axes else x


def _arranged(operand: Labelled, wanted: str) -> Tensor:
    """Dimensions in the wanted order, missing ones as 1."""
    letters, x = operand
    x = transpose(x, [letters.index(c) for c in wanted if c in letters])
    dims, strides, symbols = iter(x.dims), iter(x.strides), iter(x.symbols)
    parts = [(next(dims), next(strides), next(symbols)) if c in letters else (1, 1, None) for c in wanted]
    return x.view([d for d, _, _ in parts], [s for _, s, _ in parts], [s for _, _, s in parts])


def _contract(lo: Lowering, a: Labelled, b: Labelled, needed: str) -> Labelled:
    """One operand of two: letters of both that nobody else needs are summed."""
    a = _sum(lo, a, needed + b[0])
    b = _sum(lo, b, needed + a[0])
    summed = [c for c in a[0] if c in b[0] and c not in needed]
    batch = "".join(c for c in a[0] if c in b[0] and c in needed)
    rows, columns = ("".join(c for c in t if c not in o) for t, o in ((a[0], b[0]), (b[0], a[0])))
    result = batch + rows + columns
    if not summed or a[1].dtype != "f32":
        both = batch + rows + columns + "".join(summed)
        return _sum(lo, (both, binary(lo, _arranged(a, both), _arranged(b, both), "mul")), result)
    size = {c: d for t, x in (a, b) for c, d in zip(t, x.dims, strict=True) if d != 1}
    sizes = [[size.get(c, 1) for c in group] for group in (batch, rows, "".join(summed), columns)]
    shared, m, k, n = sizes

    def matrix(operand: Labelled, order: str, first: list[int], second: list[int]) -> Tensor:
        x = _arranged(operand, order)
        x = expand(x, [size.get(c, 1) for c in order], x.symbols)
        return reshape(lo, x, (*shared, product(first), product(second)), [*x.symbols[: len(shared)], None, None])

    y = matmul(lo, matrix(a, batch + rows + "".join(summed), m, k), matrix(b, batch + "".join(summed) + columns, k, n))
    return result, reshape(lo, y, (*shared, *m, *n), [*y.symbols[: len(shared)], *[None] * (len(m) + len(n))])


@rule("Einsum")
def _einsum(lo: Lowering, node: ir.Node) -> Tensor:
    inputs = lo.inputs()
    terms, right = _parse(lo, lo.attribute("equation"), [len(x.dims) for x in inputs])
    operands = [_diagonal(lo, t, x) for t, x in zip(terms, inputs, strict=True)]
    while len(operands) > 1:
        a, b, *rest = operands
        needed = right + "".join(t for t, _ in rest)
        operands = [_contract(lo, a, b, needed), *rest]
    letters, x = _sum(lo, operands[0], right)
    if set(letters) != set(right):
        raise lo.unsupported(f"the result '{right}' of '{letters}'")
    return transpose(x, [letters.index(c) for c in right])
