"""Confidence sequences against their own formula, against a grid, and against coins that are thrown for long."""

from __future__ import annotations

from math import exp, log
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.scheduling.experiments.confidence_sequences import mean_bounds, share_bounds, surprise


def test_the_surprise_of_few_values_by_hand() -> None:
    # 2 of 3, held against a fair coin: integral of p^2 (1-p) = 2! 1! / 4! = 1/12; over (1/2)^3: 8/12
    assert exp(surprise(2, 3, 0.5)) == pytest.approx(8 / 12)
    # 3 of 3 against a coin of 1/4: (1/4) / (1/4)^3 = 16
    assert exp(surprise(3, 3, 0.25)) == pytest.approx(16)


def test_an_interval_by_hand() -> None:
    # all of 3: 1/4 / m^3 < 20  <=>  m > (1/80)^(1/3)
    low, high = mean_bounds(3, 3, 0.05)
    assert low == pytest.approx((1 / 80) ** (1 / 3))
    assert high == 1.0


def test_nothing_seen_is_nothing_known() -> None:
    assert mean_bounds(0, 0, 0.05) == (0.0, 1.0)
    assert share_bounds(0.1, 0, 0.05) == (0.0, 1.0)


@given(st.integers(1, 5000), st.floats(0, 1), st.sampled_from([0.05, 0.01, 1e-4]))
def test_the_ends_are_where_the_surprise_reaches_one_in_alpha(count: int, share: float, alpha: float) -> None:
    low, high = mean_bounds(share * count, count, alpha)
    assert 0 <= low <= share <= high <= 1
    for end, inside in ((low, min(low * 1.01 + 1e-6, share)), (high, max(high * 0.99 - 1e-6, share))):
        if 1e-6 < end < 1 - 1e-6:
            assert surprise(share * count, count, end) == pytest.approx(-log(alpha), abs=1e-3)
        if 0 < inside < 1:
            assert surprise(share * count, count, inside) <= -log(alpha)


@given(st.integers(1, 5000), st.floats(0.01, 0.99), st.floats(0, 1))
def test_both_bounds_are_two_views_of_one_set(count: int, mean: float, shown: float) -> None:
    """A shown mean may come of `mean` just where `mean` is in the interval of what was shown."""
    low, high = share_bounds(mean, count, 0.05)
    inner, outer = mean_bounds(shown * count, count, 0.05)
    if abs(surprise(shown * count, count, mean) + log(0.05)) > 1e-6:
        assert (low <= shown <= high) == (inner <= mean <= outer)


def test_coins_leave_their_interval_seldom_however_often_one_looks() -> None:
    dice, left = Random(1), 0
    for _ in range(300):
        total = 0
        for count in range(1, 301):
            total += dice.random() < 0.1
            if surprise(total, count, 0.1) >= log(20):
                left += 1
                break
    assert 0 < left <= 300 * 0.05
