"""However a prompt is put together from pieces, its keys are those of the whole."""

from __future__ import annotations

from array import array

from hypothesis import given
from hypothesis import strategies as st

from router.kvcache.block_keys import Keyring
from router.prompt.tokenization.prefix_cache import CachedSegment, Prefix, make_segment

RING = Keyring(3)
ROOT = RING.root("m", None, "s")
pieces_of_ids = st.lists(st.lists(st.integers(0, 9), max_size=9), max_size=6)


def line_of(pieces: list[CachedSegment], sizes: set[int]) -> Prefix:
    line = Prefix(RING, ROOT, sizes)
    for piece in pieces:
        line.add(piece)
    return line


@given(pieces_of_ids, st.sets(st.integers(1, 6), max_size=3), st.sets(st.integers(1, 6), max_size=3))
def test_new_remembered_and_with_another_block_size(ids: list[list[int]], first: set[int], then: set[int]) -> None:
    pieces = [make_segment(one, spell=True) for one in ids]
    whole = array("I", [id_ for one in ids for id_ in one])
    for sizes in (first, first, then):
        line = line_of(pieces, sizes)
        assert line.ids == whole
        assert line.keys == {size: array("Q", RING.chain(ROOT, whole, size)) for size in sizes}


def test_a_piece_keeps_the_keys_of_blocks_that_end_in_it() -> None:
    """Blocks of 4 over pieces of 3, 6 and 1 ids: none ends in the first, two in the second (after 4 and 8 ids)."""
    pieces = [CachedSegment(array("I", range(n))) for n in (3, 6, 1)]
    line = line_of(pieces, {4})
    assert [len(piece.keys[4]) for piece in pieces] == [0, 2, 0]
    assert pieces[1].keys[4] == line.keys[4]


def test_runs_of_spelled_ids() -> None:
    line = line_of(
        [make_segment([], spell=True), make_segment([1, 23], spell=True), make_segment([4], spell=True)], set()
    )
    assert line.json_ids == [b"1,23", b"4"]
    assert line_of([make_segment([1, 23], spell=False)], set()).json_ids == []
