"""What one arm shows by itself."""

from __future__ import annotations

from math import inf

import pytest

from router.scheduling.experiments.arm_metrics import ArmMetrics
from router.scheduling.experiments.unit import ExperimentUnit
from tests.router.scheduling.experiments.traffic import a_record, an_attempt, finish


def tally_of(*units: list[dict[str, object]]) -> ArmMetrics:
    tally, number = ArmMetrics(), 0
    for outcomes in units:
        unit = ExperimentUnit(0, 0.0)
        for outcome in outcomes:
            record = a_record(number, 0.0)
            unit.running[number] = record
            finish(record, **outcome)
            unit.end_request(record)
            tally.add_request(record)
            number += 1
        tally.add_unit(unit)
    return tally


def test_an_arm_that_did_nothing() -> None:
    tally = ArmMetrics()
    assert tally.estimate("ttft_p90", 0.05) == (None, None, None, 0)
    assert tally.estimate("hit_share", 0.05) == (None, None, None, 0)
    assert tally.imbalance(2) is None


def test_counts_are_of_requests_and_shares_of_units() -> None:
    tally = tally_of([{}, {}, {}], [{"status": 500}])
    assert (tally.units, tally.requests, tally.failed) == (2, 4, 1)
    assert tally.estimate("error_rate", 0.05).value == 0.5  # the mean of 0 and 1


def test_a_quantile_and_its_interval() -> None:
    tally = tally_of(*([{"ttft_ms": float(ms)}] for ms in range(10, 1010, 10)))
    estimate = tally.estimate("ttft_p50", 0.05)
    assert estimate.value == pytest.approx(500, rel=0.01)
    # 100 values that show a share s below the median are expected of a coin while 101 C(100, 100 s) / 2^100 > 0.05:
    # C(100, 34) = 5.8e26 gives 0.046, C(100, 35) = 1.1e27 gives 0.087; in between it turns, near 34.1
    assert estimate.low == pytest.approx(345, rel=0.02)
    assert estimate.high == pytest.approx(660, rel=0.02)
    assert estimate.units == 100


def test_the_upper_end_of_a_quantile_is_open_while_units_are_few() -> None:
    tally = tally_of(*([{"ttft_ms": 100.0}] for _ in range(10)))
    estimate = tally.estimate("ttft_p90", 0.01)
    assert estimate.value == pytest.approx(100, rel=0.01)
    assert estimate.high == inf
    assert tally_of(*([{"ttft_ms": 100.0}] for _ in range(2))).estimate("ttft_p90", 0.01).low == 0.0


def test_which_times_belong_to_which_metric() -> None:
    tally = tally_of([{"ttft_ms": 100.0, "duration_ms": 5000.0}])
    assert tally.quantile("ttft_p90") == pytest.approx(100, rel=0.01)
    assert tally.quantile("duration_p90") == pytest.approx(5000, rel=0.01)
    assert tally.quantile("hit_share") is None


def test_the_spread_is_over_all_targets_in_use() -> None:
    tally = ArmMetrics()
    for number, target in enumerate([0, 0, 0, 1]):
        record = finish(a_record(number, 0.0))
        record.attempts = [an_attempt(target)]
        tally.add_request(record)
    assert tally.imbalance(2) == 1.5  # 3 at the busiest, 2 on average
    assert tally.imbalance(4) == 3.0
