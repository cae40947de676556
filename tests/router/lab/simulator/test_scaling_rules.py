"""The arithmetic of Kubernetes' HPA, and what the rules read of a fleet."""

from __future__ import annotations

import pytest

from router.fleet.engine_facts import Gauges
from router.lab.simulator.scaling_rules import CacheUsage, HorizontalPodAutoscaler, QueueLength
from tests.router.fleet.test_fleet import fleet_of


@pytest.mark.parametrize(
    ("total", "current", "wanted"),
    [(12.0, 1, 3), (10.0, 2, 2), (10.9, 2, 2), (11.5, 2, 3), (9.0, 2, 2), (8.5, 2, 2), (5.0, 2, 1), (0.0, 2, 0)],
)
def test_a_value_for_each_with_tolerance(total: float, current: int, wanted: int) -> None:
    assert HorizontalPodAutoscaler(0.0).by_value(total, 5.0, current, 0.0) == wanted


@pytest.mark.parametrize(
    ("shares", "current", "wanted"),
    [
        ([0.9, 0.7], 2, 4),  # 1.6 / 0.5, rounded up
        ([0.9, 0.7], 4, 4),  # two start, and count as idle: 1.6 / 4 is below the target, so it waits
        ([0.9, 0.9], 3, 4),  # 1.8 / 3 is above it
        ([0.1, 0.1], 2, 1),
        ([0.1, 0.1], 4, 3),  # two start, and count as loaded to the target: 1.2 / 0.5
        ([0.52, 0.5], 2, 2),
        ([], 2, 2),
    ],
)
def test_a_share_of_pods_of_which_some_start(shares: list[float], current: int, wanted: int) -> None:
    assert HorizontalPodAutoscaler(0.0).by_utilization(shares, 0.5, current, 0.0) == wanted


def test_it_falls_to_the_largest_count_of_the_window() -> None:
    hpa = HorizontalPodAutoscaler(300.0)
    assert hpa.by_value(20.0, 5.0, 1, 0.0) == 4
    assert hpa.by_value(10.0, 5.0, 4, 100.0) == 4
    assert hpa.by_value(5.0, 5.0, 4, 300.0) == 4
    assert hpa.by_value(5.0, 5.0, 4, 301.0) == 2
    assert hpa.by_value(5.0, 5.0, 2, 401.0) == 1


def test_rules_read_the_engines_that_are_ready() -> None:
    fleet = fleet_of("a", "b", "c")
    for name, waiting, usage in (("a", 7, 0.9), ("b", 4, 0.5), ("c", 90, 1.0)):
        fleet.apply_metrics(name, {0: Gauges(1, waiting, usage, 16, 10_000, None, None)}, 1.0)
    fleet.drain("c")
    assert QueueLength(5.0).find_desired(fleet, 1, 0.0) == 3  # 11 waiting requests
    assert CacheUsage(0.5).find_desired(fleet, 2, 0.0) == 3
