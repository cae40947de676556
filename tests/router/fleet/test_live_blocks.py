"""Distinct blocks in use, against a set of all blocks of all live prompts."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from router.fleet.live_blocks import LiveBlocks, count_shared
from router.kvcache.events import Key

BRANCHES = st.lists(st.integers(0, 2), max_size=9)


def chain(branches: list[int]) -> list[Key]:
    """Chained keys: each is a function of all branches up to it."""
    keys, so_far = [], 1
    for branch in branches:
        so_far = hash((so_far, branch))
        keys.append(Key(so_far))
    return keys


@given(st.lists(st.tuples(st.booleans(), BRANCHES, st.integers(0, 99)), max_size=40))
def test_it_counts_what_a_set_counts(steps: list[tuple[bool, list[int], int]]) -> None:
    live, here = LiveBlocks(), []
    for adds, branches, which in steps:
        if adds or not here:
            keys = chain(branches)
            here.append((live.add(keys), keys))
        else:
            prompt, _ = here.pop(which % len(here))
            live.remove(prompt)
        users = Counter(key for _, keys in here for key in keys)
        assert live.count == len(users)
        assert live.count_reused() == sum(count > 1 for count in users.values())


@given(st.lists(BRANCHES, max_size=9), BRANCHES)
def test_leading_blocks_in_use(here: list[list[int]], branches: list[int]) -> None:
    live, keys = LiveBlocks(), chain(branches)
    for one in here:
        live.add(chain(one))
    assert live.count_leading(keys) == max((len(set(keys) & set(chain(one))) for one in here), default=0)
    assert len(live) == len(here)


@given(BRANCHES, BRANCHES)
def test_shared_keys(one: list[int], other: list[int]) -> None:
    first, second = chain(one), chain(other)
    shared = count_shared(first, second)
    assert shared == len(set(first) & set(second))
    assert count_shared(second, first, shared // 2) == shared
