from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scorers.contract import Row
from scorers.rivals.ray_prefix_affinity import RayPrefixAffinity
from tests.suites.properties import examples
from tests.suites.scorers import check_scorer
from tests.suites.views import a_load, a_row, a_view, an_overlap, views


def row(name: str, requests: int, match: int | None = None, held: int | None = None) -> Row:
    overlap = None if match is None else an_overlap(match)
    return a_row(name, overlap, a_load(requests=requests))._replace(held_tokens=held)


def score(*rows: Row, scorer: RayPrefixAffinity | None = None, **known: Any) -> list[float]:
    return list((scorer or RayPrefixAffinity()).score(a_view(*rows, **({"prompt_tokens": 1000} | known))))


def test_of_the_holders_of_the_longest_match_the_shortest_queue() -> None:
    # candidates a and b; c, with most + 1 = 10 on top, is dearer than any of them
    assert score(row("a", 9, 800), row("b", 4, 800), row("c", 0, 784)) == [9, 4, 10]


def test_a_tenth_of_the_prompt_is_a_match_and_less_is_not() -> None:
    assert score(row("a", 2, 100, held=500), row("b", 0, 0, held=9)) == [2, 3]  # 100 / 1000 is 0.1
    assert score(row("a", 2, 99, held=500), row("b", 0, 0, held=9)) == [5, 0]


def test_cold_prompts_go_to_the_smallest_trees() -> None:
    # a and c are smallest; b costs 0 + (3 + 1)
    assert score(row("a", 3, 0, held=50), row("b", 0, 0, held=51), row("c", 1, 0, held=50)) == [3, 4, 1]


def test_a_target_that_does_not_tell_its_size_is_no_bait() -> None:
    # b is taken for (100 + 300) / 2
    assert score(row("a", 1, 0, held=100), row("b", 0, 0), row("c", 0, 0, held=300)) == [1, 2, 2]


@pytest.mark.parametrize(("requests", "unbalanced"), [(10, False), (11, True)])
def test_lopsided_queues_switch_the_match_off(requests: int, unbalanced: bool) -> None:
    # two rows: both are drawn, so the shorter queue costs least.  11 - 0 > 10
    costs = score(row("warm", requests, 900), row("idle", 0, 0), scorer=RayPrefixAffinity(imbalanced_threshold=10))
    assert costs == ([requests, 0] if unbalanced else [requests, requests + 1])


def test_without_a_threshold_no_queue_is_too_long() -> None:
    assert score(row("warm", 100_000, 900), row("idle", 0, 0)) == [100_000, 100_001]


def test_where_nothing_is_known_two_are_drawn_for_each_request() -> None:
    rows = [row(name, 5) for name in "abcd"]
    drawn: Counter[int] = Counter()
    for number in range(2000):
        costs = score(*rows, number=number)
        assert sorted(costs) == [5, 5, 11, 11]  # the others: 5 + (5 + 1)
        drawn.update(i for i, cost in enumerate(costs) if cost == 5)
    # each of 4 in half of 2000; standard deviation sqrt(2000 / 4) = 22; 5 of those: 112
    assert all(abs(drawn[i] - 1000) < 112 for i in range(4))


def test_an_unknown_overlap_is_no_holder() -> None:
    assert score(row("a", 7, 500), row("b", 0)) == [7, 8]


def test_of_a_prompt_of_unknown_length_any_match_is_long() -> None:
    assert score(row("a", 5, 16), row("b", 0, 0), prompt_tokens=None) == [5, 6]


def test_bounds() -> None:
    with pytest.raises(ValueError, match=r"match_rate_threshold: found 10, wanted a share from 0 to 1"):
        RayPrefixAffinity(match_rate_threshold=10)
    with pytest.raises(ValueError, match=r"imbalanced_threshold: found -1, wanted at least 0"):
        RayPrefixAffinity(imbalanced_threshold=-1)


@pytest.mark.parametrize(
    "scorer",
    [RayPrefixAffinity(), RayPrefixAffinity(10, 0.5), RayPrefixAffinity(imbalanced_threshold=0.0)],
    ids=["defaults", "documented", "always drawn"],
)
@examples(50)
@given(st.data(), views())
def test_contract(scorer: RayPrefixAffinity, data: Any, view: Any) -> None:
    check_scorer(scorer, view, data.draw(st.permutations(range(len(view.rows)))))
