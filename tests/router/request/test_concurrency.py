"""The bounds, and that nothing is ever given back twice or not at all."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.errors import TooBusy
from router.request.concurrency import ConcurrencyLimiter


def test_one_more_than_allowed_is_refused_with_retry_after():
    limiter = ConcurrencyLimiter(concurrent=2, body_budget_bytes=100)
    with limiter.acquire(), limiter.acquire():
        with pytest.raises(TooBusy) as refused:
            limiter.acquire()
        assert refused.value.retry_after_s == 1
        assert limiter.in_flight == 2
    assert limiter.in_flight == 0
    with limiter.acquire():
        assert limiter.in_flight == 1


def test_bytes_of_all_bodies_together_are_bounded():
    limiter = ConcurrencyLimiter(concurrent=9, body_budget_bytes=100)
    with limiter.acquire() as first, limiter.acquire() as second:
        first.hold(60)
        with pytest.raises(TooBusy):
            second.hold(41)
        second.hold(40)
        assert limiter.held_bytes == 100
    assert limiter.held_bytes == 0


def test_a_slot_is_given_back_whatever_ends_its_request():
    limiter = ConcurrencyLimiter(concurrent=1, body_budget_bytes=100)
    with suppress(ValueError), limiter.acquire() as slot:
        slot.hold(10)
        raise ValueError
    assert (limiter.in_flight, limiter.held_bytes) == (0, 0)


def test_a_slot_is_given_back_once():
    limiter = ConcurrencyLimiter(concurrent=2, body_budget_bytes=100)
    with limiter.acquire():
        with limiter.acquire() as slot:
            slot.hold(10)
            slot.release()
        assert (limiter.in_flight, limiter.held_bytes) == (1, 0)


@given(st.lists(st.tuples(st.sampled_from(["enter", "hold", "leave"]), st.integers(0, 50)), max_size=60))
def test_the_counts_are_always_those_of_the_slots_held(steps):
    limiter = ConcurrencyLimiter(concurrent=4, body_budget_bytes=100)
    slots = []
    for step, number in steps:
        if step == "enter":
            try:
                slots.append(limiter.acquire())
            except TooBusy:
                assert len(slots) == 4
        elif step == "hold" and slots:
            slot = slots[number % len(slots)]
            try:
                slot.hold(number)
            except TooBusy:
                assert limiter.held_bytes + number > 100
        elif slots:
            slots.pop(number % len(slots)).release()
        assert limiter.in_flight == len(slots)
        assert limiter.held_bytes == sum(slot.held_bytes for slot in slots) <= 100
