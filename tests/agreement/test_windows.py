"""Stretches of a trace: where they begin, how fast they are, and that going round brings other texts."""

from __future__ import annotations

import pytest

from router.lab.workloads.model import Session, Span, Turn, Workload
from tests.agreement.windows import stretch


def trace_of(*starts_s: float) -> Workload:
    sessions = tuple(
        Session(number, at_s, (Turn(0, (Span(number, 100 + number),), 10, 0.0),))
        for number, at_s in enumerate(starts_s)
    )
    return Workload("trace", 0, sessions, is_closed=False)


def test_a_stretch_begins_at_its_first_request_and_runs_as_fast_as_wanted() -> None:
    found = stretch(trace_of(0, 10, 30), first=1, requests=2, faster=2.0, spread_s=0.0, seed=1)
    assert [session.start_s for session in found.sessions] == [0.0, 10.0]  # 20 s apart, twice as fast
    assert [session.turns[0].prompt_tokens for session in found.sessions] == [101, 102]
    assert [session.number for session in found.sessions] == [0, 1]


def test_the_second_round_follows_the_first_with_texts_of_its_own() -> None:
    found = stretch(trace_of(0, 10, 30), first=0, requests=5, faster=1.0, spread_s=3.0, seed=1)
    again = found.sessions[3]
    assert again.turns[0].prompt_tokens == 100
    assert again.turns[0].fresh[0].source != 0
    assert again.start_s == pytest.approx(33, abs=6)  # 30 s and the spread of the first round


def test_rounded_times_are_spread_within_what_they_were_rounded_to() -> None:
    found = stretch(trace_of(*[0.0] * 50), first=0, requests=50, faster=1.0, spread_s=3.0, seed=1)
    starts = [session.start_s for session in found.sessions]
    assert starts == sorted(starts)
    assert len(set(starts)) == 50
    assert 2.0 < starts[-1] <= 3.0


def test_a_seed_is_a_stretch() -> None:
    one, same, other = (stretch(trace_of(0, 1, 2), 0, 3, 1.0, 3.0, seed) for seed in (1, 1, 2))
    assert one == same
    assert one != other
