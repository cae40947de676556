"""Shared beginnings and Poisson times: what changes with a rate or a scale, and what stays."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from router.testbed.workloads import GROUPS, TOOLS

SMALL = replace(TOOLS, requests=400)


def test_a_workload_follows_from_its_seed() -> None:
    assert SMALL.workload(1) == SMALL.workload(1)
    assert SMALL.workload(1).sessions != SMALL.workload(2).sessions
    assert not SMALL.workload(1).is_closed


def test_another_rate_only_moves_requests() -> None:
    slow, fast = (replace(SMALL, per_s=rate).workload(3).sessions for rate in (1.0, 4.0))
    for one, other in zip(slow, fast, strict=True):
        assert other.start_s == pytest.approx(one.start_s / 4)
        assert other.turns == one.turns


def test_scaling_keeps_choices_and_times() -> None:
    whole, half = SMALL.workload(3).sessions, SMALL.scale(tokens=0.5).workload(3).sessions
    for one, other in zip(whole, half, strict=True):
        assert other.start_s == one.start_s
        assert [span.source for span in other.turns[0].fresh] == [span.source for span in one.turns[0].fresh]
        assert other.turns[0].prompt_tokens == pytest.approx(one.turns[0].prompt_tokens / 2, abs=2)


def test_more_requests_begin_with_the_same_ones() -> None:
    assert list(replace(SMALL, requests=50).workload(5).sessions) == list(SMALL.workload(5).sessions[:50])


def test_every_group_is_asked_for_alike() -> None:
    asked = Counter(session.turns[0].fresh[0].source for session in GROUPS.workload(1).sessions)
    assert len(asked) == 150
    # 6,000 / 150 = 40 each, sd sqrt(40) = 6.3: of 150 none further off than 4 sd
    assert all(abs(count - 40) < 26 for count in asked.values())


def test_the_first_tool_is_the_hottest() -> None:
    fresh = [session.turns[0].fresh for session in TOOLS.workload(1).sessions]
    asked = sorted(Counter(spans[0].source for spans in fresh if len(spans) == 2).values(), reverse=True)
    assert len(asked) == 12
    # the harmonic sum to 12 is 3.103: the first has 0.8 x 23,608 / 3.103 = 6,086, the twelfth a twelfth of that
    assert asked[0] == pytest.approx(6_086, rel=0.05)
    assert asked[-1] == pytest.approx(507, rel=0.2)
    assert sum(asked) == pytest.approx(0.8 * 23_608, rel=0.02)


def test_nobody_shares_what_is_its_own() -> None:
    own = [session.turns[0].fresh[-1].source for session in SMALL.workload(1).sessions]
    assert len(set(own)) == len(own)
