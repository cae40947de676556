"""Limits: how fast they act, on what, and that they leave the rest alone."""

from __future__ import annotations

from functools import partial
from random import Random

import pytest

from router.scheduling.experiments.limits import ALARM, GRACE_S, ArmLimit, LimitedRequest, judge_failure, judge_ttft
from tests.router.scheduling.experiments.traffic import a_record, finish

SLOW = partial(judge_ttft, most_ms=1000.0)


def watched(number: int, arrived_s: float, over: bool = True, **outcome: object) -> LimitedRequest:
    request = LimitedRequest(0, None, a_record(number, arrived_s))
    if over:
        finish(request.record, **outcome)
        request.ended = True
    return request


def seconds_until_alarm(limit: ArmLimit, share_bad: float, per_s: int, at_most: int, seed: int = 1) -> int | None:
    dice = Random(seed)
    for second in range(at_most):
        for i in range(per_s):
            bad = dice.random() < share_bad
            limit.add(watched(second * per_s + i, float(second), status=500 if bad else 200))
        if limit.poll(second + 1.0):
            return second + 1
    return None


@pytest.mark.parametrize(("most", "seconds"), [(0.1, 8), (0.05, 6), (0.01, 4)])
@pytest.mark.parametrize("per_s", [1, 40])
def test_all_bad_is_seen_within_seconds(most: float, seconds: int, per_s: int) -> None:
    # The boldest of 7 bets, 0.9, multiplies by 1 + 0.9 * 9 = 9.1 a second at 10 %: it brings the mean to
    # (9.1 + ... + 9.1^7) / 7 = 830,000 after 7 s, which the others make 845,000, and beyond 1e6 after 8.
    assert seconds_until_alarm(ArmLimit(most, judge_failure), 1.0, per_s, 20) == seconds


def test_twice_what_is_allowed_is_seen_within_minutes() -> None:
    found = [seconds_until_alarm(ArmLimit(0.05, judge_failure), 0.1, 10, 1000, seed) for seed in range(20)]
    assert all(seconds is not None and seconds < 300 for seconds in found)


def test_below_the_bound_there_is_no_alarm() -> None:
    assert all(seconds_until_alarm(ArmLimit(0.05, judge_failure), 0.04, 10, 1000, seed) is None for seed in range(10))


def test_what_fails_together_is_one_piece_of_news() -> None:
    limit = ArmLimit(0.05, judge_failure)
    for i in range(500):
        limit.add(watched(i, 7.5, status=500))
    assert not limit.poll(9.0)
    assert (limit.requests, limit.bad) == (500, 500)
    assert limit.evidence < ALARM / 1e4


def test_quick_failures_wait_for_the_answers_beside_them() -> None:
    """5 % fail at once, the others take 8 s: counted as they become known, all would be failures at first."""
    limit, good = ArmLimit(0.1, judge_failure), []
    for second in range(8):
        for i in range(20):
            request = watched(second * 20 + i, float(second), over=i == 3, status=500)
            limit.add(request)
            good += [] if request.ended else [request]
        assert not limit.poll(second + 0.9)
    for request in good:
        finish(request.record)
        request.ended = True
    assert not limit.poll(9.0)
    assert (limit.requests, limit.bad) == (160, 8)


def test_slow_is_known_while_one_waits() -> None:
    request = watched(1, 10.0, over=False)
    assert SLOW(request, 10.9) == "wait"
    assert SLOW(request, 11.1) == "bad"
    request.record.ttft_ms = 950.0
    assert SLOW(request, 11.1) == "good", "and what came in time is good, though it runs on"


@pytest.mark.parametrize(
    ("outcome", "judgement"),
    [
        ({"ttft_ms": 1001.0}, "bad"),
        ({"ttft_ms": 999.0}, "good"),
        ({"status": 500}, "bad"),
        ({"status": 404, "ttft_ms": 5000.0}, "skip"),
        ({"status": None, "ttft_ms": None, "end": "client_gone", "duration_ms": 900.0}, "skip"),
        ({"status": None, "ttft_ms": None, "end": "client_gone", "duration_ms": 1100.0}, "bad"),
    ],
)
def test_what_is_slow_when_over(outcome: dict[str, object], judgement: str) -> None:
    assert SLOW(watched(1, 0.0, **outcome), 60.0) == judgement


@pytest.mark.parametrize(
    ("outcome", "judgement"),
    [
        ({}, "good"),
        ({"end": "broken"}, "bad"),
        ({"status": 404}, "skip"),
        ({"status": None, "ttft_ms": None, "end": "client_gone"}, "skip"),
    ],
)
def test_what_fails_when_over(outcome: dict[str, object], judgement: str) -> None:
    assert judge_failure(watched(1, 0.0, **outcome), 60.0) == judgement


def test_what_runs_is_good_until_it_breaks() -> None:
    limit, request = ArmLimit(0.1, judge_failure), watched(1, 0.0, over=False)
    limit.add(request)
    limit.poll(GRACE_S)
    assert not request.counted_good
    limit.poll(GRACE_S + 0.1)
    assert request.counted_good
    assert (limit.requests, limit.bad) == (1, 0)
    limit.add_late_failure()
    limit.poll(GRACE_S + 1)
    assert (limit.requests, limit.bad) == (2, 1)
