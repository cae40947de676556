"""Every preset has what was published of its model, whatever the seed."""

from __future__ import annotations

from dataclasses import replace
from statistics import quantiles

import pytest

from router.testbed.workloads import CODEX, PRESETS, PUBLISHED, SCALING
from router.testbed.workloads.statistics import compute_statistics

SEEDS = pytest.mark.parametrize("seed", [1, 2])


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
