"""The shared parts one by one; test_expected_ttft.py has the whole price and an oracle over all ways to fetch."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scorers.contract import PoolHit, Speed, Transfer, View
from scorers.ttft import PromptTokens, least_ms, others_waiting, prompt_of, ttfts_ms, waits_ms, works_ms
from tests.suites.views import a_load, a_row, a_view, an_overlap, speeds, views

FLAT = Speed(10.0, 100.0, 0.0, 0, None, None, None, None)  # 10 ms + 0.1 ms a token


def test_the_prompt_is_as_long_as_told_and_at_least_as_long_as_what_anybody_holds() -> None:
    a, b = a_row("a", an_overlap(300)), a_row("b", an_overlap(0, cpu=100, disk=700))
    assert prompt_of(a_view(a, b, prompt_tokens=1000)).whole == 1000
    assert prompt_of(a_view(a, b)).whole == 700
    assert prompt_of(a_view(a, b, pool=PoolHit(900, 0.1))).whole == 900
    assert prompt_of(a_view(a, b, pool=PoolHit(900, 0.1)), pool=False).whole == 700
    assert prompt_of(a_view(a_row("a"))).whole == 0


def test_the_pool_s_memory_is_a_leading_part_of_what_it_holds() -> None:
    rows = (a_row("a", an_overlap(0)),)
    assert prompt_of(a_view(*rows, prompt_tokens=1000)) == PromptTokens(1000, 0, 0, 0)
    assert prompt_of(a_view(*rows, prompt_tokens=1000, pool=PoolHit(800, 0.1))) == PromptTokens(1000, 800, 800, 0)
    assert prompt_of(a_view(*rows, prompt_tokens=1000, pool=PoolHit(800, 0.1, 300))) == PromptTokens(1000, 300, 800, 0)
    assert prompt_of(a_view(*rows, prompt_tokens=1000, pool=PoolHit(800, 0.1, 900))) == PromptTokens(1000, 800, 800, 0)


def test_unknown_is_the_mean_of_what_is_held_and_expected() -> None:
    # (100 + 501) / 2 = 300.5, to whole tokens
    rows = a_row("a", an_overlap(100)), a_row("b", an_overlap(0, expected=501)), a_row("c")
    assert prompt_of(a_view(*rows, prompt_tokens=1000)).unknown == 300
    assert least_ms(None, FLAT, PromptTokens(1000, 0, 0, 300)) == pytest.approx(80)  # 10 + 700 * 0.1


def test_waits_are_our_queue_and_the_others_each_as_long_as_the_mean_work() -> None:
    # a: 6 wait, 4 of 8 are not ours: 3 wait ahead, (20 + 60) / 2 ms each, after 50 of ours
    a = a_row("a", load=a_load(queued_ms=50.0, running=2, waiting=6, elsewhere=4))
    b = a_row("b", load=a_load(queued_ms=7.0, running=1, waiting=0, elsewhere=1))
    assert others_waiting([a, b], 15.0) == [3, 0]
    assert waits_ms([a, b], [20.0, 60.0], 15.0) == pytest.approx([50 + 3 * 40, 7])
    assert waits_ms([b], [60.0], 15.0) == [7]


def test_the_wait_and_the_work_add_up() -> None:
    a = a_row("a", an_overlap(800), a_load(queued_ms=50.0))._replace(speed=FLAT)
    view = a_view(a, prompt_tokens=1000)
    assert ttfts_ms(view.rows, prompt_of(view), 15.0) == pytest.approx([50 + 10 + 200 * 0.1])


def test_what_a_full_gpu_cannot_keep_is_computed_unless_another_tier_has_it() -> None:
    prompt, speed = PromptTokens(1000, 0, 0, 0), FLAT._replace(cpu=Transfer(1.0, 10.0, 0, None))
    held = an_overlap(900)._replace(expected_tokens=100)
    assert least_ms(held, speed, prompt) == pytest.approx(10 + 900 * 0.1)
    hosted = an_overlap(900, cpu=950, disk=950)._replace(expected_tokens=100)
    assert least_ms(hosted, speed, prompt) == pytest.approx(1 + 850 * 0.01 + 10 + 50 * 0.1)
    alike = a_row("a", held)._replace(speed=speed), a_row("b", hosted)._replace(speed=speed)
    assert works_ms(alike, prompt) == pytest.approx([100, 24.5])


@given(
    st.integers(0, 900),
    st.integers(0, 1000),
    st.none() | st.builds(Transfer, st.floats(0, 60), st.floats(0, 200), st.just(0), st.none()),
    st.floats(0, 20),
)
def test_the_short_way_for_a_pool_in_memory_gives_the_least_of_both_ways(
    held: int, pooled: int, link: Transfer | None, context_ns: float
) -> None:
    speed = FLAT._replace(pool=link, ns_per_token_context=context_ns)
    ways = [speed.prefill_ms(1000 - held, held)]
    if link is not None and pooled > held:
        fetching = link.base_ms + link.us_per_token * (pooled - held) / 1000
        ways.append(fetching + speed.prefill_ms(1000 - pooled, pooled))
    assert least_ms(an_overlap(held), speed, PromptTokens(1000, pooled, pooled, 0)) == pytest.approx(min(ways))


@given(views(), st.booleans(), st.none() | speeds)
def test_the_work_of_all_rows_is_that_of_each(view: View, pool: bool, on: Speed | None) -> None:
    prompt = prompt_of(view, pool=pool)
    assert works_ms(view.rows, prompt, on) == [least_ms(row.overlap, on or row.speed, prompt) for row in view.rows]


def test_rows_that_hold_the_same_cost_the_same_on_one_machine_only() -> None:
    # 10 + 0.1 ms a token, and twice that: 800 left of 1000 in the first two, all of it in the others
    slow = FLAT._replace(us_per_token=200.0)
    rows = [
        a_row("a", an_overlap(200))._replace(speed=FLAT),
        a_row("b", an_overlap(200))._replace(speed=slow),
        a_row("c", an_overlap(0))._replace(speed=slow),
        a_row("d", an_overlap(0))._replace(speed=FLAT),
    ]
    prompt = PromptTokens(1000, 0, 0, 0)
    assert works_ms(rows, prompt) == pytest.approx([90, 170, 210, 110])
    assert works_ms(rows, prompt, FLAT) == pytest.approx([90, 90, 110, 110])
