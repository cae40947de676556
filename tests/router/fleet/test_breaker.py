"""The breaker's states, as stories."""

from __future__ import annotations

import pytest

from router.fleet.breaker import CircuitBreaker, Verdict, verdict


def opened(now: float = 0.0) -> CircuitBreaker:
    breaker = CircuitBreaker(failures=3, open_s=5.0)
    for _ in range(3):
        breaker.sent()
        breaker.ended("failure", now)
    return breaker


def test_opens_after_failures_in_a_row_only() -> None:
    breaker = CircuitBreaker(failures=3, open_s=5.0)
    ends: list[Verdict] = ["failure", "failure", "success", "failure", "neutral", "failure"]
    for end in ends:
        breaker.sent()
        breaker.ended(end, 0.0)
        assert breaker.state(0.0) == "closed"
        assert breaker.lets(0.0)
    breaker.ended("failure", 0.0)
    assert breaker.state(0.0) == "open"
    assert not breaker.lets(0.0)
    assert breaker.opened == 1


def test_after_a_while_one_trial_decides() -> None:
    breaker = opened()
    assert not breaker.lets(4.9)
    assert breaker.lets(5.0)
    assert breaker.lets(5.0), "asking is not sending"
    assert breaker.state(5.0) == "half_open"
    breaker.sent()
    assert not breaker.lets(100.0), "one trial at a time"
    assert breaker.state(100.0) == "half_open"
    breaker.ended("success", 6.0)
    assert breaker.state(6.0) == "closed"
    assert breaker.lets(6.0)


def test_a_failed_trial_opens_it_for_another_while() -> None:
    breaker = opened()
    breaker.sent()
    breaker.ended("failure", 6.0)
    assert not breaker.lets(10.9)
    assert breaker.lets(11.0)
    assert breaker.opened == 2


def test_a_neutral_trial_makes_room_for_the_next() -> None:
    breaker = opened()
    breaker.sent()
    breaker.ended("neutral", 6.0)
    assert breaker.state(6.0) == "half_open"
    assert breaker.lets(6.0)


def test_after_it_closed_it_takes_the_whole_row_again() -> None:
    breaker = opened()
    breaker.ended("success", 6.0)
    breaker.ended("failure", 7.0)
    breaker.ended("failure", 7.0)
    assert breaker.lets(7.0)


def test_a_request_from_before_may_close_it() -> None:
    breaker = opened()
    breaker.ended("success", 1.0)
    assert breaker.lets(1.0)


def test_reset_closes_it() -> None:
    breaker = opened()
    breaker.reset()
    assert breaker.lets(0.0)
    assert breaker.state(0.0) == "closed"


@pytest.mark.parametrize(
    ("status", "expected"),
    [(None, "failure"), (500, "failure"), (502, "failure"), (504, "failure"), (503, "neutral")]
    + [(status, "success") for status in (200, 400, 401, 404, 409, 413, 422, 429, 499)],
)
def test_what_counts(status: int | None, expected: str) -> None:
    assert verdict(status) == expected


def test_whoever_asks_is_told_which_breakers_are_not_closed() -> None:
    not_closed: set[CircuitBreaker] = set()
    one, other = (CircuitBreaker(failures=1, open_s=5.0, not_closed=not_closed) for _ in range(2))
    one.ended("failure", 0.0)
    other.ended("failure", 0.0)
    assert not_closed == {one, other}
    assert one.lets(5.0)
    assert not_closed == {one, other}, "half open is not closed"
    one.ended("success", 6.0)
    assert not_closed == {other}
    other.reset()
    assert not_closed == set()


def test_a_breaker_that_left_is_nobody_s_concern() -> None:
    not_closed: set[CircuitBreaker] = set()
    breaker = CircuitBreaker(failures=1, open_s=5.0, not_closed=not_closed)
    breaker.ended("failure", 0.0)
    breaker.leave()
    assert not_closed == set()
    breaker.ended("failure", 1.0)
    assert not_closed == set()
    assert breaker.state(1.0) == "open"
