from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scorers.contract import Row, View
from scorers.lora_affinity import LoraAffinity
from tests.suites.properties import examples
from tests.suites.scorers import check_scorer
from tests.suites.views import a_load, a_row, a_view, views


def row(name: str, active: str, waiting: str | None = "", slots: int | None = 2, **known: Any) -> Row:
    """Adapters by letter."""
    lists = {"adapters": frozenset(active), "waiting_adapters": None if waiting is None else frozenset(waiting)}
    return a_row(name, load=a_load(max_adapters=slots, **lists, **known))


def score(*rows: Row, adapter: str | None = "x") -> list[float]:
    return list(LoraAffinity().score(a_view(*rows, adapter=adapter)))


def test_active_before_room_before_waiting_before_full() -> None:
    rows = row("active", "xa"), row("room", "a"), row("waiting", "ab", "x"), row("full", "ab")
    assert score(*rows) == [0.0, 0.2, 0.4, 1.0]


def test_those_who_wait_for_a_slot_have_taken_it() -> None:
    assert score(row("a", "a", "b"), row("b", "a", "a"), row("c", "a", None)) == [1.0, 0.2, 0.2]


def test_an_adapter_that_waits_where_there_is_room_finds_room() -> None:
    assert score(row("a", "", "x")) == [0.2]


def test_a_request_without_an_adapter_goes_anywhere() -> None:
    assert score(row("a", "xa"), row("b", "ab"), adapter=None) == [0.0, 0.0]


def test_silence_is_taken_for_what_is_usual() -> None:
    # told: 0 and 1, on average 0.5
    told = row("a", "x"), row("b", "ab")
    silent = a_row("c"), row("d", "x", slots=None), row("e", "x", metrics_age_s=16.0)
    assert score(*told, *silent) == [0.0, 1.0, 0.5, 0.5, 0.5]
    assert score(*silent) == [0.0, 0.0, 0.0]


def test_an_age_is_above_zero() -> None:
    with pytest.raises(ValueError, match="stale_s"):
        LoraAffinity(stale_s=0)


@pytest.mark.parametrize("scorer", [LoraAffinity(), LoraAffinity(stale_s=0.5), LoraAffinity(stale_s=5000.0)])
@examples(30)
@given(st.data(), views())
def test_it_keeps_the_contract(scorer: LoraAffinity, data: st.DataObject, view: View) -> None:
    check_scorer(scorer, view, data.draw(st.permutations(range(len(view.rows)))))
