"""Sessions of agents: the same from the same seed, growing turn by turn, scaled without losing their shape."""

from __future__ import annotations

from dataclasses import replace

import pytest

from router.testbed.workloads import CODEX, SCALING
from router.testbed.workloads.statistics import compute_statistics

SMALL = CODEX.scale(sessions=5 / 610, tokens=0.1, turns=0.3)


def test_a_workload_follows_from_its_seed() -> None:
    assert SMALL.workload(1) == SMALL.workload(1)
    assert SMALL.workload(1).sessions != SMALL.workload(2).sessions


def test_a_turn_keeps_all_but_the_tail_of_what_was_said() -> None:
    for session in SMALL.workload(4).sessions:
        first, *later = session.turns
        assert first.context_tokens == 0
        assert first.fresh[0].tokens == SMALL.shared_tokens
        for before, turn in zip(session.turns, later, strict=False):
            context = before.prompt_tokens + before.output_tokens
            assert turn.context_tokens == max(SMALL.shared_tokens, context - SMALL.rendered_tokens)
            assert turn.prompt_tokens > context  # it grows by the answer and something new


def test_nothing_rendered_anew_is_all_kept() -> None:
    (session, *_) = SCALING.workload(1).sessions
    assert [turn.context_tokens for turn in session.turns[:3]] == [0, 30_900, 30_900 + 2_948]
    assert [turn.prompt_tokens for turn in session.turns[:3]] == [30_000, 32_948, 35_896]
    assert all(turn.think_s == 0 for turn in session.turns)


def test_scaling_keeps_the_shape() -> None:
    one = CODEX.scale(sessions=1 / 610)
    (whole,), (tenth,) = one.workload(5).sessions, one.scale(tokens=0.1, think=0.5).workload(5).sessions
    assert len(whole.turns) == len(tenth.turns)
    for large, small in zip(whole.turns, tenth.turns, strict=True):
        assert small.prompt_tokens == pytest.approx(large.prompt_tokens / 10, rel=0.02)
        assert small.think_s == pytest.approx(large.think_s / 2)


def test_a_session_ends_before_the_cap() -> None:
    capped = replace(CODEX, sessions=50, cap_tokens=40_000)
    real = compute_statistics(capped.workload(1), 16)
    assert 30_000 < real.longest_tokens <= 40_000
    assert real.median_turns < 20
