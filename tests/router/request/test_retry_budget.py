"""The token bucket of retries."""

from __future__ import annotations

import pytest

from router.config.sections.listeners import LimitsConfig
from router.request.retry_budget import RetryBudget


def test_the_burst_is_there_from_the_start_and_ends():
    budget = RetryBudget(ratio=0.2, burst=3)
    assert [budget.try_withdraw() for _ in range(4)] == [True, True, True, False]


def test_requests_pay_in_their_share():
    """0.1 per request: ten requests earn one retry, nine do not."""
    budget = RetryBudget(ratio=0.1, burst=1)
    assert budget.try_withdraw()
    for _ in range(9):
        budget.deposit()
    assert not budget.try_withdraw()
    budget.deposit()
    assert budget.try_withdraw()


def test_no_more_than_the_burst_is_saved_up():
    budget = RetryBudget(ratio=1.0, burst=2)
    for _ in range(100):
        budget.deposit()
    assert [budget.try_withdraw() for _ in range(3)] == [True, True, False]


def test_without_a_ratio_only_the_burst_is_ever_given():
    budget = RetryBudget(ratio=0.0, burst=1)
    assert budget.try_withdraw()
    for _ in range(1000):
        budget.deposit()
    assert not budget.try_withdraw()


@pytest.mark.parametrize("ratio", [0.0, 0.2, 1.0])
def test_without_a_burst_there_are_no_retries(ratio: float) -> None:
    assert LimitsConfig(retry_burst=0).retry_burst == 0
    budget = RetryBudget(ratio, burst=0)
    for _ in range(1000):
        budget.deposit()
        assert not budget.try_withdraw()


def test_a_failing_fleet_gets_ratio_times_its_load():
    """Every request would be retried for ever: 1000 requests, 200 + 10 retries."""
    budget = RetryBudget(ratio=0.2, burst=10)
    retries = 0
    for _ in range(1000):
        budget.deposit()
        while budget.try_withdraw():
            retries += 1
    assert 205 <= retries <= 210
