"""Who is live, and how near the expectation comes to a truth that a model knows."""

from __future__ import annotations

from heapq import heappop, heappush
from random import Random
from statistics import mean

import pytest

from router.request.admission.live_sessions import LiveSessions


def a_turn(live: LiveSessions, name: bytes, tokens: int, now: float) -> None:
    session = live.get_or_create(name)
    live.on_arrival(session)
    live.on_start(session, tokens)
    live.on_answer(session, tokens, tokens + 10, now)


def test_a_session_counts_with_its_prompt_while_it_runs_and_with_its_answer_after_that() -> None:
    live = LiveSessions(300.0)
    session = live.get_or_create(b"a")
    live.on_arrival(session)
    live.on_start(session, 100)
    assert live.expected_load() == (1, 100)
    live.on_answer(session, 100, 130, 0.0)
    assert live.expected_load() == (1, 130)
    assert live.expected_load().mean_tokens == 130


def test_a_turn_that_failed_leaves_what_was_before_it() -> None:
    live = LiveSessions(300.0)
    a_turn(live, b"a", 100, 0.0)
    session = live.get_or_create(b"a")
    live.on_arrival(session)
    live.on_start(session, 500)
    live.on_failure(session, 110, 1.0)
    assert live.expected_load() == (1, 110)
    other = live.get_or_create(b"b")
    live.on_start(other, 500)
    live.on_failure(other, 0, 1.0)
    assert (live.expected_load(), len(live)) == ((1, 110), 1), "it never had an answer: nobody knows it"


def test_a_prompt_of_unknown_length_counts_with_what_was_known() -> None:
    live = LiveSessions(300.0)
    a_turn(live, b"a", 100, 0.0)
    session = live.get_or_create(b"a")
    live.on_arrival(session)
    live.on_start(session, 0)
    assert live.expected_load() == (1, 110)


def test_one_that_is_silent_for_long_enough_is_forgotten() -> None:
    live = LiveSessions(300.0)
    a_turn(live, b"a", 100, 0.0)
    live.advance(299.9)
    assert len(live) == 1
    live.advance(300.0)
    assert (len(live), live.expected_load()) == (0, (0, 0))
    assert live.expected_load().mean_tokens == 0


@pytest.mark.parametrize(("pause_s", "turns"), [(10.0, 33), (60.0, 10), (2.0, 100)])
def test_sessions_that_end_unannounced_cost_little_capacity(pause_s: float, turns: int) -> None:
    """Sixty agents at once, in whose sessions one turn in `turns` is the last, unannounced; pauses
    are exponential, answers take 2 s. When a session ends, the next one begins. Sixty is the truth; beyond it, room is
    lost to those who will never come back, below it, too many are let in. The prior makes it a little more than that.
    """
    dice, live, now = Random(1), LiveSessions(300.0), 0.0
    coming: list[tuple[float, int, bool]] = []  # when, who, whether its request is over then
    for number in range(60):
        heappush(coming, (dice.random() * pause_s, number, False))
    names, counted = 60, []
    while now < 4000.0:
        now, number, ends = heappop(coming)
        live.advance(now)
        session = live.get_or_create(b"%d" % number)
        if not ends:
            live.on_arrival(session)
            live.on_start(session, 100)
            heappush(coming, (now + 2.0, number, True))
        else:
            live.on_answer(session, 100, 110, now)
            if dice.random() < 1 / turns:
                number, names = names, names + 1
                heappush(coming, (now, number, False))
            else:
                heappush(coming, (now + dice.expovariate(1 / pause_s), number, False))
            if now > 1000.0:
                counted.append(live.expected_load().sessions)
    assert 0.95 * 60 < mean(counted) < 1.15 * 60
