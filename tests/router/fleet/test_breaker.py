"""The breaker's states, as stories."""

from __future__ import annotations

import pytest

from router.fleet.breaker import CircuitBreaker, Verdict, judge_status


def opened(now: float = 0.0) -> CircuitBreaker:
    breaker = CircuitBreaker(failures=3, open_s=5.0)
    for _ in range(3):
        breaker.on_request_sent()
        breaker.on_request_end("failure", now)
    return breaker


def test_opens_after_failures_in_a_row_only() -> None:
    breaker = CircuitBreaker(failures=3, open_s=5.0)
    ends: list[Verdict] = ["failure", "failure", "success", "failure", "neutral", "failure"]
    for end in ends:
        breaker.on_request_sent()
        breaker.on_request_end(end, 0.0)
        assert breaker.state(0.0) == "closed"
        assert breaker.allows(0.0)
    breaker.on_request_end("failure", 0.0)
    assert breaker.state(0.0) == "open"
    assert not breaker.allows(0.0)
    assert breaker.times_opened == 1


def test_after_a_while_one_trial_decides() -> None:
    breaker = opened()
    assert not breaker.allows(4.9)
    assert breaker.allows(5.0)
    assert breaker.allows(5.0), "asking is not sending"
    assert breaker.state(5.0) == "half_open"
    breaker.on_request_sent()
    assert not breaker.allows(100.0), "one trial at a time"
    assert breaker.state(100.0) == "half_open"
    breaker.on_request_end("success", 6.0)
    assert breaker.state(6.0) == "closed"
    assert breaker.allows(6.0)


def test_a_failed_trial_opens_it_for_another_while() -> None:
    breaker = opened()
    breaker.on_request_sent()
    breaker.on_request_end("failure", 6.0)
    assert not breaker.allows(10.9)
    assert breaker.allows(11.0)
    assert breaker.times_opened == 2


def test_a_neutral_trial_makes_room_for_the_next() -> None:
    breaker = opened()
    breaker.on_request_sent()
    breaker.on_request_end("neutral", 6.0)
    assert breaker.state(6.0) == "half_open"
    assert breaker.allows(6.0)


def test_after_it_closed_it_takes_the_whole_row_again() -> None:
    breaker = opened()
    breaker.on_request_end("success", 6.0)
    breaker.on_request_end("failure", 7.0)
    breaker.on_request_end("failure", 7.0)
    assert breaker.allows(7.0)


def test_a_request_from_before_may_close_it() -> None:
    breaker = opened()
    breaker.on_request_end("success", 1.0)
    assert breaker.allows(1.0)


def test_reset_closes_it() -> None:
    breaker = opened()
    breaker.reset()
    assert breaker.allows(0.0)
    assert breaker.state(0.0) == "closed"


@pytest.mark.parametrize(
    ("status", "expected"),
    [(None, "failure"), (500, "failure"), (502, "failure"), (504, "failure"), (503, "neutral")]
    + [(status, "success") for status in (200, 400, 401, 404, 409, 413, 422, 429, 499)],
)
def test_what_counts(status: int | None, expected: str) -> None:
    assert judge_status(status) == expected


def test_whoever_asks_is_told_which_breakers_are_not_closed() -> None:
    not_closed: set[CircuitBreaker] = set()
    one, other = (CircuitBreaker(failures=1, open_s=5.0, not_closed=not_closed) for _ in range(2))
    one.on_request_end("failure", 0.0)
    other.on_request_end("failure", 0.0)
    assert not_closed == {one, other}
    assert one.allows(5.0)
    assert not_closed == {one, other}, "half open is not closed"
    one.on_request_end("success", 6.0)
    assert not_closed == {other}
    other.reset()
    assert not_closed == set()


def test_a_breaker_that_left_is_nobody_s_concern() -> None:
    not_closed: set[CircuitBreaker] = set()
    breaker = CircuitBreaker(failures=1, open_s=5.0, not_closed=not_closed)
    breaker.on_request_end("failure", 0.0)
    breaker.detach()
    assert not_closed == set()
    breaker.on_request_end("failure", 1.0)
    assert not_closed == set()
    assert breaker.state(1.0) == "open"
