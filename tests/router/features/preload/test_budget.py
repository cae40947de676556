"""The budget of preloading: a share of the fleet's time, saved for a minute, and paid back where it was overdrawn."""

from __future__ import annotations

import pytest

from router.features.preload.budget import PreloadBudget


def test_a_share_of_the_time_of_all_engines_is_saved_for_a_minute() -> None:
    budget = PreloadBudget(0.02)
    assert budget.saved_ms(8, 100.0) == 0
    assert budget.saved_ms(8, 101.0) == pytest.approx(160)  # 8 engines x 2 % of a second
    assert budget.saved_ms(8, 1000.0) == pytest.approx(9600)
    assert budget.saved_ms(4, 1000.0) == pytest.approx(4800)  # half of them have left


def test_what_is_taken_in_advance_is_paid_back_first() -> None:
    budget = PreloadBudget(0.02)
    budget.saved_ms(1, 0.0)
    assert budget.saved_ms(1, 1.0) == pytest.approx(20)
    budget.charge(1020)
    assert budget.saved_ms(1, 1.0) == pytest.approx(-1000)
    assert budget.saved_ms(1, 50.0) == pytest.approx(-20)
    assert budget.saved_ms(1, 52.0) == pytest.approx(20)
