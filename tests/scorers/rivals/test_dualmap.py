from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scorers.contract import Ask, Overlap, Row, Speed, View
from scorers.rivals.dualmap import Dualmap
from tests.suites.properties import examples
from tests.suites.scorers import check_scorer
from tests.suites.views import a_load, a_row, a_view, an_overlap, views

FLAT = Speed(10.0, 100.0, 0.0, 0, None, None, None, None)  # 10 ms + 0.1 ms a token


def row(name: str, overlap: Overlap | None, queued_ms: float = 0.0) -> Row:
    return a_row(name, overlap, a_load(queued_ms=queued_ms))._replace(speed=FLAT)


def score(*rows: Row, scorer: Dualmap | None = None, **known: Any) -> list[float]:
    return list((scorer or Dualmap()).score(a_view(*rows, **({"prompt_tokens": 1000} | known))))


COLD = row("cold", an_overlap(0))  # 10 + 1000 * 0.1 = 110


def test_the_holder_is_taken_while_it_is_in_time() -> None:
    # the holder: 4900 + 10 + 100 * 0.1 = 4920 <= 5000;  the cold one pays the objective on top: 110 + 5000
    assert score(row("holder", an_overlap(900), 4900.0), COLD) == pytest.approx([4920, 5110])
    assert score(row("holder", an_overlap(900), 4980.0), COLD) == pytest.approx([5000, 5110])


def test_else_whoever_starts_first() -> None:
    assert score(row("holder", an_overlap(900), 4981.0), COLD) == pytest.approx([5001, 110])


def test_the_request_s_own_objective_goes_first() -> None:
    rows = row("holder", an_overlap(900), 400.0), COLD
    assert score(*rows, ask=Ask(ttft_ms=420.0)) == pytest.approx([420, 530])
    assert score(*rows, ask=Ask(ttft_ms=419.0)) == pytest.approx([420, 110])
    assert score(*rows, scorer=Dualmap(ttft_ms=419.0)) == pytest.approx([420, 110])
    assert score(*rows, scorer=Dualmap(ttft_ms=419.0), ask=Ask(ttft_ms=420.0)) == pytest.approx([420, 530])


def test_of_equal_holders_the_faster() -> None:
    # one of them is in time, so both stay before the cold one
    rows = row("a", an_overlap(900), 6000.0), row("b", an_overlap(900), 100.0), COLD
    assert score(*rows) == pytest.approx([6020, 120, 5110])


def test_what_was_just_sent_counts_as_held() -> None:
    assert score(row("a", an_overlap(0, expected=900)), COLD) == pytest.approx([20, 5110])


def test_where_nobody_holds_anything_the_faster() -> None:
    assert score(row("a", an_overlap(0), 50.0), COLD) == pytest.approx([160, 110])


def test_unknown_overlap_holds_what_is_usual() -> None:
    # (900 + 300) / 2 = 600: 10 + 400 * 0.1, and the objective
    rows = row("a", an_overlap(900)), row("b", None), row("c", an_overlap(300))
    assert score(*rows) == pytest.approx([20, 5050, 5080])


@pytest.mark.parametrize(("params", "name"), [({"ttft_ms": -1.0}, "ttft_ms"), ({"stale_s": 0.0}, "stale_s")])
def test_parameters_have_bounds(params: dict[str, float], name: str) -> None:
    with pytest.raises(ValueError, match=name):
        Dualmap(**params)


@pytest.mark.parametrize("scorer", [Dualmap(), Dualmap(ttft_ms=0.0), Dualmap(ttft_ms=1e6, stale_s=500.0)])
@examples(30)
@given(st.data(), views())
def test_it_keeps_the_contract(scorer: Dualmap, data: st.DataObject, view: View) -> None:
    check_scorer(scorer, view, data.draw(st.permutations(range(len(view.rows)))))
