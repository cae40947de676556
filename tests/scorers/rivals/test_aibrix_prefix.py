from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scorers.contract import Overlap, Row, View
from scorers.rivals.aibrix_prefix import AibrixPrefix
from tests.suites.properties import examples
from tests.suites.scorers import check_scorer
from tests.suites.views import a_load, a_row, a_view, an_overlap, views


def row(name: str, overlap: Overlap | None, requests: int) -> Row:
    return a_row(name, overlap, a_load(requests=requests))


def score(*rows: Row, scorer: AibrixPrefix | None = None, **known: Any) -> list[float]:
    return list((scorer or AibrixPrefix()).score(a_view(*rows, **({"prompt_tokens": 1000} | known))))


def test_in_an_unbalanced_fleet_the_fewest_requests_win() -> None:
    # 9 - 0 > 8: matches do not count
    assert score(row("a", an_overlap(900), 9), row("b", an_overlap(0), 0), row("c", an_overlap(900), 3)) == [9, 0, 3]


def test_the_highest_match_wins_among_those_that_are_not_busier_than_usual() -> None:
    # requests 8, 2, 2, 0: mean 3, variance (64 + 4 + 4) / 4 - 9 = 9, so at most 3 + 1 * 3 = 6: a is out.
    # b: 50 % and 2 of at most 8 + 1: 2/9 - 50;  c: 2/9 - 40;  a and d count by requests
    rows = row("a", an_overlap(900), 8), row("b", an_overlap(500), 2), row("c", an_overlap(400), 2)
    assert score(*rows, row("d", an_overlap(0), 0)) == pytest.approx([8, 2 / 9 - 50, 2 / 9 - 40, 0])


def test_of_equal_matches_the_fewer_requests_win() -> None:
    # requests 3 and 1: mean 2, deviation 1, at most 3: both;  per cents are whole: 50.9 is 50
    assert score(row("a", an_overlap(509), 3), row("b", an_overlap(500), 1)) == pytest.approx([3 / 4 - 50, 1 / 4 - 50])


def test_a_per_cent_more_is_worth_more_than_all_requests() -> None:
    costs = score(row("a", an_overlap(510), 3), row("b", an_overlap(500), 0), scorer=AibrixPrefix(sigma=9.0))
    assert costs[0] < costs[1]


def test_where_nobody_matches_the_fewest_requests_win() -> None:
    assert score(row("a", an_overlap(9), 3), row("b", an_overlap(0), 1)) == [3, 1]  # 9 of 1000 are 0 %


def test_what_was_just_sent_there_is_a_match() -> None:
    assert score(row("a", an_overlap(0, expected=500), 0), row("b", an_overlap(0), 0)) == [-50, 0]


def test_thresholds_are_parameters() -> None:
    rows = row("a", an_overlap(900), 5), row("b", an_overlap(0), 1)
    assert score(*rows, scorer=AibrixPrefix(imbalance=3)) == [5, 1]  # 5 - 1 > 3
    # mean 3, deviation 2: with sigma 0.5 at most 4
    assert score(*rows, scorer=AibrixPrefix(sigma=0.5)) == [5, 1]
    assert score(*rows) == pytest.approx([5 / 6 - 90, 1])


def test_unknown_overlap_matches_as_the_others_do_on_average() -> None:
    # (600 + 200) / 2 = 400 of 1000
    rows = row("a", an_overlap(600), 0), row("b", None, 0), row("c", an_overlap(200), 0)
    assert score(*rows) == [-60, -40, -20]
    assert score(row("a", None, 2), row("b", None, 1)) == [2, 1]


def test_of_a_prompt_of_unknown_length_the_longest_run_is_the_whole() -> None:
    assert score(row("a", an_overlap(500), 0), row("b", an_overlap(250), 0), prompt_tokens=None) == [-100, -50]


@pytest.mark.parametrize(("params", "name"), [({"imbalance": -1}, "imbalance"), ({"sigma": -0.1}, "sigma")])
def test_parameters_have_bounds(params: dict[str, Any], name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}: found .*, wanted at least 0"):
        AibrixPrefix(**params)


@pytest.mark.parametrize(
    "scorer", [AibrixPrefix(), AibrixPrefix(imbalance=1_000_000), AibrixPrefix(imbalance=1_000_000, sigma=0.0)]
)
@examples(30)
@given(st.data(), views())
def test_it_keeps_the_contract(scorer: AibrixPrefix, data: st.DataObject, view: View) -> None:
    check_scorer(scorer, view, data.draw(st.permutations(range(len(view.rows)))))
