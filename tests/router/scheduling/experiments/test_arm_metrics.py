"""Metrics of an arm: histograms, imbalance, estimates with their intervals."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.scheduling.experiments.arm_metrics import FLOOR_MS, RATIO, ArmMetrics, Imbalance, LatencyHistogram
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


times = st.floats(0.2, 1e7) | st.just(inf)


def test_no_units_no_quantile() -> None:
    assert LatencyHistogram().quantile(0.5) is None


def test_units_weigh_the_same_whatever_they_ask() -> None:
    waits = LatencyHistogram()
    waits.add([100.0] * 99)
    waits.add([1000.0])
    waits.add([1000.0])
    assert waits.quantile(0.5) == pytest.approx(1000, rel=0.01)  # of requests it would be 100
    assert waits.quantile(0.3) == pytest.approx(100, rel=0.01)


def test_what_failed_is_slower_than_anything() -> None:
    waits = LatencyHistogram()
    waits.add([50.0, inf])
    assert waits.quantile(0.5) == pytest.approx(50, rel=0.01)
    assert waits.quantile(0.51) == inf


def test_who_left_counts_with_the_time_that_he_stayed() -> None:
    waits = LatencyHistogram()
    waits.add([-300.0])
    assert waits.quantile(0.9) == pytest.approx(300, rel=0.01)


def test_what_is_shorter_or_longer_than_any_bucket() -> None:
    waits = LatencyHistogram()
    waits.add([0.0])
    assert waits.quantile(1.0) == FLOOR_MS
    waits.add([1e12])
    assert waits.quantile(1.0) == pytest.approx(FLOOR_MS * RATIO**2047)


@given(st.lists(st.lists(times, min_size=1, max_size=5), min_size=1, max_size=20), st.floats(0.01, 1))
def test_quantiles_are_a_bucket_off_at_most(units: list[list[float]], share: float) -> None:
    waits = LatencyHistogram()
    for unit in units:
        waits.add(unit)
    weighted = sorted((wait, 1 / len(unit)) for unit in units for wait in unit)
    below, exact = 0.0, inf
    for wait, weight in weighted:
        below += weight
        if below >= share * len(units) - 1e-9:
            exact = wait
            break
    found = waits.quantile(share)
    assert found is not None
    assert found == exact or exact <= found * (1 + 1e-9) <= exact * RATIO * (1 + 1e-6)


def of(targets: list[str]) -> Imbalance:
    spread = Imbalance()
    for target in targets:
        spread.add(target)
    return spread


def test_the_busiest_is_held_against_the_mean() -> None:
    # 5 requests over 4 targets: mean 1.25, the busiest has 3: 3 / 1.25 = 2.4
    assert of(["a", "a", "a", "b", "c"]).ratio(4) == pytest.approx(2.4)


def test_a_target_that_nobody_chose_counts() -> None:
    assert of(["a"] * 10).ratio(8) == 8


def test_no_request_no_spread() -> None:
    assert Imbalance().ratio(3) is None


@given(st.lists(st.sampled_from("abcd"), min_size=1))
def test_it_lies_between_even_and_all_on_one(targets: list[str]) -> None:
    uneven = of(targets).ratio(4)
    assert uneven is not None
    assert 1 <= uneven <= 4
