"""What a trial says: findings, on which somebody acts, and the report that people read.

Plain frozen values. Infinite is a valid figure (an arm of which a tenth fails has an infinite P90); None is unknown.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from router.config.sections.experiment import Metric

Verdict = Literal["better", "worse", "not yet known"]


class Finding(NamedTuple):
    """An arm is too bad: said once of each arm that goes. Of the first arm, it ends the experiment."""

    arm: str
    cause: Literal["guard", "limit"]
    metric: str  # of the guard, or the limit's key
    why: str
    units: int  # of the arm, that were over and counted
    evidence: float  # against the arm: reached `1 / alpha`, shared out over all comparisons; of limits: the detector's
    estimate_arm: float | None
    estimate_first: float | None


class MetricResult(NamedTuple):
    """One arm's metric: ms, or a share. The interval holds together with all others of the report, at every look."""

    metric: Metric
    estimate: float | None
    low: float | None
    high: float | None
    units: int  # that told it
    verdict: Verdict | None  # against the first arm; None: it is the first arm
    evidence: float | None  # the strongest so far, for better or for worse; a verdict needs `ExperimentReport.bar`
    units_needed: int | None  # about so many more of both arms until a verdict; None: no telling
    requests_needed: int | None


class ArmReport(NamedTuple):
    arm: str
    share: float
    out: str | None  # why it is not counted any more
    units_open: int
    units_closed: int
    requests: int  # that have ended
    failed: int
    spread: float | None  # requests of the busiest target / mean over all targets that any arm used
    guard_evidence: float | None  # the strongest so far that it is too bad
    standings: tuple[MetricResult, ...]


class ExperimentReport(NamedTuple):
    alpha: float
    bar: float  # what evidence for a verdict must reach
    guard_bar: float  # and the guard's
    arms: tuple[ArmReport, ...]
    warnings: tuple[str, ...]
