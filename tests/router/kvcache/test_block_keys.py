from array import array

from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from router.kvcache.block_keys import Keyring

RING = Keyring(7)
ROOT = RING.root("m", None, None)
names = st.one_of(st.none(), st.text(max_size=5))


def test_a_key_is_xxh3_over_the_parent_and_the_ids() -> None:
    keys = RING.chain(ROOT, list(range(1, 9)), 4)
    ids = b"".join(token.to_bytes(4, "little") for token in range(1, 5))
    assert keys[0] == xxh3_64_intdigest(ROOT.to_bytes(8, "little") + ids, 7)
    assert len(keys) == 2
    assert keys[1] == RING.chain(keys[0], [5, 6, 7, 8], 4)[0]


@given(st.lists(st.integers(0, 2**32 - 1), max_size=50), st.integers(1, 9), st.integers(0, 50))
def test_a_chain_can_be_continued_anywhere(ids: list[int], block: int, blocks: int) -> None:
    whole = RING.chain(ROOT, ids, block)
    assert len(whole) == len(ids) // block
    cut = min(blocks, len(whole))
    head = RING.chain(ROOT, ids[: cut * block], block)
    assert head + RING.chain(head[-1] if head else ROOT, array("I", ids[cut * block :]), block) == whole


@given(st.tuples(names, names), st.tuples(names, names), st.text(max_size=5), st.text(max_size=5))
def test_roots_differ_when_any_name_differs(
    a: tuple[str | None, str | None], b: tuple[str | None, str | None], model_a: str, model_b: str
) -> None:
    assert (RING.root(model_a, *a) == RING.root(model_b, *b)) == ((model_a, a) == (model_b, b))


def test_the_secret_the_block_size_and_the_extras_separate() -> None:
    ids = list(range(8))
    assert Keyring(8).root("m", None, None) != ROOT
    assert Keyring(8).chain(ROOT, ids, 4)[0] != RING.chain(ROOT, ids, 4)[0]
    assert RING.chain(ROOT, ids, 8)[-1] != RING.chain(ROOT, ids, 4)[-1]
    plain, marked = RING.chain(ROOT, ids, 4), RING.chain(ROOT, ids, 4, (b"", b"image"))
    assert plain[0] == marked[0]
    assert plain[1] != marked[1]


def test_an_array_of_another_width_is_converted() -> None:
    assert RING.chain(ROOT, array("q", [1, 2, 3, 4]), 2) == RING.chain(ROOT, [1, 2, 3, 4], 2)
