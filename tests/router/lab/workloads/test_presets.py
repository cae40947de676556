"""Presets: their distributions, what they generate, and their statistics beside the published ones."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import inf
from statistics import mean, quantiles

import pytest

from router.lab.workloads.presets import (
    CLAUDE,
    CODEX,
    GROUPS,
    PRESETS,
    PUBLISHED,
    SCALING,
    TOOLS,
)
from router.lab.workloads.statistics import compute_statistics

SEEDS = pytest.mark.parametrize("seed", [1, 2])
SMALL = CODEX.scale(sessions=5 / 610, tokens=0.1, turns=0.3)
SOME = 107  # sessions of `claude`
SMALL_CLAUDE = CLAUDE.scale(sessions=6 / 642, tokens=0.1)
SMALL_OPEN = replace(TOOLS, requests=400)


@SEEDS
def test_codex_has_its_published_statistics(seed: int) -> None:
    """Tolerances are what 610 sessions leave to chance, and the word "about" in the source."""
    workload = PRESETS["codex"].workload(seed)
    real = compute_statistics(workload, block_tokens=16)
    assert workload.is_closed
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
    assert compute_statistics(whole, 16).ideal_share == pytest.approx(0.96, abs=0.006)


@SEEDS
def test_claude_has_its_published_statistics(seed: int) -> None:
    """A sixth of the sessions, in two seconds; tolerances are what that leaves to chance."""
    workload = replace(CLAUDE, sessions=SOME).workload(seed)
    real = compute_statistics(workload, block_tokens=16)
    assert workload.is_closed
    assert real.under_1_s == pytest.approx(0.8646, abs=0.008)
    assert real.under_10_s == pytest.approx(0.9512, abs=0.005)
    assert real.turns == pytest.approx(112_176 * SOME / 642, rel=0.12)
    assert real.mean_output_tokens == pytest.approx(523, rel=0.04)
    first = [session.turns[0].prompt_tokens for session in workload.sessions]
    last = [session.turns[-1].prompt_tokens for session in workload.sessions]
    assert quantiles(first, n=4)[:2] == pytest.approx([16_512, 20_160], rel=0.1)
    assert quantiles(last, n=4) == pytest.approx([65_600, 115_008, 149_632], rel=0.2)
    assert real.longest_tokens <= 160_000
    assert 0.936 <= real.ideal_share <= 0.969  # between the mean and the median of the conversations


@SEEDS
def test_sub_agents_of_claude_are_as_in_the_example(seed: int) -> None:
    workload = replace(CLAUDE, sessions=SOME).workload(seed)
    subs = [one for session in workload.sessions for one in session.sub_agents]
    assert len(subs) / SOME == pytest.approx(6.3, rel=0.12)
    assert mean(len(one.turns) for one in subs) == pytest.approx(21, rel=0.03)
    assert mean(one.turns[0].prompt_tokens for one in subs) == pytest.approx(18_530, rel=0.01)
    assert mean(one.turns[-1].prompt_tokens for one in subs) == pytest.approx(79_500, rel=0.1)
    groups = Counter((n, one.after_turn) for n, session in enumerate(workload.sessions) for one in session.sub_agents)
    assert Counter(groups.values()).most_common(1)[0][0] == 4  # at once


def test_sub_agents_begin_as_their_session_does_and_with_an_answer_that_it_goes_on_from() -> None:
    workload = replace(CLAUDE, sessions=40).workload(1)
    (system,) = {session.turns[0].fresh[0] for session in workload.sessions}
    assert system.tokens == 15_330
    for session in workload.sessions:
        for one in session.sub_agents:
            assert one.turns[0].fresh[0] == system
            assert one.after_turn <= max(0, len(session.turns) - 2)
            assert session.turns[one.after_turn].tool_call
    numbers = [one.number for one in workload.all_sessions()]
    assert len(set(numbers)) == len(numbers)


def test_answers_that_a_person_reads_end_in_no_tool_call() -> None:
    workload = replace(CLAUDE, sessions=40).workload(1)
    for session in workload.all_sessions():
        begins = {one.after_turn for one in session.sub_agents}
        for number, turn in enumerate(session.turns):
            wait_s = inf if number + 1 == len(session.turns) else session.turns[number + 1].think_s
            assert turn.tool_call is (wait_s < 10 or number in begins)
    turns = [turn for session in workload.all_sessions() for turn in session.turns]
    assert mean(turn.tool_call or False for turn in turns) == pytest.approx(0.91, abs=0.02)


def test_a_scaled_preset_keeps_who_waits_for_whom() -> None:
    small, whole = (preset.workload(1) for preset in (SMALL_CLAUDE, replace(CLAUDE, sessions=6)))
    assert [len(one.sub_agents) for one in small.sessions] == [len(one.sub_agents) for one in whole.sessions]
    slow = SMALL_CLAUDE.scale(think=3.0).workload(1)
    assert [[turn.tool_call for turn in one.turns] for one in slow.all_sessions()] == [
        [turn.tool_call for turn in one.turns] for one in small.all_sessions()
    ]
    for one, other in zip(small.all_sessions(), slow.all_sessions(), strict=True):
        assert [turn.think_s for turn in other.turns] == pytest.approx([3 * turn.think_s for turn in one.turns])


@SEEDS
def test_scaling_has_its_published_statistics(seed: int) -> None:
    workload = PRESETS["scaling"].workload(seed)
    real = compute_statistics(workload, block_tokens=16)
    assert workload.is_closed
    assert (real.sessions, real.median_turns, real.turns) == (75, 30, 75 * 30)
    assert (real.mean_first_tokens, real.mean_growth_tokens, real.mean_output_tokens) == (30_000, 2_948, 900)
    assert real.median_last_tokens == 30_000 + 29 * 2_948
    # cold: 10,000 + 29 x 2,048 + 20,000 / 75 = 69,659 of 2,182,380, and 7.5 of each of 30 turns for whole blocks
    assert real.ideal_share == pytest.approx(1 - 69_884 / 2_182_380, abs=0.0005)
    assert real.ideal_share > 0.95


def test_scaling_to_sixty_gpus_finds_as_much() -> None:
    assert compute_statistics(replace(SCALING, sessions=375).workload(1), 16).ideal_share > 0.968


@SEEDS
def test_groups_has_its_published_statistics(seed: int) -> None:
    workload = PRESETS["groups"].workload(seed)
    real = compute_statistics(workload, block_tokens=16)
    assert not workload.is_closed
    assert (real.mean_input_tokens, real.p90_input_tokens, real.mean_output_tokens) == (7_200, 7_200, 1_000)
    assert real.per_s == pytest.approx(20, rel=0.04)  # sd of 6,000 gaps: 1.3 %
    # 6,000 of 7,200, but for the first request of each of 150 groups: 6,000 x 5,850 / (7,200 x 6,000)
    assert real.ideal_share == 0.8125


@SEEDS
def test_tools_has_its_published_statistics(seed: int) -> None:
    workload = PRESETS["tools"].workload(seed)
    real = compute_statistics(workload, block_tokens=512)
    assert not workload.is_closed
    assert real.turns == 23_608
    assert real.per_s == pytest.approx(6.56, rel=0.02)
    assert real.mean_input_tokens == pytest.approx(8_596, rel=0.02)
    assert real.mean_output_tokens == pytest.approx(182, rel=0.02)
    assert 0.56 <= real.ideal_share <= 0.59
    assert real.longest_tokens < 200_000


def test_published_statistics_are_of_presets() -> None:
    assert PUBLISHED.keys() == PRESETS.keys()
    assert all(preset.name == name for name, preset in PRESETS.items())


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


def test_an_open_workload_follows_from_its_seed() -> None:
    assert SMALL_OPEN.workload(1) == SMALL_OPEN.workload(1)
    assert SMALL_OPEN.workload(1).sessions != SMALL_OPEN.workload(2).sessions
    assert not SMALL_OPEN.workload(1).is_closed


def test_another_rate_only_moves_requests() -> None:
    slow, fast = (replace(SMALL_OPEN, per_s=rate).workload(3).sessions for rate in (1.0, 4.0))
    for one, other in zip(slow, fast, strict=True):
        assert other.start_s == pytest.approx(one.start_s / 4)
        assert other.turns == one.turns


def test_scaling_keeps_choices_and_times() -> None:
    whole, half = SMALL_OPEN.workload(3).sessions, SMALL_OPEN.scale(tokens=0.5).workload(3).sessions
    for one, other in zip(whole, half, strict=True):
        assert other.start_s == one.start_s
        assert [span.source for span in other.turns[0].fresh] == [span.source for span in one.turns[0].fresh]
        assert other.turns[0].prompt_tokens == pytest.approx(one.turns[0].prompt_tokens / 2, abs=2)


def test_more_requests_begin_with_the_same_ones() -> None:
    assert list(replace(SMALL_OPEN, requests=50).workload(5).sessions) == list(SMALL_OPEN.workload(5).sessions[:50])


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
    own = [session.turns[0].fresh[-1].source for session in SMALL_OPEN.workload(1).sessions]
    assert len(set(own)) == len(own)


def test_think_time_is_fitted_by_median_and_p99() -> None:
    # ln(81.4 / 5.2) = ln 15.654 = 2.7507; / 2.3263 = 1.1824
    assert CODEX.think_s.median == 5.2
    assert CODEX.think_s.sigma == pytest.approx(1.1824, abs=1e-4)
