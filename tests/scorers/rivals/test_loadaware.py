from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scorers.contract import Overlap, Row, View
from scorers.rivals.loadaware import Loadaware
from tests.suites.properties import examples
from tests.suites.scorers import check_scorer
from tests.suites.views import a_load, a_row, a_view, an_overlap, views


def row(name: str, overlap: Overlap | None, requests: int) -> Row:
    return a_row(name, overlap, a_load(requests=requests))


def score(*rows: Row, beta: float = 1.0, **known: Any) -> list[float]:
    return list(Loadaware(beta=beta).score(a_view(*rows, **({"prompt_tokens": 1000} | known))))


def test_the_share_held_against_the_load_over_the_mean() -> None:
    # requests 6, 2, 4: mean 4.  a: (6 - 4) / 4 - 0.8 = -0.3;  b: -0.5 - 0 ;  c: 0 - 0.4
    rows = row("a", an_overlap(800), 6), row("b", an_overlap(0), 2), row("c", an_overlap(400), 4)
    assert score(*rows) == pytest.approx([-0.3, -0.5, -0.4])


def test_twice_the_mean_gives_up_a_whole_hit() -> None:
    # mean 2: a has 4, twice as much, and the whole prompt: 1 - 1;  b: (2 - 2) / 2;  c: (0 - 2) / 2
    rows = row("a", an_overlap(1000), 4), row("b", an_overlap(0), 2), row("c", an_overlap(0), 0)
    assert score(*rows) == pytest.approx([0, 0, -1])


def test_beta_is_the_rate_of_exchange() -> None:
    rows = row("a", an_overlap(800), 6), row("b", an_overlap(0), 2)
    assert score(*rows, beta=0.2) == pytest.approx([0.2 * 0.5 - 0.8, 0.2 * -0.5])
    assert score(*rows, beta=0.0) == pytest.approx([-0.8, 0])


def test_below_a_mean_of_one_request_load_counts_as_it_is() -> None:
    # mean 0.5: (1 - 0.5) / 1, (0 - 0.5) / 1
    assert score(row("a", an_overlap(0), 1), row("b", an_overlap(0), 0)) == pytest.approx([0.5, -0.5])


def test_all_tiers_count_and_what_was_just_sent() -> None:
    rows = row("a", an_overlap(100, cpu=300, disk=500), 0), row("b", an_overlap(100, expected=700), 0)
    assert score(*rows) == pytest.approx([-0.5, -0.7])


def test_unknown_overlap_is_what_is_usual() -> None:
    rows = row("a", an_overlap(800), 0), row("b", None, 0), row("c", an_overlap(0), 0)
    assert score(*rows) == pytest.approx([-0.8, -0.4, 0])


def test_of_a_prompt_of_unknown_length_the_longest_run_is_the_whole() -> None:
    assert score(row("a", an_overlap(500), 0), row("b", an_overlap(250), 0), prompt_tokens=None) == [-1, -0.5]
    assert score(row("a", None, 0), prompt_tokens=None) == [0]


def test_parameters_have_bounds() -> None:
    with pytest.raises(ValueError, match=r"beta: found -1, wanted at least 0"):
        Loadaware(beta=-1)


@pytest.mark.parametrize("scorer", [Loadaware(), Loadaware(beta=0.0), Loadaware(beta=7.5)])
@examples(30)
@given(st.data(), views())
def test_it_keeps_the_contract(scorer: Loadaware, data: st.DataObject, view: View) -> None:
    check_scorer(scorer, view, data.draw(st.permutations(range(len(view.rows)))))
