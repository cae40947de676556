"""What one arm has shown by itself so far: counts, and an estimate with its interval of each metric.

Units weigh the same, whatever number of requests they made: of times the weighted quantile (`waits.py`), of shares the
mean of the units' own. The intervals are confidence sequences (`bounds.py`). It is about 40 KB large.
"""

from __future__ import annotations

from collections.abc import KeysView
from math import inf
from typing import NamedTuple

from router.config.sections.experiment import Metric
from router.scheduling.experiments.confidence_sequences import mean_bounds, share_bounds
from router.scheduling.experiments.imbalance import Imbalance
from router.scheduling.experiments.latency_histogram import RATIO, LatencyHistogram
from router.scheduling.experiments.unit import ExperimentUnit, has_failed
from router.scheduling.policy.record import Record

QUANTILES: dict[Metric, float] = {"ttft_p50": 0.5, "ttft_p90": 0.9, "duration_p90": 0.9}
TARGETS = 10_000  # whose requests are counted


class Estimate(NamedTuple):
    value: float | None
    low: float | None
    high: float | None
    units: int


class UnitMean:
    """Of units' shares."""

    __slots__ = ("total", "units")

    def __init__(self) -> None:
        self.total = 0.0
        self.units = 0

    def add(self, share: float | None) -> None:
        if share is not None:
            self.total += share
            self.units += 1


class ArmMetrics:
    def __init__(self) -> None:
        self.units = 0  # closed
        self.requests = 0  # ended
        self.failed = 0
        self._spread = Imbalance()
        self.first_bytes = LatencyHistogram()
        self.last_bytes = LatencyHistogram()
        self.hits = UnitMean()
        self.errors = UnitMean()

    def add_request(self, record: Record) -> None:
        self.requests += 1
        self.failed += has_failed(record)
        target = record.target
        if target is not None and (target in self.targets or len(self.targets) < TARGETS):
            self._spread.add(target)

    def add_unit(self, unit: ExperimentUnit) -> None:
        self.units += 1
        if unit.first_bytes:  # and so the other
            self.first_bytes.add(unit.first_bytes)
            self.last_bytes.add(unit.last_bytes)
        self.hits.add(unit.hit_share)
        self.errors.add(unit.error_rate)

    def quantile(self, metric: Metric) -> float | None:
        """Ms; None: no units yet, or it is not a metric of times."""
        share = QUANTILES.get(metric)
        return None if share is None else self._waits(metric).quantile(share)

    def estimate(self, metric: Metric, alpha: float) -> Estimate:
        """With an interval that misses the truth, ever, with a chance of at most `alpha`."""
        if metric in QUANTILES:
            return _of_quantile(self._waits(metric), QUANTILES[metric], alpha)
        mean = self.hits if metric == "hit_share" else self.errors
        if not mean.units:
            return Estimate(None, None, None, 0)
        return Estimate(mean.total / mean.units, *mean_bounds(mean.total, mean.units, alpha), mean.units)

    @property
    def targets(self) -> KeysView[str]:
        """That its requests went to."""
        return self._spread.targets

    def imbalance(self, targets: int) -> float | None:
        """Requests of the busiest target over the mean of so many targets; None: no requests."""
        return self._spread.ratio(targets)

    def _waits(self, metric: Metric) -> LatencyHistogram:
        return self.last_bytes if metric == "duration_p90" else self.first_bytes


def _of_quantile(waits: LatencyHistogram, share: float, alpha: float) -> Estimate:
    if not waits.units:
        return Estimate(None, None, None, 0)
    least, most = share_bounds(1 - share, waits.units, alpha)  # of what may lie above the quantile
    low = waits.quantile(1 - most) if most < 1 else None
    return Estimate(
        waits.quantile(share),
        low / RATIO if low is not None else 0.0,
        waits.quantile(1 - least) if least > 0 else inf,
        waits.units,
    )
