"""Counts of an experiment at one router, for the other routers in front of the same engines.

Each router counts units of its own, and all of them are summed where a figure is read: times, shares and requests
by addition, evidence bet by bet by multiplication (`e_process.py`). So nobody counts twice, in whatever order
counts arrive, and the counts of a router that is gone stay.
"""

from __future__ import annotations

import msgspec


class EvidenceCounts(msgspec.Struct, frozen=True, array_like=True):
    """Counts of an `EProcess`."""

    won: list[float]  # of a stake of 1 on each bet
    units: int
    gains: float  # their sum, and that of their squares
    squares: float


class HistogramCounts(msgspec.Struct, frozen=True, array_like=True):
    """Counts of a `LatencyHistogram`: weights by bucket, those that have any."""

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
    both: int  # of the arm and the first one
    guard: EvidenceCounts
    metrics: list[tuple[EvidenceCounts, EvidenceCounts]]  # that the arm's values are higher, and lower


class LimitCounts(msgspec.Struct, frozen=True, array_like=True):
    """Counts of an `ArmLimit`."""

    evidence: float
    requests: int
    bad: int


class ArmCounts(msgspec.Struct, frozen=True, array_like=True):
    open_units: int
    metrics: MetricCounts
    comparison: ComparisonCounts | None  # None: of the first arm
    limits: dict[str, LimitCounts]


class ExperimentCounts(msgspec.Struct, frozen=True, array_like=True):
    arms: list[ArmCounts]
