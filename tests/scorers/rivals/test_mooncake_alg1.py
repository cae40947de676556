from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scorers.contract import Overlap, PoolHit, Row, Speed, Transfer, View
from scorers.rivals.mooncake_alg1 import MooncakeAlg1
from tests.suites.properties import examples
from tests.suites.scorers import check_scorer
from tests.suites.views import a_load, a_row, a_view, an_overlap, views

PEER = Transfer(2.0, 20.0, 0, None)  # 2 ms + 0.02 ms a token
POOL = Transfer(5.0, 10.0, 0, None)  # 5 ms + 0.01 ms a token
FLAT = Speed(10.0, 100.0, 0.0, 0, None, None, None, POOL, peer=PEER)  # 10 ms + 0.1 ms a token


def row(name: str, overlap: Overlap | None, queued_ms: float = 0.0, speed: Speed = FLAT) -> Row:
    return a_row(name, overlap, a_load(queued_ms=queued_ms))._replace(speed=speed)


def score(*rows: Row, scorer: MooncakeAlg1 | None = None, **known: Any) -> list[float]:
    return list((scorer or MooncakeAlg1()).score(a_view(*rows, **({"prompt_tokens": 1000} | known))))


def test_a_prefix_that_is_not_much_longer_than_the_own_is_not_fetched() -> None:
    # 900 / 601 < 1.5: 7 + 10 + 399 * 0.1 = 56.9;  the holder: 50 + 10 + 100 * 0.1
    assert score(row("holder", an_overlap(900), 50.0), row("b", an_overlap(601), 7.0)) == pytest.approx([70, 56.9])


def test_one_that_is_much_longer_is_fetched_from_its_holder() -> None:
    # 900 / 600 = 1.5: 2 + 300 * 0.02 + 7 + 10 + 100 * 0.1 = 35;  of nothing: 2 + 900 * 0.02 + 20
    costs = score(row("holder", an_overlap(900), 50.0), row("b", an_overlap(600), 7.0), row("c", an_overlap(0)))
    assert costs == pytest.approx([70, 35, 40])


def test_the_threshold_is_a_parameter() -> None:
    rows = row("holder", an_overlap(900)), row("b", an_overlap(600))
    # from 1.6 on b computes: 10 + 400 * 0.1
    assert score(*rows, scorer=MooncakeAlg1(balancing_threshold=1.6)) == pytest.approx([20, 50])
    # at 1 whatever is longer is fetched, and the holder fetches nothing from itself
    assert score(*rows, scorer=MooncakeAlg1(balancing_threshold=1.0)) == pytest.approx([20, 28])


def test_the_ratio_decides_even_where_fetching_is_slower() -> None:
    # 2 + 900 * 0.2 + 20 = 202 instead of 110
    slow = FLAT._replace(peer=Transfer(2.0, 200.0, 0, None))
    assert score(row("holder", an_overlap(900)), row("b", an_overlap(0), speed=slow))[1] == pytest.approx(202)


def test_what_the_pool_holds_is_fetched_from_the_pool() -> None:
    # 5 + 900 * 0.01 + 20 = 34;  the holder of 900 itself needs nothing
    rows = row("holder", an_overlap(900)), row("b", an_overlap(0))
    assert score(*rows, pool=PoolHit(900, 0.1)) == pytest.approx([20, 34])
    # it holds less than the holder: the peer's 2 + 900 * 0.02 + 20
    assert score(*rows, pool=PoolHit(899, 0.1)) == pytest.approx([20, 40])
    # more: 950 for everybody whose own is less than 950 / 1.5
    assert score(*rows, pool=PoolHit(950, 0.1)) == pytest.approx([20, 5 + 950 * 0.01 + 10 + 50 * 0.1])


def test_a_link_of_unknown_speed_carries_nothing() -> None:
    alone = FLAT._replace(peer=None, pool=None)
    rows = row("holder", an_overlap(900)), row("b", an_overlap(0), speed=alone)
    assert score(*rows) == pytest.approx([20, 110])
    assert score(*rows, pool=PoolHit(900, 0.1)) == pytest.approx([20, 110])


def test_host_memory_is_part_of_the_own_prefix() -> None:
    # 900 / 700 < 1.5: 10 + 300 * 0.1
    assert score(row("holder", an_overlap(900)), row("b", an_overlap(0, cpu=700))) == pytest.approx([20, 40])


def test_what_was_just_sent_counts_as_held() -> None:
    assert score(row("a", an_overlap(0, expected=900))) == pytest.approx([20])


def test_unknown_overlap_is_what_is_usual() -> None:
    # (900 + 500) / 2 = 700: 10 + 300 * 0.1
    rows = row("a", an_overlap(900)), row("b", an_overlap(500)), row("c", None)
    assert score(*rows)[2] == pytest.approx(40)


def test_nothing_known_leaves_the_queue_to_decide() -> None:
    assert score(row("a", None, 5.0), row("b", None), prompt_tokens=None) == pytest.approx([15, 10])


def test_parameters_have_bounds() -> None:
    with pytest.raises(ValueError, match=r"balancing_threshold: found 0.9, wanted at least 1"):
        MooncakeAlg1(balancing_threshold=0.9)


@pytest.mark.parametrize("threshold", [1.0, 1.5, 20.0])
@examples(30)
@given(st.data(), views())
def test_it_keeps_the_contract(threshold: float, data: st.DataObject, view: View) -> None:
    order = data.draw(st.permutations(range(len(view.rows))))
    check_scorer(MooncakeAlg1(balancing_threshold=threshold), view, order)
