"""Counters and histograms as tables say the same as the Prometheus client's own."""

from __future__ import annotations

from prometheus_client import CollectorRegistry
from prometheus_client import Histogram as PrometheusHistogram

from router.telemetry.metrics.series import Counter, Histogram

BOUNDS = (0.1, 0.5, 2.0)


def samples(series: Counter | Histogram) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for s in series.family().samples}


def test_counts_begin_at_zero_and_add_up() -> None:
    counts = Counter("x_total", "what", "path", "status")
    counts["/a", "2xx"] += 1
    counts["/a", "2xx"] += 2
    counts["/b", "4xx"] += 1
    assert samples(counts) == {
        ("x_total", (("path", "/a"), ("status", "2xx"))): 3.0,
        ("x_total", (("path", "/b"), ("status", "4xx"))): 1.0,
    }


def test_asking_for_a_count_makes_no_series() -> None:
    counts = Counter("x_total", "what", "path")
    assert counts[("/a",)] == 0.0
    assert samples(counts) == {}


def test_spread_equals_the_clients_histogram() -> None:
    registry = CollectorRegistry()
    peer = PrometheusHistogram("x_seconds", "what", ["stage"], buckets=BOUNDS, registry=registry)
    spread = Histogram("x_seconds", "what", BOUNDS, "stage")
    for value in (0.0, 0.1, 0.10001, 0.5, 1.9, 2.0, 2.1, 100.0):
        peer.labels("match").observe(value)
        spread[("match",)].observe(value)
    theirs = {
        (s.name, tuple(sorted(s.labels.items()))): s.value
        for family in registry.collect()
        for s in family.samples
        if not s.name.endswith("_created")
    }
    assert samples(spread) == theirs


def test_a_frozen_copy_stands_still() -> None:
    counts, spread = Counter("x_total", "what", "a"), Histogram("y_seconds", "what", BOUNDS, "a")
    counts[("1",)] += 1
    spread[("1",)].observe(0.3)
    copies = counts.freeze(), spread.freeze()
    before = [samples(copy) for copy in copies]
    counts[("1",)] += 1
    counts[("2",)] += 1
    spread[("1",)].observe(0.3)
    spread[("2",)].observe(0.3)
    assert [samples(copy) for copy in copies] == before


def test_a_series_without_observations_is_not_exported() -> None:
    spread = Histogram("x_seconds", "what", BOUNDS, "stage")
    assert spread[("match",)].counts == [0, 0, 0, 0]
    assert samples(spread) == {}
