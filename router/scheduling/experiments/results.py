"""Results of an experiment: findings, which are acted on, and the report for people.

Plain frozen values. Infinite is a valid figure (an arm of which a tenth fails has an infinite P90); None is
unknown.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from router.config.sections.experiment import Metric

Verdict = Literal["better", "worse", "longer", "shorter", "not yet known"]
"""Longer or shorter answers are neither better nor worse."""

ReportedMetric = Metric | Literal["output_p50"]
"""A metric of the guard, or the median length of answers in tokens."""


class Finding(NamedTuple):
    """An arm is too bad; reported once per arm. If it is the first arm, the experiment ends."""

    arm: str
    cause: Literal["guard", "limit"]
    metric: str  # of the guard, or the limit's key
    why: str
    units: int  # closed units of the arm
    evidence: float  # against the arm, at least `1 / alpha` over all comparisons; of a limit the detector's
    estimate_arm: float | None
    estimate_first: float | None


class MetricResult(NamedTuple):
    """One arm's metric: ms, tokens, or a share. Its interval holds together with all others of the report,
    always.
    """

    metric: ReportedMetric
    estimate: float | None
    low: float | None
    high: float | None
    units: int  # with a value
    verdict: Verdict | None  # against the first arm; None for the first arm
    evidence: float | None  # the strongest so far, either way; a verdict needs `ExperimentReport.bar`
    units_needed: int | None  # about so many more of both arms until a verdict; None if unclear
    requests_needed: int | None


class ArmReport(NamedTuple):
    """Results of one arm."""

    arm: str
    policy: str
    admission: str | None  # its admission rule; None: it names none
    share: float
    out: str | None  # why it does not count any more, if so
    units_open: int
    units_closed: int
    requests: int  # ended
    failed: int
    spread: float | None  # requests of the busiest target / mean over all targets of any arm; None: arms are models
    guard_evidence: float | None  # the strongest so far
    standings: tuple[MetricResult, ...]
    model: str | None = None  # that answers; None: the arms are policies
    revision: str | None = None  # of the model; None: any, or the arms are policies


class ExperimentReport(NamedTuple):
    """Results of an experiment."""

    alpha: float
    bar: float  # evidence required for a verdict
    guard_bar: float  # evidence required for the guard
    arms: tuple[ArmReport, ...]
    warnings: tuple[str, ...]
