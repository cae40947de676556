"""Results of an experiment: findings, on which the router acts, and the report for people.

All are plain frozen values. Infinite is a valid figure (an arm with a tenth of its requests failed has an infinite
P90); None means unknown.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from router.config.sections.experiment import Metric

Verdict = Literal["better", "worse", "longer", "shorter", "not yet known"]
"""Longer or shorter answers are neither better nor worse."""

ReportedMetric = Metric | Literal["output_p50"]
"""A metric of the guard, or the median length of answers in tokens."""


class Finding(NamedTuple):
    """An arm is too bad, which is reported once per arm. If this is the first arm, the experiment ends."""

    arm: str
    cause: Literal["guard", "limit"]
    metric: str  # the guard's metric, or the limit's key
    why: str
    units: int  # closed units of the arm
    evidence: float  # against the arm, at least `1 / alpha` over all comparisons; for a limit, the detector's
    estimate_arm: float | None
    estimate_first: float | None


class MetricResult(NamedTuple):
    """One arm's metric in ms or tokens, or as a share. Its interval and all other intervals of the report hold
    simultaneously and at all times.
    """

    metric: ReportedMetric
    estimate: float | None
    low: float | None
    high: float | None
    units: int  # number of units with a value
    verdict: Verdict | None  # compared with the first arm; None for the first arm
    evidence: float | None  # the strongest so far in either direction; a verdict needs `ExperimentReport.bar`
    units_needed: int | None  # estimated number of further units of both arms until a verdict; None if unclear
    requests_needed: int | None


class ArmReport(NamedTuple):
    """Results of one arm."""

    arm: str
    policy: str
    admission: str | None  # the arm's admission rule; None: it names no rule
    share: float
    out: str | None  # why the arm does not count any more; None: it still counts
    units_open: int
    units_closed: int
    requests: int  # number of ended requests
    failed: int
    spread: float | None  # requests of the busiest target / mean over all targets of any arm; None: arms are models
    guard_evidence: float | None  # the strongest so far
    standings: tuple[MetricResult, ...]
    model: str | None = None  # the model that answers; None: the arms are policies
    revision: str | None = None  # of the model; None: any, or the arms are policies


class ExperimentReport(NamedTuple):
    """Results of an experiment."""

    alpha: float
    bar: float  # evidence required for a verdict
    guard_bar: float  # evidence required for the guard
    arms: tuple[ArmReport, ...]
    warnings: tuple[str, ...]
