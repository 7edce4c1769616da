"""Placing blocks of memory, and which bytes two touches share, against the plainest way to tell."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from infc.plugins.cpu.placement import Block, by_size, by_time
from infc.plugins.cpu.touches import ANY, NEVER, ROWS, Touch, meeting

SPANS = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 5)).map(lambda s: (s[0], s[0] + s[1])), min_size=1, max_size=3)
BLOCKS = st.lists(st.tuples(st.integers(1, 300), SPANS, SPANS).map(lambda b: Block.of(b[0], [b[1], b[2]])), max_size=12)
TOUCHES = st.builds(Touch, st.just(0), st.just((0, 0)), st.integers(0, 40), st.integers(1, 5), st.integers(1, 12),
                    st.integers(1, 12), st.booleans(), st.booleans(), st.booleans())


def share_a_moment(a: Block, b: Block) -> bool:
    return any(max(p[0], q[0]) <= min(p[1], q[1]) for one, two in zip(a.spans, b.spans, strict=True) for p in one for q in two)


@given(BLOCKS)
def test_blocks_in_use_at_once_are_apart(blocks: list[Block]) -> None:
    sized, timed = by_size(blocks), by_time(blocks)
    for i, j in combinations(range(len(blocks)), 2):
        a, b = blocks[i], blocks[j]
        assert a.meets(b) == share_a_moment(a, b)
        if a.meets(b):
            assert sized[i] + a.size <= sized[j] or sized[j] + b.size <= sized[i]
        for p in a.times:
            for q in b.times:
                if max(p[0], q[0]) <= min(p[1], q[1]):
                    at, other = timed[i][p[0]], timed[j][q[0]]
                    assert at + a.size <= other or other + b.size <= at


@given(TOUCHES, TOUCHES)
def test_which_rows_meet(a: Touch, b: Touch) -> None:
    rows = [[(t.start + r * t.pitch, t.start + r * t.pitch + t.length) for r in range(t.rows)] for t in (a, b)]
    pairs = {(r, s) for r, one in enumerate(rows[0]) for s, two in enumerate(rows[1]) if max(one[0], two[0]) < min(one[1], two[1])}
    wanted = NEVER if not pairs else ROWS if all(r == s for r, s in pairs) else ANY
    if a.length <= a.pitch and b.length <= b.pitch:  # rows that lie over each other are refused before
        assert meeting(a, b) == wanted
