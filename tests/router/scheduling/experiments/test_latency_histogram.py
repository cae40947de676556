"""Weighted quantiles of times, against sorting."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.scheduling.experiments.latency_histogram import FLOOR_MS, RATIO, LatencyHistogram

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
