"""Worked arithmetic for every term of the price, and what it decides in the situations it was made for."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scorers.contract import Ask, Decode, Load, Overlap, PoolHit, Row, Speed, Transfer, View
from scorers.expected_ttft import ExpectedTtft
from scorers.warm import Warm
from tests.suites.properties import examples
from tests.suites.scorers import check_scorer
from tests.suites.views import a_load, a_row, a_view, an_overlap, views

FLAT = Speed(10.0, 100.0, 0.0, 0, None, None, None, None)  # 10 ms + 0.1 ms a token, context costs nothing
SLOW = FLAT._replace(us_per_token=300.0)


def row(name: str, overlap: Overlap | None = None, load: Load | None = None, speed: Speed = FLAT) -> Row:
    return a_row(name, overlap, load)._replace(speed=speed)


def score(*rows: Row, scorer: Warm | None = None, **known: Any) -> list[float]:
    return list((scorer or Warm()).score(a_view(*rows, **({"prompt_tokens": 1000, "nominal": FLAT} | known))))


HOLDER = row("holder", an_overlap(900), a_load(queued_ms=150.0))  # 150 queued, 10 + 100 * 0.1 = 20 of work
IDLE = row("idle", an_overlap(0))  # 10 + 1000 * 0.1 = 110 of work


# the price of work


@pytest.mark.parametrize("busy", [None, 0.0])
def test_in_an_idle_fleet_it_is_the_time_to_the_first_token(busy: float | None) -> None:
    assert score(HOLDER, IDLE, busy=busy) == pytest.approx([170, 110])


def test_the_busier_the_fleet_the_more_each_millisecond_of_work_costs() -> None:
    # w = 2: the work twice more.  150 + 20 + 2 * 20, 110 + 2 * 110
    assert score(HOLDER, IDLE, busy=0.5) == pytest.approx([210, 330])
    # w = 10: 150 + 20 + 18 * 20, 110 + 18 * 110
    assert score(HOLDER, IDLE, busy=0.9) == pytest.approx([530, 2090])


def test_full_memory_makes_work_as_dear_as_pending_prefills_do_and_the_scarcer_of_both_counts() -> None:
    assert score(HOLDER, IDLE, live_share=0.5) == pytest.approx([210, 330])
    assert score(HOLDER, IDLE, busy=0.5, live_share=0.9) == pytest.approx([530, 2090])
    assert score(HOLDER, IDLE, busy=0.9, live_share=0.5) == pytest.approx([530, 2090])


def test_so_a_busy_fleet_waits_for_its_caches_and_an_idle_one_does_not() -> None:
    def choice(busy: float) -> str:
        costs = score(HOLDER, IDLE, busy=busy)
        return ("holder", "idle")[costs.index(min(costs))]

    # 170 + 2 (w - 1) * 20 = 110 + 2 (w - 1) * 110 at w = 4/3, a busy share of 0.25
    assert choice(0.24) == "idle"
    assert choice(0.26) == "holder"


@pytest.mark.parametrize("busy", [0.94, 0.99, 1.0])
def test_the_price_is_capped(busy: float) -> None:
    # w = 16 from a busy share of 15/16 = 0.9375 on: 150 + 31 * 20, 31 * 110
    assert score(HOLDER, IDLE, busy=busy) == pytest.approx([770, 3410])
    assert score(HOLDER, IDLE, busy=busy, scorer=Warm(cap=2.0)) == pytest.approx([210, 330])


def test_a_cap_of_one_is_selfish_whatever_the_load() -> None:
    assert score(HOLDER, IDLE, busy=1.0, scorer=Warm(cap=1.0)) == pytest.approx([170, 110])


def test_a_shared_block_does_not_pull_everybody_to_its_holder() -> None:
    """Of 1000 tokens 50 are in every prompt: at any load the queue it is worth waiting for is 31 * 5 ms."""
    shared = row("shared", an_overlap(50), a_load(queued_ms=156.0))  # 156 + 31 * (10 + 950 * 0.1) = 3411
    assert score(shared, IDLE, busy=1.0) == pytest.approx([3411, 3410])


# whose seconds


def test_work_is_priced_on_the_nominal_instance() -> None:
    # a slow machine: its own 10 + 1000 * 0.3 = 310, but the fleet loses what anybody would: 110
    assert score(row("slow", an_overlap(0), speed=SLOW), busy=0.5) == pytest.approx([310 + 2 * 110])


def test_without_a_nominal_instance_at_the_row_s_own() -> None:
    slow = row("slow", an_overlap(0), speed=SLOW)
    assert score(slow, IDLE, busy=0.5, nominal=None) == pytest.approx([310 * 3, 110 * 3])


def test_each_row_pays_for_what_it_does_not_hold_itself() -> None:
    """Equal holdings are priced once: those that differ in any tier must not share a price."""
    cpu = FLAT._replace(cpu=Transfer(1.0, 5.0, 0, None))
    rows = [
        row("a", an_overlap(0), speed=cpu),
        row("b", an_overlap(0, cpu=800), speed=cpu),
        row("c", an_overlap(0, expected=800), speed=cpu),
        row("d", an_overlap(0), speed=cpu),
    ]
    # a, d: 3 * 110;  b: 3 * (1 + 800 * 0.005 + 10 + 200 * 0.1) = 105;  c: 3 * (10 + 200 * 0.1) = 90
    assert score(*rows, busy=0.5, nominal=cpu) == pytest.approx([330, 105, 90, 330])


# answers that stream


def test_work_costs_more_where_it_holds_up_more_answers() -> None:
    # 6 requests, 2 of them still without a first byte: 4 stream, 0.03 each: 110 * 1.12
    crowded = row("crowded", an_overlap(0), a_load(requests=6, prefilling=2))
    assert score(crowded, IDLE) == pytest.approx([123.2, 110])


def test_a_hit_holds_up_nobody() -> None:
    # 4 stream: 20 ms of work there cost 2.4 more; at the idle one the whole prompt costs 110
    holder = row("holder", an_overlap(900), a_load(requests=4))
    assert score(holder, IDLE) == pytest.approx([22.4, 110])


def test_an_answer_is_sent_where_it_streams_faster() -> None:
    # a step there: 10 + 4 * 0.05 + 50,000 * 60e-6 = 13.2 ms; idle: 10.  100 tokens of answer, at 0.03
    speed = FLAT._replace(decode=Decode(10.0, 50.0, 60.0, 0, None))
    long = row("long", an_overlap(0), a_load(requests=4, prefilling=4, context_tokens=50_000), speed)
    idle = row("idle", an_overlap(0), speed=speed)
    assert score(long, idle, answer_tokens=100.0) == pytest.approx([110 + 39.6, 110 + 30])
    assert score(long, idle, answer_tokens=100.0, ask=Ask(output_tokens=10)) == pytest.approx([110 + 3.96, 110 + 3])
    assert score(long, idle) == pytest.approx([110, 110])  # how long it will be is unknown


def test_where_memory_is_full_a_prompt_waits_for_answers_to_end() -> None:
    # 60,000 of 60,000 tokens are live: 100 more, which it does not hold, and an answer of 100 do not fit: a
    # quarter of 1/300 of an answer's 100 steps of 10 + 3.6 ms
    speed = FLAT._replace(decode=Decode(10.0, 0.0, 60.0, 0, None))
    full = row("full", an_overlap(900), a_load(context_tokens=60_000), speed)._replace(capacity_tokens=60_000)
    room = full._replace(capacity_tokens=61_000)
    streamed = 0.03 * 100 * 13.6
    costs = score(full, room, answer_tokens=100.0)
    assert costs == pytest.approx([20 + streamed + 0.25 * 100 * 13.6 / 300, 20 + streamed])


# the pool


def test_a_pool_makes_work_cheap_and_waiting_for_a_cache_needless() -> None:
    pooled = FLAT._replace(pool=Transfer(5.0, 10.0, 0, None))
    holder, idle = HOLDER._replace(speed=pooled), IDLE._replace(speed=pooled)
    # idle: 5 + 900 * 0.01 + 10 + 100 * 0.1 = 34, three times;  holder: 150 + 3 * 20
    costs = score(holder, idle, busy=0.5, nominal=pooled, pool=PoolHit(900, 0.1))
    assert costs == pytest.approx([210, 102])
    assert score(holder, idle, busy=0.5, nominal=pooled, pool=PoolHit(900, 0.1), scorer=Warm(pool=False)) == (
        pytest.approx([210, 330])
    )


def test_the_fleet_s_loss_is_what_the_nominal_link_takes() -> None:
    """A row with a link of its own: it fetches in 34 ms, a nominal instance without one computes in 110."""
    pooled = FLAT._replace(pool=Transfer(5.0, 10.0, 0, None))
    assert score(row("a", an_overlap(0), speed=pooled), busy=0.5, pool=PoolHit(900, 0.1)) == pytest.approx(
        [34 + 2 * 110]
    )


# others, and what is missing


def test_others_that_wait_in_the_engine_wait_ahead() -> None:
    # 2 run and 6 wait, 4 of the 8 are not ours: 3 ahead, each (20 + 110) / 2 = 65
    busy = row("a", an_overlap(900), a_load(running=2, waiting=6, elsewhere=4))
    free = row("b", an_overlap(0), a_load(running=2, waiting=0, elsewhere=2))
    assert score(busy, free) == pytest.approx([3 * 65 + 20, 110])


def test_unknown_overlap_is_not_taken_for_that_of_the_holders_around_it() -> None:
    # the holder has 20 ms of work, the unknown all 110, not the 900 tokens that the known ones hold on average
    assert score(row("a", an_overlap(900)), row("b"), busy=0.5) == pytest.approx([60, 330])


def test_but_what_the_pool_holds_counts_for_it() -> None:
    pooled = FLAT._replace(pool=Transfer(5.0, 10.0, 0, None))
    assert score(row("b", speed=pooled), nominal=pooled, pool=PoolHit(900, 0.1)) == pytest.approx([34])


def test_nothing_known_leaves_the_queue_to_decide() -> None:
    rows = row("a", load=a_load(queued_ms=30.0)), row("b")
    assert score(*rows, prompt_tokens=None, busy=0.5) == pytest.approx([60, 30])  # 10 ms of work, three times


def test_parameters_have_bounds() -> None:
    with pytest.raises(ValueError, match=r"cap: found 0.5, wanted at least 1"):
        Warm(cap=0.5)
    with pytest.raises(ValueError, match="stale_s"):
        Warm(stale_s=0)


# properties


@pytest.mark.parametrize("scorer", [Warm(), Warm(cap=1.0), Warm(cap=64.0, pool=False), Warm(stale_s=500.0)])
@examples(30)
@given(st.data(), views())
def test_it_keeps_the_contract(scorer: Warm, data: st.DataObject, view: View) -> None:
    check_scorer(scorer, view, data.draw(st.permutations(range(len(view.rows)))))


@examples(50)
@given(views())
def test_where_all_overlaps_are_known_nobody_is_busy_and_nothing_streams_it_is_expected_ttft(view: View) -> None:
    still = [row._replace(load=row.load._replace(requests=row.load.prefilling)) for row in view.rows]
    known = tuple(row if row.overlap else row._replace(overlap=an_overlap(0)) for row in still)
    idle = view._replace(rows=known, busy=0.0, live_share=0.0)
    assert Warm().score(idle) == ExpectedTtft().score(idle)


@examples(50)
@given(views(), st.sampled_from(["busy", "live_share"]), st.floats(0, 1), st.floats(0, 1))
def test_no_price_falls_when_more_of_the_fleet_is_in_use(view: View, share: str, one: float, other: float) -> None:
    less, more = sorted((one, other))
    before = Warm().score(view._replace(**{share: less}))
    after = Warm().score(view._replace(**{share: more}))
    assert all(a >= b or a == pytest.approx(b) for a, b in zip(after, before, strict=True))
