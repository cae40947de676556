from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scorers.contract import Load, Overlap, PoolHit, Row, Speed, Transfer, View
from scorers.expected_ttft import ExpectedTtft
from scorers.least_work_left import LeastWorkLeft
from tests.suites.properties import examples
from tests.suites.scorers import check_scorer
from tests.suites.views import a_load, a_row, a_view, an_overlap, views

FLAT = Speed(10.0, 100.0, 0.0, 0, None, None, None, None)  # 10 ms + 0.1 ms a token


def row(name: str, overlap: Overlap | None = None, load: Load | None = None, speed: Speed = FLAT) -> Row:
    return a_row(name, overlap, load)._replace(speed=speed)


def score(*rows: Row, pool_too: bool = True, **known: Any) -> list[float]:
    return list(LeastWorkLeft(pool=pool_too).score(a_view(*rows, **({"prompt_tokens": 1000} | known))))


def test_what_is_queued_and_what_this_request_adds() -> None:
    # a: 100 + 10 + 100 * 0.1;  b: 10 + 1000 * 0.1
    assert score(row("a", an_overlap(900), a_load(queued_ms=100.0)), row("b", an_overlap(0))) == pytest.approx(
        [120, 110]
    )


def test_work_takes_as_long_as_the_target_s_own_speed_makes_it() -> None:
    slow = row("a", an_overlap(0), speed=FLAT._replace(us_per_token=300.0))
    assert score(slow, row("b", an_overlap(0))) == pytest.approx([310, 110])


def test_other_clients_of_the_engine_are_not_seen() -> None:
    crowded = a_load(running=9, waiting=9, elsewhere=18)
    assert score(row("a", an_overlap(0), crowded), row("b", an_overlap(0))) == pytest.approx([110, 110])


def test_what_the_pool_holds_is_fetched_where_that_is_less_work() -> None:
    # 5 + 900 * 0.01 + 10 + 100 * 0.1 = 34
    pooled = row("a", an_overlap(0), speed=FLAT._replace(pool=Transfer(5.0, 10.0, 0, None)))
    assert score(pooled, pool=PoolHit(900, 0.1)) == pytest.approx([34])
    assert score(pooled, pool=PoolHit(900, 0.1), pool_too=False) == pytest.approx([110])


def test_unknown_overlap_costs_what_is_usual() -> None:
    # known: 800 and 0, so 400: 10 + 600 * 0.1
    rows = row("a", an_overlap(800)), row("b"), row("c", an_overlap(0))
    assert score(*rows) == pytest.approx([30, 70, 110])


@pytest.mark.parametrize("scorer", [LeastWorkLeft(), LeastWorkLeft(pool=False)])
@examples(30)
@given(st.data(), views())
def test_it_keeps_the_contract(scorer: LeastWorkLeft, data: st.DataObject, view: View) -> None:
    check_scorer(scorer, view, data.draw(st.permutations(range(len(view.rows)))))


@examples(50)
@given(views())
def test_where_nobody_else_uses_the_engines_it_is_expected_ttft(view: View) -> None:
    ours = view._replace(rows=tuple(row._replace(load=row.load._replace(elsewhere=0)) for row in view.rows))
    assert LeastWorkLeft().score(ours) == ExpectedTtft().score(ours)
