"""Counts of an experiment at one router, for the other routers in front of the same engines.

Each router counts its own units, and the counts of all routers are combined when a figure is read: times, shares
and requests by addition, evidence bet by bet by multiplication (`e_process.py`). So no unit counts twice, in
whatever order counts arrive, and the counts of a router that is gone are retained.
"""

from __future__ import annotations

import msgspec


class EvidenceCounts(msgspec.Struct, frozen=True, array_like=True):
    """Counts of an `EProcess`."""

    won: list[float]  # present value of a stake of 1 on each bet
    units: int
    gains: float  # sum of the gains
    squares: float  # sum of the squared gains


class HistogramCounts(msgspec.Struct, frozen=True, array_like=True):
    """Counts of a `LatencyHistogram`: weights by bucket, without empty buckets."""

    units: int
    weights: dict[int, float]


class MeanCounts(msgspec.Struct, frozen=True, array_like=True):
    """Counts of a `UnitMean`."""

    units: int
    total: float


class MetricCounts(msgspec.Struct, frozen=True, array_like=True):
    """Counts of an `ArmMetrics`."""

    units: int
    requests: int
    failed: int
    targets: dict[str, int]
    first_bytes: HistogramCounts
    last_bytes: HistogramCounts
    hits: MeanCounts
    errors: MeanCounts
    outputs: HistogramCounts


class ComparisonCounts(msgspec.Struct, frozen=True, array_like=True):
    """Counts of an `ArmComparison`."""

    units: int  # of the arm
    both: int  # units of the arm and of the first arm
    guard: EvidenceCounts
    metrics: list[tuple[EvidenceCounts, EvidenceCounts]]  # evidence that the arm's values are higher, and lower


class LimitCounts(msgspec.Struct, frozen=True, array_like=True):
    """Counts of an `ArmLimit`."""

    evidence: float
    requests: int
    bad: int


class ArmCounts(msgspec.Struct, frozen=True, array_like=True):
    open_units: int
    metrics: MetricCounts
    comparison: ComparisonCounts | None  # None for the first arm
    limits: dict[str, LimitCounts]


class ExperimentCounts(msgspec.Struct, frozen=True, array_like=True):
    arms: list[ArmCounts]
