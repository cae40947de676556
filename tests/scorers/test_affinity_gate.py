from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scorers.affinity_gate import AffinityGate
from scorers.contract import Overlap, Row, Speed, View
from tests.suites.properties import examples
from tests.suites.scorers import check_filter
from tests.suites.views import a_load, a_row, a_view, an_overlap, views

FLAT = Speed(10.0, 100.0, 0.0, 0, None, None, None, None)  # 10 ms + 0.1 ms a token


def row(name: str, overlap: Overlap | None, queued_ms: float = 0.0) -> Row:
    return a_row(name, overlap, a_load(queued_ms=queued_ms))._replace(speed=FLAT)


def keep(*rows: Row, gate: AffinityGate | None = None, **known: Any) -> list[bool]:
    return list((gate or AffinityGate()).keep(a_view(*rows, **({"prompt_tokens": 1000} | known))))


def test_those_who_hold_enough_of_the_prompt_stay_alone() -> None:
    # 80 % of 1000 tokens is 800
    rows = row("a", an_overlap(800)), row("b", an_overlap(799)), row("c", an_overlap(0, expected=900))
    assert keep(*rows) == [True, False, True]
    assert keep(*rows, gate=AffinityGate(share=0.9)) == [False, False, True]


def test_where_nobody_holds_enough_all_stay() -> None:
    assert keep(row("a", an_overlap(799)), row("b", None), row("c", an_overlap(0))) == [True, True, True]


def test_holders_that_are_too_slow_to_start_are_not_insisted_on() -> None:
    cold = row("cold", an_overlap(0))  # 10 + 1000 * 0.1 = 110
    # the holder: queue + 10 + 200 * 0.1 = queue + 30, so 18,000 ms more than 110 are reached at a queue of 18,080
    assert keep(row("a", an_overlap(800), 18_080.0), cold) == [True, False]
    assert keep(row("a", an_overlap(800), 18_081.0), cold) == [True, True]
    # the best holder decides
    assert keep(row("a", an_overlap(800), 18_081.0), row("b", an_overlap(800), 9.0), cold) == [True, True, False]


def test_the_penalty_is_a_parameter_and_zero_never_leaves_the_holders() -> None:
    rows = row("a", an_overlap(800), 1000.0), row("cold", an_overlap(0))
    assert keep(*rows, gate=AffinityGate(penalty_ms=900.0)) == [True, True]  # 1030 - 110 = 920
    assert keep(*rows, gate=AffinityGate(penalty_ms=930.0)) == [True, False]
    assert keep(*rows, gate=AffinityGate(penalty_ms=0.0)) == [True, False]


def test_unknown_overlap_is_no_holder() -> None:
    assert keep(row("a", an_overlap(800)), row("b", None)) == [True, False]


def test_of_a_prompt_of_unknown_length_the_longest_run_is_the_whole() -> None:
    # 80 % of a's 500
    rows = row("a", an_overlap(500)), row("b", an_overlap(400)), row("c", an_overlap(399))
    assert keep(*rows, prompt_tokens=None) == [True, True, False]
    assert keep(row("a", an_overlap(0)), row("b", None), prompt_tokens=None) == [True, True]


@pytest.mark.parametrize(
    ("params", "complaint"),
    [
        ({"share": 0.0}, "share: found 0.0, wanted more than 0"),
        ({"share": 1.5}, "share: found 1.5, wanted a share from 0 to 1"),
        ({"penalty_ms": -1.0}, "penalty_ms: found -1.0, wanted at least 0"),
        ({"stale_s": 0.0}, "stale_s"),
    ],
)
def test_parameters_have_bounds(params: dict[str, float], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        AffinityGate(**params)


@pytest.mark.parametrize(
    "gate", [AffinityGate(), AffinityGate(share=0.1, penalty_ms=5.0), AffinityGate(penalty_ms=0.0)]
)
@examples(30)
@given(st.data(), views())
def test_it_keeps_the_contract(gate: AffinityGate, data: st.DataObject, view: View) -> None:
    check_filter(gate, view, data.draw(st.permutations(range(len(view.rows)))))


@examples(50)
@given(views())
def test_somebody_always_stays(view: View) -> None:
    assert any(AffinityGate(share=0.01, penalty_ms=1.0).keep(view))
