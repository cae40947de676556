"""Distributions of presets."""

from __future__ import annotations

import pytest

from router.lab.rng import Rng
from router.lab.workloads.distributions import LogNormal, Quantiles, draw_gap_s, draw_uniform


def test_quantiles_are_met_and_even_between_them() -> None:
    points = Quantiles(((0.0, 1.0), (0.5, 100.0), (1.0, 1_000.0)))
    rng = Rng(1)
    drawn = [points.draw(rng) for _ in range(20_000)]
    assert min(drawn) >= 1
    assert max(drawn) <= 1_000
    for value, share in ((10, 0.25), (100, 0.5), (100 * 10**0.5, 0.75)):
        assert sum(one < value for one in drawn) / len(drawn) == pytest.approx(share, abs=0.012)  # 3.4 sd
    doubled = points.times(2)
    assert doubled.draw(Rng(5)) == pytest.approx(2 * points.draw(Rng(5)))


def test_a_log_normal_of_a_mean_has_that_mean() -> None:
    dice, wanted = Rng(7), LogNormal.of_mean(1000.0, 0.5)
    drawn = [wanted.draw(dice) for _ in range(20_000)]
    # sd of the mean: 1000 x sqrt(exp(0.25) - 1) / sqrt(20,000) = 3.8
    assert sum(drawn) / len(drawn) == pytest.approx(1000.0, abs=15)


def test_sigma_zero_is_always_the_median_and_tokens_are_at_least_one() -> None:
    assert [LogNormal(900, 0).tokens(Rng(seed)) for seed in range(5)] == [900] * 5
    assert LogNormal(0, 0).tokens(Rng(1)) == 1
    assert LogNormal(0, 0).draw(Rng(1)) == 0


def test_gaps_are_exponential() -> None:
    dice = Rng(3)
    gaps = [draw_gap_s(dice, 4.0) for _ in range(20_000)]
    # mean 1 / 4, as is the standard deviation: sd of the mean 0.25 / sqrt(20,000) = 0.0018
    assert sum(gaps) / len(gaps) == pytest.approx(0.25, abs=0.007)
    # P(gap > 2 means) = e^-2 = 0.1353, sd sqrt(p (1 - p) / 20,000) = 0.0024
    assert sum(gap > 0.5 for gap in gaps) / len(gaps) == pytest.approx(0.1353, abs=0.01)


def test_uniform_is_never_an_end() -> None:
    class Least(Rng):
        def bits(self) -> int:
            return 0

    class Most(Rng):
        def bits(self) -> int:
            return (1 << 64) - 1

    assert 0 < draw_uniform(Least(0)) < 1e-15
    assert 1 - 1e-15 < draw_uniform(Most(0)) < 1
