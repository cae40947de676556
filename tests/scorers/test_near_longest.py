from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scorers.contract import Load, Overlap, Row, Speed, View
from scorers.near_longest import NearLongest
from tests.suites.properties import examples
from tests.suites.scorers import check_filter
from tests.suites.views import a_load, a_row, a_view, an_overlap, views

FLAT = Speed(10.0, 100.0, 0.0, 0, None, None, None, None)  # 10 ms + 0.1 ms a token


def row(name: str, overlap: Overlap | None, queued_ms: float = 50.0, **known: Any) -> Row:
    return a_row(name, overlap, a_load(queued_ms=queued_ms, **known))._replace(speed=FLAT)


def keep(*rows: Row, share: float = 0.9, **known: Any) -> list[bool]:
    return list(NearLongest(share=share).keep(a_view(*rows, **({"prompt_tokens": 2000} | known))))


def test_near_the_longest_run_stays_and_so_does_the_shortest_queue() -> None:
    # the longest is 1000, so 900 is near and 899 is not; the least queue is c's
    rows = row("a", an_overlap(1000)), row("b", an_overlap(900)), row("c", an_overlap(0), 10.0)
    assert keep(*rows, row("d", an_overlap(899)), row("e", an_overlap(0))) == [True, True, True, False, False]


def test_share_says_how_near() -> None:
    rows = (
        row("a", an_overlap(1000)),
        row("b", an_overlap(500)),
        row("c", an_overlap(499)),
        row("d", an_overlap(0), 1.0),
    )
    assert keep(*rows, share=0.5) == [True, True, False, True]
    assert keep(*rows, share=1.0) == [True, False, False, True]


def test_what_was_just_sent_counts_as_held() -> None:
    rows = row("a", an_overlap(0, expected=1000)), row("b", an_overlap(500)), row("c", an_overlap(0), 1.0)
    assert keep(*rows) == [True, False, True]


def test_a_long_run_on_a_disk_does_not_drop_a_shorter_one_on_a_gpu() -> None:
    # over all tiers a's 1000 is longest, on the GPU b's 600
    rows = row("a", an_overlap(16, disk=1000)), row("b", an_overlap(600)), row("c", an_overlap(16)), row("d", None, 1.0)
    assert keep(*rows) == [True, True, False, True]


def test_where_no_gpu_holds_anything_only_the_lower_tiers_tell_who_is_near() -> None:
    rows = row("a", an_overlap(0, disk=1000)), row("b", an_overlap(0)), row("c", an_overlap(0), 1.0)
    assert keep(*rows) == [True, False, True]


def test_all_with_the_least_queue_stay() -> None:
    rows = row("a", an_overlap(1000)), row("b", an_overlap(0), 0.0), row("c", an_overlap(0), 0.0)
    assert keep(*rows) == [True, True, True]


def test_others_in_the_engine_are_part_of_the_queue() -> None:
    told: dict[str, Any] = {"running": 0, "elsewhere": 1, "waiting": 1}
    idle: dict[str, Any] = {"running": 0, "elsewhere": 0, "waiting": 0}
    # b: nothing of ours, but one that waits, 10 + 2000 * 0.1 = 210;  c: 209 of ours;  a holds
    rows = row("a", an_overlap(1000), 500.0, **idle), row("b", an_overlap(0), 0.0, **told)
    assert keep(*rows, row("c", an_overlap(0), 209.0, **idle)) == [True, False, True]
    assert keep(*rows, row("c", an_overlap(0), 211.0, **idle)) == [True, True, False]
    # on a nominal instance twice as fast: 10 + 2000 * 0.05 = 110
    nominal = FLAT._replace(us_per_token=50.0)
    assert keep(*rows, row("c", an_overlap(0), 111.0, **idle), nominal=nominal) == [True, True, False]


def test_unknown_overlap_is_near_nothing_but_may_have_the_shortest_queue() -> None:
    assert keep(row("a", an_overlap(1000)), row("b", None), row("c", an_overlap(0), 1.0)) == [True, False, True]
    assert keep(row("a", an_overlap(1000)), row("b", None, 1.0), row("c", an_overlap(0))) == [True, True, False]


@pytest.mark.parametrize("overlap", [None, an_overlap(0)])
def test_where_nobody_is_known_to_hold_anything_all_stay(overlap: Overlap | None) -> None:
    assert keep(row("a", overlap), row("b", overlap, 1.0), row("c", None)) == [True, True, True]


@pytest.mark.parametrize(("share", "bounds"), [(0.0, "more than 0"), (-0.1, "from 0 to 1"), (1.1, "from 0 to 1")])
def test_parameters_have_bounds(share: float, bounds: str) -> None:
    with pytest.raises(ValueError, match=f"share: found {share}, wanted .*{bounds}"):
        NearLongest(share=share)


def test_an_age_is_above_zero() -> None:
    with pytest.raises(ValueError, match="stale_s"):
        NearLongest(stale_s=0)


def test_a_run_that_its_full_gpu_cannot_keep_is_not_long() -> None:
    full = a_row("full", an_overlap(900)._replace(expected_tokens=0), a_load(queued_ms=5.0))
    others = [a_row(name, an_overlap(500), a_load(queued_ms=9.0)) for name in "ab"]
    none = a_row("none", an_overlap(0), a_load(queued_ms=7.0))
    assert NearLongest().keep(a_view(full, *others, none, prompt_tokens=1000)) == [True, True, True, False]
    assert NearLongest().keep(a_view(full._replace(load=none.load), *others, prompt_tokens=1000))[1:] == [True, True]


@pytest.mark.parametrize("a_filter", [NearLongest(), NearLongest(share=1.0), NearLongest(share=0.01, stale_s=500.0)])
@examples(30)
@given(st.data(), views())
def test_it_keeps_the_contract(a_filter: NearLongest, data: st.DataObject, view: View) -> None:
    check_filter(a_filter, view, data.draw(st.permutations(range(len(view.rows)))))


@examples(50)
@given(views())
def test_the_longest_and_the_least_queue_always_stay(view: View) -> None:
    def silent(load: Load) -> Load:
        return load._replace(running=None)

    view = view._replace(rows=tuple(row._replace(load=silent(row.load)) for row in view.rows))
    kept = NearLongest().keep(view)
    known = [row.overlap or an_overlap(0) for row in view.rows]
    runs = [max(held.expected_tokens, held.disk_tokens * (held.disk_tokens > held.gpu_tokens)) for held in known]
    queues = [row.load.queued_ms for row in view.rows]
    assert any(stays and run == max(runs) for stays, run in zip(kept, runs, strict=True))
    assert any(stays and queue == min(queues) for stays, queue in zip(kept, queues, strict=True))
