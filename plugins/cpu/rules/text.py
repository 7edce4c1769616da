"""Counts of word groups in token sequences."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import onnx_ir as ir

from infc.plugins.cpu.lower import Lowering, rule
from infc.plugins.cpu.rules.elementwise import binary, scalar, select
from infc.plugins.cpu.rules.indexing import filled, scatter_elements
from infc.plugins.cpu.rules.movement import cut, expand, reshape
from infc.plugins.cpu.rules.rows import reduce
from infc.plugins.cpu.types import cast
from infc.plugins.cpu.values import NUMPY, Tensor


def _found(lo: Lowering, tokens: Tensor, grams: np.ndarray, skip: int) -> Tensor | None:
    """How often each of ``[G, n]`` groups is in ``[B, S]`` tokens, ``skip`` of which lie between its members; ``[B, G]`` f32, or
    None where there are too few tokens."""
    size = grams.shape[1]
    places = tokens.dims[1] - (size - 1) * (skip + 1)
    if places < 1:
        return None
    match: Tensor | None = None
    for i in range(size):
        part = cut(tokens, 1, i * (skip + 1), places)
        column = part.view((*part.dims, 1), (*part.strides, 1))
        same = binary(lo, column, lo.constant(grams[:, i].astype(NUMPY[tokens.dtype])), "equal")
        match = same if match is None else binary(lo, match, same, "and")
    assert match is not None
    return reduce(lo, cast(lo, match, "f32"), "sum", [1], False)


@rule("TfIdfVectorizer")
def _tf_idf(lo: Lowering, node: ir.Node) -> Tensor:
    """Groups of each size, at each number of skipped tokens, are compared with all places at once."""
    x = lo.want(lo.input(0), "i32", "i64")
    pool, starts = np.array(lo.attribute("pool_int64s", [])), [*lo.attribute("ngram_counts"), None]
    places, weights = np.array(lo.attribute("ngram_indexes")), lo.attribute("weights")
    shortest, longest, skips = (lo.attribute(n) for n in ("min_gram_length", "max_gram_length", "max_skip_count"))
    mode = lo.attribute("mode")
    tokens = x if len(x.dims) == 2 else x.view((1, *x.dims), (0, *x.strides))
    width, before = int(places.max()) + 1, 0
    y = filled(lo, expand(scalar(lo, 0.0), (tokens.dims[0], width), ()))
    for size, (start, end) in enumerate(pairwise(starts), 1):
        grams = pool[start:end].reshape(-1, size)
        own = lo.constant(places[before : before + len(grams)].reshape(1, -1).astype(np.int32))
        before += len(grams)
        if not shortest <= size <= longest or not len(grams):
            continue
        for skip in range(skips + 1 if size > 1 else 1):
            counts = _found(lo, tokens, grams, skip)
            if counts is not None:
                scatter_elements(lo, y, expand(own, counts.dims, ()), counts, 1, "add")
    if mode != "TF":
        factor = np.ones(width, np.float32)
        if weights is not None:
            factor[places] = weights
        known = lo.constant(factor)
        zero = scalar(lo, 0.0)
        y = select(lo, binary(lo, y, zero, "greater"), known, zero) if mode == "IDF" else binary(lo, y, known, "mul")
    return reshape(lo, y, (*x.dims[:-1], width), [None] * len(x.dims))
