"""Counting pieces: the same number however the bytes are cut into reads."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tests.bench.pieces import PIECE, Pieces

# two pieces, and one that is only quoted
ANSWER = b'data: {"delta": {"content": "a"}}\n\ndata: {"delta": {"content": " \\"content\\": b"}}\n\n'


@given(st.lists(st.integers(0, len(ANSWER)), max_size=12))
def test_a_piece_counts_once_wherever_reads_end(cuts: list[int]) -> None:
    pieces, ends = Pieces(), [0, *sorted(cuts), len(ANSWER)]
    for begin, end in pairwise(ends):
        pieces.read(ANSWER[begin:end])
    assert pieces.seen == ANSWER.count(PIECE) == 2
