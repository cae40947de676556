from __future__ import annotations

import subprocess
import sys
from collections import Counter
from itertools import compress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scorers.contract import View
from scorers.rivals.dual_hash import DualHash
from tests.suites.properties import examples
from tests.suites.scorers import check_filter
from tests.suites.views import a_row, a_view, views

EIGHT = [f"host-{i}" for i in range(8)]


def kept(a_filter: DualHash, instances: list[str], **known: Any) -> set[str]:
    view = a_view(*[a_row(name) for name in instances], **known)
    return {row.instance for row in compress(view.rows, a_filter.keep(view))}


def test_every_beginning_has_two_targets_always_the_same() -> None:
    for prefix in range(50):
        pair = kept(DualHash(), EIGHT, prefixes=(prefix,))
        assert len(pair) == 2
        assert kept(DualHash(), EIGHT[::-1], prefixes=(prefix,), number=7, seed=99, now_s=5.0) == pair


def test_another_process_finds_the_same_two() -> None:
    code = (
        "from tests.scorers.rivals.test_dual_hash import *; print(*sorted(kept(DualHash(), EIGHT, prefixes=(12345,))))"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout
    assert told.split() == sorted(kept(DualHash(), EIGHT, prefixes=(12345,)))


def test_beginnings_spread_over_all_pairs() -> None:
    pairs = Counter(frozenset(kept(DualHash(), EIGHT, prefixes=(prefix,))) for prefix in range(2800))
    # 28 pairs, 100 each on average with a deviation of about 10
    assert len(pairs) == 28
    assert max(pairs.values()) < 150
    assert min(pairs.values()) > 50


def test_a_target_that_goes_moves_only_its_own() -> None:
    for prefix in range(100):
        before = kept(DualHash(), EIGHT, prefixes=(prefix,))
        after = kept(DualHash(), EIGHT[1:], prefixes=(prefix,))
        assert len(after) == 2
        assert before - {"host-0"} <= after


def test_a_salt_gives_other_pairs() -> None:
    pairs = [[kept(DualHash(salt=salt), EIGHT, prefixes=(prefix,)) for prefix in range(20)] for salt in (0, 1)]
    assert pairs[0] != pairs[1]


def test_prompts_are_alike_if_their_stated_beginning_is() -> None:
    def pair(blocks: int, *prefixes: int) -> set[str]:
        return kept(DualHash(blocks=blocks), EIGHT, prefixes=prefixes)

    # digests of the first 1, 2, 4, 8 blocks
    assert pair(1, 5, 6, 7, 8) == pair(1, 5) == kept(DualHash(), EIGHT, prefix=5)
    assert pair(4, 5, 6, 7, 8) == pair(7, 5, 6, 7) == pair(1, 7)
    assert pair(8, 5, 6, 7) == pair(1, 7)  # a prompt of 4 to 7 blocks
    assert pair(8, 5, 6, 7, 8) == pair(1, 8)
    assert len({frozenset(pair(1, prefix)) for prefix in (5, 7, 8)}) == 3


def test_of_an_unknown_beginning_and_of_two_targets_all_stay() -> None:
    assert kept(DualHash(), EIGHT) == set(EIGHT)
    assert kept(DualHash(), EIGHT[:2], prefix=5) == set(EIGHT[:2])
    assert kept(DualHash(), EIGHT[:1], prefix=5) == set(EIGHT[:1])


def test_parameters_have_bounds() -> None:
    with pytest.raises(ValueError, match=r"blocks: found 0, wanted at least 1"):
        DualHash(blocks=0)


@pytest.mark.parametrize("a_filter", [DualHash(), DualHash(blocks=1), DualHash(blocks=4, salt=-3)])
@examples(30)
@given(st.data(), views())
def test_it_keeps_the_contract(a_filter: DualHash, data: st.DataObject, view: View) -> None:
    check_filter(a_filter, view, data.draw(st.permutations(range(len(view.rows)))))
