"""Columns say what rows would say, whatever happened since they were last looked at."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.fleet.engine_facts import Gauges, ModelCard
from router.fleet.fleet import Fleet
from router.fleet.instance import Target
from router.fleet.load import Booking
from scorers.streams import stall_cost, step_ms
from scorers.ttft import WorkAhead
from tests.router.fleet.test_rows import fleet_of

NAMES = ("a", "b", "c")
happenings = st.sampled_from(
    ["book", "first byte", "release", "show", "answer", "poll", "poll grown", "look", "down", "drain"]
)


def price(prices: WorkAhead, slot: int) -> float:
    """Of 100 tokens, where none is held, and 30 steps."""
    work = prices.fixed_ms[slot] + prices.ms_per_token[slot] * 100 + prices.ms_per_pair[slot] * 5000
    return work + prices.ms_per_step[slot] * 30


def check(fleet: Fleet, now: float) -> None:
    candidates = list(fleet.candidates("m", (), now))  # as for a request: it lets targets assume their peers' speed
    columns = fleet.columns("m", now)
    assert list(columns.targets) == candidates
    for target in columns.targets:
        slot, row = columns.slots[target.id], target.build_row(now)
        assert (columns.requests[slot], columns.queued_ms[slot]) == (row.load.requests, row.load.queued_ms)
        assert columns.speeds[slot][:3] == row.speed[:3]
        work, own = row.speed.prefill_ms(100, 0), 30 * step_ms(row.speed, row.load.requests, row.load.context_tokens)
        assert price(columns.prices, slot) == pytest.approx(row.load.queued_ms + work + own)
        assert price(columns.weighted_prices, slot) == pytest.approx(
            row.load.queued_ms + work * (1 + stall_cost(row.load.requests, row.load.prefilling)) + own
        )
        assert columns.free_tokens[slot] == (row.capacity_tokens or inf) - (row.load.live_tokens or 0)
        assert (target in columns.others_waiting) is bool(row.load.waiting and row.load.elsewhere)
    least_room = min(columns.free_tokens, default=inf)
    assert columns.all_have_free(1_000_000, 0.0) is (least_room >= 1_000_000)
    assert columns.all_have_free(1_500, 0.0) is (least_room >= 1_500)


def answered(target: Target, step_ms: int, now: float) -> None:
    """100 tokens, so far apart, to a prompt of 50."""
    booking = target.book(50, 50)
    booking.on_first_byte()
    booking.release()
    target.observe_decode(booking, 100, 10.0, 10.0 + 99 * step_ms, now)


@given(st.lists(st.tuples(st.sampled_from(NAMES), happenings), max_size=30))
def test_columns_say_what_rows_say(story: list[tuple[str, str]]) -> None:
    fleet, now = fleet_of(*NAMES), 1.0
    bookings: list[Booking] = []
    for name, what in story:
        now += 0.3
        (target,) = (instance := next(i for i in fleet if i.id == name)).targets.values()
        if what == "book":
            bookings.append(target.book(100, 400))
        elif what in ("first byte", "release") and bookings:
            bookings[-1].on_first_byte() if what == "first byte" else bookings.pop().release()
        elif what == "show":
            target.observe_prefill(target.book(50, 50), 50, 0, 40.0, now)
        elif what == "answer":
            answered(target, 40, now)
        elif what == "poll":
            fleet.apply_metrics(instance.id, {0: Gauges(3, 2, 0.1, 16, 1600, None, None)}, now)
        elif what == "poll grown":
            fleet.apply_metrics(instance.id, {0: Gauges(0, 0, 0.1, 16, 3200, None, None)}, now)
        elif what == "down":
            fleet.record_probe_failure(instance.id, now)
        elif what == "drain":
            fleet.drain(instance.id)
        elif what == "look":
            check(fleet, now)
    check(fleet, now)


def test_what_one_rank_showed_is_told_of_all_ranks() -> None:
    fleet = fleet_of("a")
    fleet.mark_ready("a", [ModelCard("m", None, None, None)], [0, 1])
    (instance,) = fleet
    instance.targets[1].book(100, 400)
    check(fleet, 1.0)
    instance.targets[0].observe_prefill(instance.targets[0].book(50, 50), 50, 0, 40.0, 1.0)
    check(fleet, 1.0)


def test_what_an_answer_showed_of_decoding_is_told_of_all_ranks() -> None:
    fleet = fleet_of("a")
    fleet.mark_ready("a", [ModelCard("m", None, None, None)], [0, 1])
    (instance,) = fleet
    check(fleet, 1.0)
    answered(instance.targets[0], 40, 1.0)
    check(fleet, 1.0)


def test_a_poll_that_says_what_the_last_one_said_concerns_no_lineup() -> None:
    fleet = fleet_of("a")
    for sent_at in (1.0, 1.25):
        fleet.columns("m", sent_at)
        fleet.apply_metrics("a", {0: Gauges(3, 0, 0.1, 16, 1600, None, None)}, sent_at)
    assert not fleet.row_cache.changed_targets


def test_who_left_is_not_remembered_where_nobody_asks_for_a_lineup() -> None:
    """In a small fleet nobody does: rows are made of all."""
    fleet = fleet_of("a", "b")
    for instance in fleet:
        instance.targets[0].book(100, 400)
    fleet.leave("a")
    assert not fleet.row_cache.changed_targets
    check(fleet, 1.0)  # b's booking is in a new lineup all the same


def test_models_on_the_same_targets_share_a_lineup() -> None:
    fleet = fleet_of("a", "b")
    assert fleet.columns("m", 1.0) is fleet.columns(None, 1.0)


def test_block_sizes_are_those_in_use_now() -> None:
    fleet = fleet_of("a", "b")
    (a,), (b,) = (instance.targets.values() for instance in fleet)
    assert fleet.block_sizes("m") == frozenset()
    a.set_block_tokens(16)
    b.apply_gauges(Gauges(0, 0, 0.1, 128, 1600, None, None), 1.0)
    assert fleet.block_sizes("m") == {16, 128}
    b.set_block_tokens(16)
    assert fleet.block_sizes("m") == {16}
    a.reset()
    b.reset()
    assert fleet.block_sizes("m") == frozenset()
    assert fleet.block_sizes("nobody serves it") == frozenset()
