"""The bounds, and that nothing is ever given back twice or not at all."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.errors import TooBusy
from router.request.concurrency import ConcurrencyLimiter


def test_one_more_than_allowed_is_refused_with_retry_after():
    lobby = ConcurrencyLimiter(concurrent=2, body_budget_bytes=100)
    with lobby.pass_(), lobby.pass_():
        with pytest.raises(TooBusy) as refused:
            lobby.pass_()
        assert refused.value.retry_after_s == 1
        assert lobby.inside == 2
    assert lobby.inside == 0
    with lobby.pass_():
        assert lobby.inside == 1


def test_bytes_of_all_bodies_together_are_bounded():
    lobby = ConcurrencyLimiter(concurrent=9, body_budget_bytes=100)
    with lobby.pass_() as first, lobby.pass_() as second:
        first.hold(60)
        with pytest.raises(TooBusy):
            second.hold(41)
        second.hold(40)
        assert lobby.held_bytes == 100
    assert lobby.held_bytes == 0


def test_a_place_is_given_back_whatever_ends_its_request():
    lobby = ConcurrencyLimiter(concurrent=1, body_budget_bytes=100)
    with suppress(ValueError), lobby.pass_() as place:
        place.hold(10)
        raise ValueError
    assert (lobby.inside, lobby.held_bytes) == (0, 0)


def test_a_place_is_given_back_once():
    lobby = ConcurrencyLimiter(concurrent=2, body_budget_bytes=100)
    with lobby.pass_():
        with lobby.pass_() as place:
            place.hold(10)
            place.leave()
        assert (lobby.inside, lobby.held_bytes) == (1, 0)


@given(st.lists(st.tuples(st.sampled_from(["enter", "hold", "leave"]), st.integers(0, 50)), max_size=60))
def test_the_counts_are_always_those_of_the_places_held(steps):
    lobby = ConcurrencyLimiter(concurrent=4, body_budget_bytes=100)
    places = []
    for step, number in steps:
        if step == "enter":
            try:
                places.append(lobby.pass_())
            except TooBusy:
                assert len(places) == 4
        elif step == "hold" and places:
            place = places[number % len(places)]
            try:
                place.hold(number)
            except TooBusy:
                assert lobby.held_bytes + number > 100
        elif places:
            places.pop(number % len(places)).leave()
        assert lobby.inside == len(places)
        assert lobby.held_bytes == sum(place.held_bytes for place in places) <= 100
