from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scorers.contract import Row
from scorers.rivals.sglang_threshold import SglangThreshold
from tests.suites.properties import examples
from tests.suites.scorers import check_scorer
from tests.suites.views import a_load, a_row, a_view, an_overlap, views

TREES = SglangThreshold(cold="smallest_tree")


def row(name: str, requests: int, match: int | None = None, held: int | None = None) -> Row:
    overlap = None if match is None else an_overlap(match)
    return a_row(name, overlap, a_load(requests=requests))._replace(held_tokens=held)


def score(*rows: Row, scorer: SglangThreshold | None = None, prompt_tokens: int | None = 1000) -> list[float]:
    return list((scorer or SglangThreshold()).score(a_view(*rows, prompt_tokens=prompt_tokens)))


def test_a_long_match_decides_whatever_the_queue() -> None:
    # 301 / 1000 > 0.3; 64 requests more are not over 64
    assert score(row("warm", 64, 301), row("idle", 0, 100)) == [0, 201]


def test_a_short_match_counts_for_nothing() -> None:
    # 300 / 1000 is not over 0.3
    assert score(row("warm", 64, 300), row("idle", 0, 100)) == [64, 0]


@pytest.mark.parametrize(
    ("most", "least", "unbalanced"),
    [
        (65, 0, True),
        (64, 0, False),  # 64 is not over 64
        (300, 200, False),  # 100 > 64, but 300 is not over 1.5 * 200
        (301, 200, True),
    ],
)
def test_swamped_is_far_more_and_half_as_many_again(most: int, least: int, unbalanced: bool) -> None:
    costs = score(row("warm", most, 900), row("idle", least, 0))
    assert costs == ([most, least] if unbalanced else [0, 900])


def test_a_match_counts_in_any_tier_and_as_soon_as_it_is_sent() -> None:
    a = a_row("a", an_overlap(0, disk=500))
    b = a_row("b", an_overlap(0, expected=600))
    assert score(a, b) == [100, 0]


def test_cold_prompts_go_to_the_fewest_requests_or_the_smallest_tree() -> None:
    rows = row("a", 3, 0, held=100), row("b", 1, 0, held=900)
    assert score(*rows) == [3, 1]
    assert score(*rows, scorer=TREES) == [100, 900]


def test_a_target_that_does_not_tell_its_size_is_no_bait() -> None:
    assert score(row("a", 0, 0, held=100), row("b", 0, 0), row("c", 0, 0, held=300), scorer=TREES) == [100, 200, 300]


def test_no_known_size_leaves_the_requests() -> None:
    assert score(row("a", 3, 0), row("b", 1, 0), scorer=TREES) == [3, 1]


def test_an_unknown_overlap_is_no_holder() -> None:
    assert score(row("a", 0, 500), row("b", 0)) == [0, 500]
    assert score(row("a", 2), row("b", 1)) == [2, 1]


def test_of_a_prompt_of_unknown_length_any_match_is_long() -> None:
    assert score(row("a", 5, 16), row("b", 0, 0), prompt_tokens=None) == [0, 16]


def test_bounds() -> None:
    with pytest.raises(ValueError, match=r"cache_threshold: found 30, wanted a share from 0 to 1"):
        SglangThreshold(cache_threshold=30)
    with pytest.raises(ValueError, match=r"balance_rel_threshold: found -1, wanted at least 0"):
        SglangThreshold(balance_rel_threshold=-1)


@pytest.mark.parametrize(
    "scorer",
    [
        SglangThreshold(),
        SglangThreshold(cache_threshold=0.9, balance_abs_threshold=10**6, cold="smallest_tree"),
        SglangThreshold(cache_threshold=0.0, balance_abs_threshold=0, balance_rel_threshold=3.0),
    ],
    ids=["defaults", "trees", "eager"],
)
@examples(50)
@given(st.data(), views())
def test_contract(scorer: SglangThreshold, data: Any, view: Any) -> None:
    check_scorer(scorer, view, data.draw(st.permutations(range(len(view.rows)))))
