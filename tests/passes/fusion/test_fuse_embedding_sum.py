from __future__ import annotations

import numpy as np
import pytest

from infc.passes.fusion.fuse_embedding_sum import FuseEmbeddingSum
from tests.passes.support import apply, find, graph, normal, ops, unchanged

TABLES = {"word": normal(10, 4), "kind": normal(12, 4, seed=1), "place": normal(20, 4, seed=2), "extra": normal(11, 4, seed=3)}
IN = "(int64[batch,seq] ids, int64[batch,seq] types"
G = "a = Gather(word, ids) b = Gather(kind, types) "


@pytest.mark.parametrize("body", ["s = Add(a, b) y = Add(s, c)", "s = Add(b, c) y = Add(a, s)"])
def test_three_tables_one_of_positions(body: str) -> None:
    model = graph(f"{IN}, int64[1,seq] at) => (float[batch,seq,4] y) {{ {G} c = Gather(place, at) {body} }}", TABLES)
    apply(model, FuseEmbeddingSum)
    assert ops(model) == {"EmbeddingSum": 1}
    assert [v.name for v in find(model, "EmbeddingSum").inputs] == ["ids", "word", "types", "kind", "at", "place"]


def test_two_tables() -> None:
    model = graph(f"{IN}) => (float[batch,seq,4] y) {{ {G} y = Add(a, b) }}", TABLES)
    apply(model, FuseEmbeddingSum)
    assert ops(model) == {"EmbeddingSum": 1}


def test_five_tables_are_too_many() -> None:
    names = "abcde"
    gathers = " ".join(f"{n} = Gather({t}, ids)" for n, t in zip(names, [*TABLES, "word"], strict=True))
    model = graph(
        f"{IN}) => (float[batch,seq,4] y) {{ {gathers} s = Add(a, b) t = Add(s, c) u = Add(t, d) y = Add(u, e) }}", TABLES
    )
    assert unchanged(model, FuseEmbeddingSum) == ["5 tables are more than 4"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (f"{IN}) => (float[batch,seq,4] y, float[batch,seq,4] a) {{ {G} y = Add(a, b) }}", "a is used elsewhere"),
        (
            f"{IN}, float[batch,seq,4] x) => (float[batch,seq,4] y) {{ {G} c = Gather(place, ids) s = Add(a, x) t "
            f"= Add(b, c) y = Add(s, t) }}",
            None,
        ),
        (
            f"{IN}) => (float[batch,seq,4] y) {{ a = Gather(word, ids) b = Gather<axis=1>(sideways, types) c = "
            f"Neg(a) y = Add(c, c) }}",
            None,
        ),
        (
            "(int64[batch,seq] ids, float[10,4] given) => (float[batch,seq,4] y) "
            "{ a = Gather(word, ids) b = Gather(given, ids) y = Add(a, b) }",
            None,
        ),
    ],
)
def test_does_not_match(text: str, reason: str | None) -> None:
    model = graph(text, TABLES | {"sideways": normal(4, 12)})
    if "x)" in text:  # the part that is a sum of rows is taken all the same
        apply(model, FuseEmbeddingSum)
        assert ops(model)["EmbeddingSum"] == 1
        return
    found = unchanged(model, FuseEmbeddingSum)
    assert found == ([reason] if reason else [])


def test_a_sum_that_broadcasts_beyond_the_ids_is_a_near_miss() -> None:
    model = graph(
        "(int64[batch,seq] ids) => (float[batch,seq,4] y) { a = Gather(word, ids) b = Gather(narrow, ids) y = Add(a, b) }",
        {"word": TABLES["word"], "narrow": normal(10, 1)},
    )
    assert "do not give" in unchanged(model, FuseEmbeddingSum)[0]


def test_scalar_ids() -> None:
    model = graph(
        "(int64[batch,seq] ids) => (float[batch,seq,4] y) { a = Gather(word, ids) b = Gather(kind, third) y = Add(a, b) }",
        {**TABLES, "third": np.array(3)},
    )
    apply(model, FuseEmbeddingSum)
    assert ops(model) == {"EmbeddingSum": 1}
