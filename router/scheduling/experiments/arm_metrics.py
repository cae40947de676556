"""Metrics of one arm so far: counts, latency histograms, and an estimate of each metric with its interval.

All units have the same weight, whatever their number of requests: times are weighted quantiles, and shares are the
mean of the units' shares. Histogram buckets are 1 % wide, from 0.1 ms to most of a day; the last bucket has failed
and hanging requests. A client that left counts with the time until it left, which is the least that it would have
waited. The intervals are confidence sequences (`confidence_sequences.py`). The metrics of an arm take about 60 KB.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import KeysView, Mapping, Sequence
from itertools import accumulate
from math import inf, log
from typing import NamedTuple

from router.scheduling.experiments.confidence_sequences import mean_bounds, share_bounds
from router.scheduling.experiments.counts import HistogramCounts, MeanCounts, MetricCounts
from router.scheduling.experiments.results import ReportedMetric
from router.scheduling.experiments.unit import ExperimentUnit, has_failed
from router.scheduling.policy.record import Record

QUANTILES: dict[ReportedMetric, float] = {"ttft_p50": 0.5, "ttft_p90": 0.9, "duration_p90": 0.9, "output_p50": 0.5}
TARGETS = 10_000  # maximum number of targets whose requests are counted
FLOOR_MS = 0.1
RATIO = 1.01
BUCKETS = 2048
_PER_LOG = 1 / log(RATIO)


class Estimate(NamedTuple):
    """An estimate with its confidence interval, and the number of units behind it."""

    value: float | None
    low: float | None
    high: float | None
    units: int


class LatencyHistogram:
    """Waiting times in ms, or lengths in tokens, with the same weight for every unit."""

    __slots__ = ("_lowest", "_weights", "units")

    def __init__(self) -> None:
        self._weights = [0.0] * (BUCKETS + 1)
        self._lowest = BUCKETS  # first bucket with any weight, where quantiles start
        self.units = 0

    def add(self, waits_ms: Sequence[float]) -> None:
        """Add one unit's waits in ms, at least one wait: infinite without an answer, negative if the client left
        after that time.
        """
        weight = 1 / len(waits_ms)
        for wait_ms in waits_ms:
            bucket = _bucket(abs(wait_ms))
            self._weights[bucket] += weight
            if bucket < self._lowest:
                self._lowest = bucket
        self.units += 1

    def counts(self) -> HistogramCounts:
        return HistogramCounts(self.units, {bucket: weight for bucket, weight in enumerate(self._weights) if weight})

    def add_counts(self, counts: HistogramCounts) -> None:
        """Add the units of another histogram."""
        self.units += counts.units
        for bucket, weight in counts.weights.items():
            if 0 <= bucket <= BUCKETS:
                self._weights[bucket] += weight
                self._lowest = min(self._lowest, bucket)

    def quantile(self, share: float) -> float | None:
        """Return the time in ms that covers at least `share` of the weight; infinite for failures; None without
        units.
        """
        if not self.units:
            return None
        target = share * self.units - 1e-9
        for bucket, weight in enumerate(accumulate(self._weights[self._lowest :]), self._lowest):
            if weight >= target:
                return FLOOR_MS * RATIO**bucket if bucket < BUCKETS else inf
        return inf  # sums of thirds may miss the total by a rounding error


def _bucket(wait_ms: float) -> int:
    """Return the bucket of a wait; bucket i ends at `FLOOR_MS * RATIO**i`."""
    if wait_ms <= FLOOR_MS:
        return 0
    return BUCKETS if wait_ms == inf else min(int(log(wait_ms / FLOOR_MS) * _PER_LOG) + 1, BUCKETS - 1)


class Imbalance:
    """Request counts by target, and their imbalance over all targets that could have been chosen. If a policy sends
    all requests to one of eight targets, the ratio is 8, although no other target appears in its choices.
    """

    def __init__(self) -> None:
        self._requests: Counter[str] = Counter()

    def add(self, target: str) -> None:
        """Count a request; targets beyond the first `TARGETS` are ignored: engines come and go under new names."""
        if target in self._requests or len(self._requests) < TARGETS:
            self._requests[target] += 1

    @property
    def targets(self) -> KeysView[str]:
        """The targets that were chosen."""
        return self._requests.keys()

    def counts(self) -> dict[str, int]:
        """Return the number of requests by target."""
        return dict(self._requests)

    def add_counts(self, counts: Mapping[str, int]) -> None:
        """Add the requests of another router."""
        self._requests.update(counts)

    def ratio(self, offered: int) -> float | None:
        """Return the busiest target's requests over the mean of all `offered`: 1 is even; None without requests."""
        total = self._requests.total()
        return max(self._requests.values()) * offered / total if total else None


class UnitMean:
    """Mean of the units' shares."""

    __slots__ = ("total", "units")

    def __init__(self) -> None:
        self.total = 0.0
        self.units = 0

    def add(self, share: float | None) -> None:
        if share is not None:
            self.total += share
            self.units += 1

    def counts(self) -> MeanCounts:
        return MeanCounts(self.units, self.total)

    def add_counts(self, counts: MeanCounts) -> None:
        """Add the units of another mean."""
        self.units += counts.units
        self.total += counts.total


class ArmMetrics:
    """The metrics of one arm."""

    def __init__(self) -> None:
        self.units = 0
        self.requests = 0
        self.failed = 0
        self._imbalance = Imbalance()
        self.first_bytes = LatencyHistogram()
        self.last_bytes = LatencyHistogram()
        self.outputs = LatencyHistogram()  # tokens of answers
        self.hits = UnitMean()
        self.errors = UnitMean()

    def counts(self) -> MetricCounts:
        """Return everything counted so far."""
        return MetricCounts(
            self.units,
            self.requests,
            self.failed,
            self._imbalance.counts(),
            self.first_bytes.counts(),
            self.last_bytes.counts(),
            self.hits.counts(),
            self.errors.counts(),
            self.outputs.counts(),
        )

    def plus(self, others: Sequence[MetricCounts]) -> ArmMetrics:
        """Return the sum of these metrics and the counts of other routers."""
        if not others:
            return self
        total = ArmMetrics()
        for counts in (self.counts(), *others):
            total.units += counts.units
            total.requests += counts.requests
            total.failed += counts.failed
            total._imbalance.add_counts(counts.targets)
            total.first_bytes.add_counts(counts.first_bytes)
            total.last_bytes.add_counts(counts.last_bytes)
            total.hits.add_counts(counts.hits)
            total.errors.add_counts(counts.errors)
            total.outputs.add_counts(counts.outputs)
        return total

    def add_request(self, record: Record) -> None:
        """Add a request that has ended."""
        self.requests += 1
        self.failed += has_failed(record)
        if target := record.target:  # empty: unknown, from a process that is gone
            self._imbalance.add(target)

    def add_unit(self, unit: ExperimentUnit) -> None:
        """Add a closed unit."""
        self.units += 1
        if unit.first_bytes:  # and then `last_bytes` is not empty
            self.first_bytes.add(unit.first_bytes)
            self.last_bytes.add(unit.last_bytes)
        if unit.output_tokens:
            self.outputs.add(unit.output_tokens)
        self.hits.add(unit.hit_share)
        self.errors.add(unit.error_rate)

    def quantile(self, metric: ReportedMetric) -> float | None:
        """Return the quantile in ms, or tokens; None without units, or if the metric is a share."""
        share = QUANTILES.get(metric)
        return None if share is None else self._histogram(metric).quantile(share)

    def estimate(self, metric: ReportedMetric, alpha: float) -> Estimate:
        """Return the estimate, with an interval that ever misses the true value with a probability of at most
        `alpha`.
        """
        if metric in QUANTILES:
            return _estimate_quantile(self._histogram(metric), QUANTILES[metric], alpha)
        mean = self.hits if metric == "hit_share" else self.errors
        if not mean.units:
            return Estimate(None, None, None, 0)
        return Estimate(mean.total / mean.units, *mean_bounds(mean.total, mean.units, alpha), mean.units)

    @property
    def targets(self) -> KeysView[str]:
        """The targets of the arm's requests."""
        return self._imbalance.targets

    def imbalance(self, targets: int) -> float | None:
        """Return the requests of the busiest target over the mean of `targets` targets; None without requests."""
        return self._imbalance.ratio(targets)

    def _histogram(self, metric: ReportedMetric) -> LatencyHistogram:
        if metric == "output_p50":
            return self.outputs
        return self.last_bytes if metric == "duration_p90" else self.first_bytes


def _estimate_quantile(histogram: LatencyHistogram, share: float, alpha: float) -> Estimate:
    if not histogram.units:
        return Estimate(None, None, None, 0)
    least, most = share_bounds(1 - share, histogram.units, alpha)  # of the share above the quantile
    low = histogram.quantile(1 - most) if most < 1 else None
    return Estimate(
        histogram.quantile(share),
        low / RATIO if low is not None else 0.0,
        histogram.quantile(1 - least) if least > 0 else inf,
        histogram.units,
    )
