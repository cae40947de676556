from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scorers.contract import Ask, Decode, Row, Speed, View
from scorers.slo_headroom import SloHeadroom
from tests.suites.properties import examples
from tests.suites.scorers import check_scorer
from tests.suites.views import a_load, a_row, a_view, an_overlap, views

FLAT = Speed(0.0, 100.0, 0.0, 0, None, None, None, None)  # 0.1 ms a token: a cold prompt of 1000 takes 100 ms
STEP = Decode(0.0, 1000.0, 0.0, 0, None)  # 1 ms a request in the batch


def row(name: str, queued_ms: float, requests: int = 0, decode: Decode | None = STEP) -> Row:
    """TTFT is queued + 100 ms, TPOT requests + 1 ms."""
    load = a_load(queued_ms=queued_ms, requests=requests)
    return a_row(name, an_overlap(0), load)._replace(speed=FLAT._replace(decode=decode))


def score(*rows: Row, **known: Any) -> list[float]:
    scorer = known.pop("scorer", SloHeadroom())
    return list(scorer.score(a_view(*rows, **({"prompt_tokens": 1000} | known))))


BOTH = Ask(ttft_ms=500.0, tpot_ms=10.0)


def test_those_that_meet_the_objectives_go_first_and_the_fullest_of_them() -> None:
    # TTFT 100, 300, 500, 501;  TPOT 1 everywhere, so only TTFT tells.  Of 100..500: n = 0, 0.5, 1
    rows = [row(name, queued) for name, queued in (("a", 0.0), ("b", 200.0), ("c", 400.0), ("d", 401.0))]
    assert score(*rows, ask=BOTH) == pytest.approx([0.4, 0.2, 0.0, 0.6])


def test_or_the_emptiest() -> None:
    rows = [row(name, queued) for name, queued in (("a", 0.0), ("b", 200.0), ("c", 400.0), ("d", 401.0))]
    assert score(*rows, ask=BOTH, scorer=SloHeadroom(prefer="most")) == pytest.approx([0.0, 0.2, 0.4, 0.6])


def test_both_latencies_are_blended() -> None:
    # TTFT 100, 500, 300: n 0, 1, 0.5;  TPOT 9, 1, 5: n 1, 0, 0.5;  0.8 and 0.2: 0.2, 0.8, 0.5
    rows = row("a", 0.0, requests=8), row("b", 400.0, requests=0), row("c", 200.0, requests=4)
    assert score(*rows, ask=BOTH) == pytest.approx([0.4 * 0.8, 0.4 * 0.2, 0.4 * 0.5])
    even = SloHeadroom(ttft_weight=1.0, tpot_weight=1.0)
    assert score(*rows, ask=BOTH, scorer=even) == pytest.approx([0.2, 0.2, 0.2])
    assert score(*rows, ask=BOTH, scorer=SloHeadroom(tpot_weight=0.0)) == pytest.approx([0.4, 0.0, 0.2])


def test_a_latency_without_weight_decides_where_the_other_is_the_same_for_all() -> None:
    # all miss TTFT and have the same TPOT: over by 100 and 300
    alone = SloHeadroom(ttft_weight=0.0, tpot_weight=1.0)
    rows = row("a", 500.0), row("b", 700.0)
    assert score(*rows, ask=BOTH, scorer=alone) == pytest.approx([0.6, 1.0])


def test_one_missed_objective_is_a_miss_and_the_nearest_miss_goes_first() -> None:
    # a misses TTFT by 100, b TPOT by 4 (TPOT 14), c TTFT by 300
    # TTFT over: 100, 0, 300: n 1/3, 0, 1;  TPOT over: 0, 4, 0: n 0, 1, 0;  blend 0.8/3, 0.2, 0.8
    rows = row("a", 500.0), row("b", 0.0, requests=13), row("c", 700.0), row("ok", 0.0)
    costs = score(*rows, ask=BOTH)
    assert costs == pytest.approx([0.6 + 0.4 * 0.8 / 3, 0.6 + 0.4 * 0.2, 0.6 + 0.4 * 0.8, 0.4])


def test_what_all_share_gives_its_weight_to_the_other() -> None:
    # TTFT 100 everywhere; TPOT 1, 3: n 0, 1 with all of the weight
    assert score(row("a", 0.0), row("b", 0.0, requests=2), ask=BOTH) == pytest.approx([0.4, 0.0])
    assert score(row("a", 0.0), row("b", 0.0), ask=BOTH) == pytest.approx([0.4, 0.4])


def test_without_any_objective_the_least_latency_wins() -> None:
    # TTFT 100, 300: n 0, 1;  TPOT 5, 1: n 1, 0
    rows = row("a", 0.0, requests=4), row("b", 200.0)
    assert score(*rows) == pytest.approx([0.6 + 0.4 * 0.2, 0.6 + 0.4 * 0.8])


def test_the_policy_s_objectives_are_for_requests_that_name_none() -> None:
    rows = row("a", 0.0), row("b", 400.0)
    policy = SloHeadroom(ttft_ms=450.0)
    assert score(*rows, scorer=policy) == pytest.approx([0.4, 0.6])
    assert score(*rows, scorer=policy, ask=Ask(ttft_ms=500.0)) == pytest.approx([0.4, 0.0])


def test_a_latency_without_objective_does_not_count_beside_one_that_has() -> None:
    rows = row("a", 200.0), row("b", 0.0, requests=9)
    assert score(*rows, ask=Ask(ttft_ms=500.0)) == pytest.approx([0.0, 0.4])
    assert score(*rows, ask=Ask(tpot_ms=10.0)) == pytest.approx([0.4, 0.0])


def test_without_decode_curves_only_the_first_token_counts() -> None:
    rows = row("a", 0.0, requests=99, decode=None), row("b", 401.0, decode=None)
    assert score(*rows, ask=BOTH) == pytest.approx([0.4, 0.6])
    assert score(*rows, ask=Ask(tpot_ms=10.0)) == pytest.approx([0.6, 1.0])  # no objective is left


def test_one_without_a_decode_curve_takes_the_usual_time_per_token() -> None:
    # TPOT 1, 9 and (1 + 9) / 2 = 5: n 0, 1, 0.5
    rows = row("a", 0.0), row("b", 0.0, requests=8), row("c", 0.0, requests=99, decode=None)
    assert score(*rows, ask=BOTH) == pytest.approx([0.4, 0.0, 0.2])


def test_this_request_is_in_the_batch() -> None:
    # 1 ms a request: with this one 10 of them just meet 10 ms, 11 do not
    rows = row("a", 0.0, requests=9), row("b", 0.0, requests=10)
    assert score(*rows, ask=Ask(tpot_ms=10.0)) == pytest.approx([0.4, 0.6])


def test_this_request_s_context_is_in_the_step() -> None:
    # 2 ms per thousand tokens of context: (3000 + 1000) and 1000 tokens: 8 and 2 ms against 5
    heavy = Decode(0.0, 0.0, 2000.0, 0, None)
    rows = [
        a_row(name, an_overlap(0), a_load(context_tokens=context))._replace(speed=FLAT._replace(decode=heavy))
        for name, context in (("a", 3000), ("b", 0))
    ]
    assert score(*rows, ask=Ask(ttft_ms=500.0, tpot_ms=5.0)) == pytest.approx([0.6, 0.4])


@pytest.mark.parametrize(
    ("params", "complaint"),
    [
        ({"ttft_ms": -1.0}, "ttft_ms: found -1.0, wanted at least 0"),
        ({"tpot_weight": -0.2}, "tpot_weight: found -0.2, wanted at least 0"),
        ({"ttft_weight": 0.0, "tpot_weight": 0.0}, "ttft_weight, tpot_weight: one must be above 0"),
        ({"stale_s": 0.0}, "stale_s"),
    ],
)
def test_parameters_have_bounds(params: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        SloHeadroom(**params)


@pytest.mark.parametrize(
    "scorer",
    [
        SloHeadroom(),
        SloHeadroom(ttft_ms=900.0, tpot_ms=40.0),
        SloHeadroom(ttft_ms=9e5, tpot_ms=1e9, prefer="most"),
        SloHeadroom(ttft_ms=900.0, ttft_weight=0.0),
    ],
)
@examples(30)
@given(st.data(), views())
def test_it_keeps_the_contract(scorer: SloHeadroom, data: st.DataObject, view: View) -> None:
    check_scorer(scorer, view, data.draw(st.permutations(range(len(view.rows)))))
