"""The bounds, the shares, and that nothing is ever given back twice or not at all."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.errors import TooBusy
from router.request.concurrency import ConcurrencyLimiter


def test_one_more_than_allowed_is_refused_with_retry_after():
    limiter = ConcurrencyLimiter(concurrent=2, body_budget_bytes=100)
    with limiter.open("a") as first, limiter.open("b") as second, limiter.open("c") as third:
        first.take()
        second.take()
        with pytest.raises(TooBusy, match=r"limits\.concurrent") as refused:
            limiter.open("d")
        assert (refused.value.retry_after_s, refused.value.code) == (1, "too_many_requests")
        with pytest.raises(TooBusy):  # its body came when the places were taken
            third.take()
        assert limiter.in_flight == 2
    assert limiter.in_flight == 0
    with limiter.open("a") as slot:
        slot.take()
        assert limiter.in_flight == 1


def test_a_place_is_taken_when_the_body_is_here():
    limiter = ConcurrencyLimiter(concurrent=1, body_budget_bytes=100)
    with limiter.open("a") as slot, limiter.open("b"):
        slot.hold(10)
        assert (limiter.in_flight, limiter.held_bytes) == (0, 10)


def test_one_client_has_a_share_of_the_places():
    limiter = ConcurrencyLimiter(concurrent=5, body_budget_bytes=100)
    for _ in range(4):
        limiter.open("a").take()
    with pytest.raises(TooBusy, match="4 of your requests are being served, which is your share of 5"):
        limiter.open("a")
    limiter.open("b").take()


def test_bytes_of_all_bodies_together_are_bounded():
    limiter = ConcurrencyLimiter(concurrent=9, body_budget_bytes=100)
    with limiter.open("a") as first, limiter.open("b") as second, limiter.open("c") as third:
        first.hold(60)
        with pytest.raises(TooBusy, match=r"limits\.body_budget_bytes") as refused:
            second.hold(41)
        assert refused.value.code == "too_many_bytes"
        second.hold(30)
        third.hold(10)
        assert limiter.held_bytes == 100
    assert limiter.held_bytes == 0


def test_one_client_has_a_share_of_the_bytes():
    limiter = ConcurrencyLimiter(concurrent=9, body_budget_bytes=100)
    with limiter.open("a") as first, limiter.open("a") as second, limiter.open("b") as other:
        first.hold(60)
        second.hold(20)
        with pytest.raises(TooBusy, match="your request bodies being served take 80 bytes, your share of 100"):
            second.hold(1)
        other.hold(16)


def test_a_slot_is_given_back_whatever_ends_its_request():
    limiter = ConcurrencyLimiter(concurrent=1, body_budget_bytes=100)
    with suppress(ValueError), limiter.open("a") as slot:
        slot.hold(10)
        slot.take()
        raise ValueError
    assert (limiter.in_flight, limiter.held_bytes) == (0, 0)


def test_a_slot_is_given_back_once():
    limiter = ConcurrencyLimiter(concurrent=5, body_budget_bytes=100)
    with limiter.open("a") as other:
        other.take()
        with limiter.open("a") as slot:
            slot.hold(10)
            slot.take()
            slot.release()
        assert (limiter.in_flight, limiter.held_bytes) == (1, 0)


STEPS = st.tuples(st.sampled_from(["open", "hold", "take", "leave"]), st.sampled_from("abc"), st.integers(1, 50))


@given(st.lists(STEPS, max_size=60))
def test_the_counts_are_always_those_of_the_slots_held(steps):
    limiter = ConcurrencyLimiter(concurrent=4, body_budget_bytes=100)
    slots, taken = [], set()
    for step, client, number in steps:
        slot = slots[number % len(slots)] if slots else None
        with suppress(TooBusy):
            if step == "open":
                slots.append(limiter.open(client))
            elif slot is None:
                continue
            elif step == "hold":
                slot.hold(number)
            elif step == "take" and slot not in taken:
                slot.take()
                taken.add(slot)
            elif step == "leave":
                slots.remove(slot)
                taken.discard(slot)
                slot.release()
        assert limiter.in_flight == len(taken) <= 4
        assert limiter.held_bytes == sum(slot.held_bytes for slot in slots) <= 100
