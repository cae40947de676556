"""The breaker's states, as stories."""

from __future__ import annotations

import pytest

from router.fleet.breaker import CircuitBreaker, Verdict, judge_status


def opened(now: float = 0.0) -> CircuitBreaker:
    breaker = CircuitBreaker(failures=3, open_s=5.0)
    for _ in range(3):
        breaker.on_request_sent(now)
        breaker.on_request_end("failure", now)
    return breaker


def story(breaker: CircuitBreaker, *ends: tuple[float, str, Verdict]) -> CircuitBreaker:
    """The breaker after requests that ended at this time, of this client, in this way."""
    for at, client, verdict in ends:
        breaker.on_request_end(verdict, at, client)
    return breaker


def served(*clients: str, at: float = 0.0) -> CircuitBreaker:
    """A breaker of a target that has answered these clients."""
    breaker = CircuitBreaker(failures=3, open_s=5.0)
    return story(breaker, *((at, client, "success") for client in clients))


def test_opens_after_failures_in_a_row_only() -> None:
    breaker = CircuitBreaker(failures=3, open_s=5.0)
    ends: list[Verdict] = ["failure", "failure", "success", "failure", "neutral", "failure"]
    for end in ends:
        breaker.on_request_sent(0.0)
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
    breaker.on_request_sent(5.5)
    assert not breaker.allows(6.0), "one trial at a time"
    assert breaker.state(6.0) == "half_open"
    breaker.on_request_end("success", 6.0)
    assert breaker.state(6.0) == "closed"
    assert breaker.allows(6.0)


def test_a_trial_that_takes_long_does_not_keep_others_out_for_ever() -> None:
    breaker = opened()
    breaker.on_request_sent(5.0)
    assert not breaker.allows(9.9)
    assert breaker.allows(10.0)


def test_a_failed_trial_opens_it_for_another_while() -> None:
    breaker = opened()
    breaker.on_request_sent(5.0)
    breaker.on_request_end("failure", 6.0)
    assert not breaker.allows(10.9)
    assert breaker.allows(11.0)
    assert breaker.times_opened == 2


def test_a_neutral_trial_makes_room_for_the_next() -> None:
    breaker = opened()
    breaker.on_request_sent(5.0)
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
    + [(200, "success"), (302, "success"), (501, "success")]
    + [(status, "neutral") for status in (400, 401, 404, 409, 413, 422, 429, 499)],
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


# whose failures they are


def test_one_client_s_failures_do_not_open_it_while_others_are_served() -> None:
    breaker = served("good")
    for at in range(1, 1000):
        story(breaker, (at / 20, "bad", "failure"))
        assert breaker.state(at / 20) == "closed"


def test_failures_of_two_clients_open_it_however_many_were_served() -> None:
    breaker = served("good", "fine")
    story(breaker, (1.0, "good", "failure"), (1.0, "good", "failure"), (1.0, "fine", "failure"))
    assert breaker.state(1.0) == "open"


def test_the_failures_of_the_only_client_open_it() -> None:
    breaker = served("only")
    story(breaker, *((1.0, "only", "failure") for _ in range(3)))
    assert breaker.state(1.0) == "open"


def test_a_good_answer_speaks_for_the_target_for_a_minute() -> None:
    failures = [("bad", "failure")] * 3
    assert story(served("good"), *((60.0, *end) for end in failures)).state(60.0) == "closed"
    assert story(served("good"), *((60.1, *end) for end in failures)).state(60.1) == "open"


def test_the_bad_client_s_own_good_requests_do_not_displace_the_others() -> None:
    breaker = served("good", "bad")
    story(breaker, *((1.0, "bad", "success") for _ in range(5)), *((1.0, "bad", "failure") for _ in range(9)))
    assert breaker.state(1.0) == "closed"


def test_a_target_that_cannot_be_reached_is_nobody_s_fault() -> None:
    breaker = served("good")
    story(breaker, *((1.0, "bad", "unreachable") for _ in range(3)))
    assert breaker.state(1.0) == "open"
    assert breaker.unreachable
    story(breaker, (2.0, "good", "success"), *((2.0, name, "failure") for name in ("good", "bad", "bad")))
    assert breaker.state(2.0) == "open"
    assert not breaker.unreachable


def test_a_trial_of_the_bad_client_neither_reopens_it_nor_takes_the_next_one() -> None:
    breaker = served("good")
    story(breaker, *((1.0, name, "failure") for name in ("good", "bad", "bad")))
    assert not breaker.allows(5.9, "good")
    breaker.on_request_sent(6.0)
    story(breaker, (6.1, "bad", "failure"))
    assert breaker.state(6.1) == "half_open"
    assert breaker.times_opened == 1
    assert not breaker.allows(6.1, "bad")
    assert breaker.allows(6.1, "good")
    assert breaker.allows(11.1, "bad"), "its turn again after a while: it may be well by now"
    story(breaker, (6.2, "good", "success"))
    assert breaker.allows(6.2, "bad")


def test_failed_trials_of_two_clients_reopen_it() -> None:
    breaker = served("one", "other")
    story(breaker, *((1.0, name, "failure") for name in ("one", "other", "one")))
    story(breaker, (6.0, "one", "failure"), (6.1, "other", "failure"))
    assert breaker.state(6.1) == "open"
    assert breaker.times_opened == 2


def test_reset_forgets_who_was_served() -> None:
    breaker = served("good")
    breaker.reset()
    story(breaker, *((1.0, "bad", "failure") for _ in range(3)))
    assert breaker.state(1.0) == "open"


def test_failures_of_several_clients_elsewhere_open_it_and_a_good_answer_there_closes_it() -> None:
    breaker = CircuitBreaker(3, 10.0)
    breaker.on_request_end("success", 0.0, "bob")
    breaker.on_opened_elsewhere("ann", several=True, now=1.0)
    assert (breaker.state(1.0), breaker.state(11.0), breaker.times_opened) == ("open", "half_open", 0)
    breaker.on_closed_elsewhere()
    assert breaker.state(1.0) == "closed"


def test_failures_of_one_client_elsewhere_do_not_close_the_target_to_others_that_it_serves_here() -> None:
    breaker = CircuitBreaker(3, 10.0)
    breaker.on_request_end("success", 0.0, "bob")
    breaker.on_opened_elsewhere("ann", several=False, now=1.0)
    assert breaker.allows(1.0, "bob")
    breaker.on_request_end("failure", 2.0, "bob")  # one of another client is enough now
    assert breaker.state(2.0) == "open"
    nobody_else = CircuitBreaker(3, 10.0)
    nobody_else.on_opened_elsewhere("ann", several=False, now=1.0)
    assert (nobody_else.state(1.0), nobody_else.times_opened) == ("open", 0)


# -- stuck


def test_a_stuck_target_is_held_open_until_it_makes_progress() -> None:
    breaker = served("a")
    breaker.on_stuck(10.0)
    assert breaker.state(10.0) == "stuck"
    assert breaker.unreachable, "so it is the last choice in a panic"
    story(breaker, (11.0, "a", "success"), (11.0, "b", "failure"), (11.0, "c", "unreachable"))
    assert breaker.state(11.0) == "stuck", "what was sent before says nothing of now"
    assert not breaker.allows(14.9)
    breaker.on_progress(14.9)
    assert breaker.state(14.9) == "closed"
    assert breaker.times_opened == 1


def test_a_stuck_target_is_tried_after_twice_as_long_each_time() -> None:
    breaker = CircuitBreaker(failures=3, open_s=5.0)
    now, waits = 0.0, []
    for _ in range(6):
        breaker.on_stuck(now)
        breaker.on_stuck(now + 0.25)
        began = now
        while not breaker.allows(now):
            now += 0.5
        waits.append(now - began)
        breaker.on_request_sent(now)
        assert not breaker.allows(now + 1)
        breaker.on_request_end("neutral", now + 3)
        now += 3
    assert waits == [5, 10, 20, 40, 60, 60]
    breaker.on_request_sent(now + 60)
    breaker.on_request_end("success", now + 61)
    assert breaker.state(now + 61) == "closed"


def test_a_target_that_is_stuck_again_soon_waits_longer_than_one_long_well() -> None:
    breaker = CircuitBreaker(failures=3, open_s=5.0)
    for at, allowed_after in ((0.0, 5.0), (30.0, 10.0), (200.0, 5.0)):
        breaker.on_stuck(at)
        assert not breaker.allows(at + allowed_after - 0.1)
        assert breaker.allows(at + allowed_after)
        breaker.on_progress(at + 10.0)
    for _ in range(3):
        breaker.on_request_end("failure", 400.0, None)
    assert breaker.allows(405.0), "an ordinary failure waits as configured"
