"""Workloads: the same from the same seed, in the published shapes, and texts that share what their spans share."""

from __future__ import annotations

from dataclasses import replace
from statistics import quantiles

import pytest

from router.sim.dice import Dice
from router.sim.ideal import statistics
from router.sim.workloads import CODEX, PRESETS, LogNormal, Span, token_ids

SMALL = CODEX.scaled(sessions=5 / 610, tokens=0.1, turns=0.3)


def test_a_workload_follows_from_its_seed() -> None:
    assert SMALL.workload(1) == SMALL.workload(1)
    assert SMALL.workload(1).sessions != SMALL.workload(2).sessions


@pytest.mark.parametrize("seed", [1, 2])
def test_codex_has_its_published_statistics(seed: int) -> None:
    """Tolerances are what 610 sessions leave to chance, and the word "about" in the source."""
    workload = PRESETS["codex"].workload(seed)
    real = statistics(workload, block_tokens=16)
    assert real.sessions == 610
    assert real.median_turns == pytest.approx(33, abs=1)
    assert real.mean_first_tokens == pytest.approx(12_000, rel=0.03)
    assert real.mean_growth_tokens == pytest.approx(2_270, rel=0.03)
    assert real.median_last_tokens == pytest.approx(80_000, rel=0.08)  # 12,000 + 32 x 2,270 = 84,640
    assert real.longest_tokens <= 200_000
    assert real.input_per_output == pytest.approx(131, rel=0.03)
    assert real.shared_share == pytest.approx(0.017, abs=0.001)
    assert real.ideal_share == pytest.approx(0.942, abs=0.003)
    assert real.median_think_s == pytest.approx(5.2, rel=0.03)
    think_s = [turn.think_s for session in workload.sessions for turn in session.turns]
    assert quantiles(think_s, n=100)[98] == pytest.approx(81.4, rel=0.1)


def test_without_the_rendered_tail_the_ideal_is_96() -> None:
    whole = replace(CODEX, sessions=100, rendered_tokens=0).workload(1)
    assert statistics(whole, 16).ideal_share == pytest.approx(0.96, abs=0.006)


def test_think_time_is_fitted_by_median_and_p99() -> None:
    # ln(81.4 / 5.2) = ln 15.654 = 2.7507; / 2.3263 = 1.1824
    assert CODEX.think_s.median == 5.2
    assert CODEX.think_s.sigma == pytest.approx(1.1824, abs=1e-4)


def test_a_log_normal_of_a_mean_has_that_mean() -> None:
    dice, wanted = Dice(7), LogNormal.of_mean(1000.0, 0.5)
    drawn = [wanted.draw(dice) for _ in range(20_000)]
    # sd of the mean: 1000 x sqrt(exp(0.25) - 1) / sqrt(20,000) = 3.8
    assert sum(drawn) / len(drawn) == pytest.approx(1000.0, abs=15)


def test_a_turn_keeps_all_but_the_tail_of_what_was_said() -> None:
    for session in SMALL.workload(4).sessions:
        first, *later = session.turns
        assert first.kept_tokens == 0
        assert first.fresh[0].tokens == SMALL.shared_tokens
        for before, turn in zip(session.turns, later, strict=False):
            context = before.prompt_tokens + before.output_tokens
            assert turn.kept_tokens == max(SMALL.shared_tokens, context - SMALL.rendered_tokens)
            assert turn.prompt_tokens > context  # it grows by the answer and something new


def test_scaling_keeps_the_shape() -> None:
    one = CODEX.scaled(sessions=1 / 610)
    (whole,), (tenth,) = one.workload(5).sessions, one.scaled(tokens=0.1, think=0.5).workload(5).sessions
    assert len(whole.turns) == len(tenth.turns)
    for large, small in zip(whole.turns, tenth.turns, strict=True):
        assert small.prompt_tokens == pytest.approx(large.prompt_tokens / 10, rel=0.02)
        assert small.think_s == pytest.approx(large.think_s / 2)


def test_a_session_ends_before_the_cap() -> None:
    capped = replace(CODEX, sessions=50, cap_tokens=40_000)
    real = statistics(capped.workload(1), 16)
    assert 30_000 < real.longest_tokens <= 40_000
    assert real.median_turns < 20


def test_ids_of_a_span_begin_any_longer_one() -> None:
    words = range(100, 4000)
    long = token_ids(Span(9, 500), 1, words)
    assert token_ids(Span(9, 200), 1, words) == long[:200]
    assert all(token in words for token in long)
    assert token_ids(Span(10, 500), 1, words) != long
    assert token_ids(Span(9, 500), 2, words) != long
    assert len(set(long)) > 400  # of 3,900 words: about 470 different ones in 500 draws
