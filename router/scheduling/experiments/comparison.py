"""Comparison of one arm with the first arm: in which metrics it is better or worse, and whether the guard must act.

Each unit of the two arms contributes one value in [0, 1] per metric (`Values`). Each metric has evidence in both
directions. The guard's metric has additional evidence, that the arm is worse by more than allowed: for times, the
arm's requests are compared with (1 + worse_by) times the first arm's quantile; the arm's failures may be
(1 + worse_by) times the first arm's; the arm's hit share may be the first arm's divided by (1 + worse_by).

A verdict rejects the hypothesis that the arm was *at no time* expected to be worse (or better), given the past.
With two equal policies this is exact, whatever load, sessions and caches do. Arms that differ also change each
other's load: then a verdict is about the arms as they run here, side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log
from typing import NamedTuple, get_args

from router.config.sections.experiment import GuardConfig, Metric
from router.scheduling.experiments.arm_metrics import QUANTILES
from router.scheduling.experiments.confidence_sequences import surprise
from router.scheduling.experiments.counts import ComparisonCounts, EvidenceCounts
from router.scheduling.experiments.e_process import EProcess
from router.scheduling.experiments.results import ReportedMetric, Verdict

METRICS: tuple[Metric, ...] = get_args(Metric)
MODEL_METRICS: tuple[ReportedMetric, ...] = (*METRICS, "output_p50")  # if the arms are models
NEUTRAL: frozenset[ReportedMetric] = frozenset({"output_p50"})  # neither direction is better
HIGHER_IS_BETTER: frozenset[ReportedMetric] = frozenset({"hit_share"})
CENTRES = (0.01, 0.99)  # a bet needs room on both sides
LATEST_UNITS = 50  # number of units in the mean that bets use as centre

Values = tuple[float | None, ...]
"""One value per metric, in the order of `METRICS` or `MODEL_METRICS`: for times, the share of the unit's requests
slower than the first arm's quantile so far; the hit share; the failed share; for the lengths L of answers, the mean
of L / (L + m), where m is the first arm's median so far: it reacts to lengths in both directions. None if the unit
has no value.
"""


class EvidenceBars(NamedTuple):
    """The evidence required for the guard and for a verdict."""

    guard: float
    verdict: float


def compute_bars(alpha: float, arms: int, metrics: int = len(METRICS)) -> EvidenceBars:
    """Return the bars. Half of alpha is for the guard's claims, one per arm; the other half is shared by all
    verdicts, two per arm and metric. A guard's claim gets more because the guard acts.
    """
    others = max(1, arms - 1)
    return EvidenceBars(2 * others / alpha, 2 * others * 2 * metrics / alpha)


def find_verdicts(metric: ReportedMetric) -> tuple[Verdict, Verdict]:
    """Return the verdicts on an arm with higher values than the first arm, and on an arm with lower values."""
    if metric in NEUTRAL:
        return "longer", "shorter"
    return ("better", "worse") if metric in HIGHER_IS_BETTER else ("worse", "better")


class MetricComparison:
    """Comparison of the arm and the first arm in one metric. `chance` is the arm's share of the units of both;
    `verdicts` are the verdict on an arm whose values are higher, and on one whose values are lower.
    """

    __slots__ = ("_mean", "_units", "_verdicts", "higher", "lower", "verdict")

    def __init__(self, chance: float, verdicts: tuple[Verdict, Verdict]) -> None:
        self.higher = EProcess(chance)  # evidence that the arm's values are higher
        self.lower = EProcess(1 - chance)
        self.verdict: Verdict = "not yet known"
        self._verdicts = verdicts
        self._mean = 0.5
        self._units = 0

    @property
    def centre(self) -> float:
        """The mean of both arms' latest units, so that a drift of the load is not mistaken for chance."""
        return min(max(self._mean, CENTRES[0]), CENTRES[1])

    def observe(self, on_arm: bool, value: float) -> None:
        """Bet on one more unit."""
        centre = self.centre
        self.higher.observe(on_arm, value, centre)
        self.lower.observe(not on_arm, value, centre)
        self._units += 1
        self._mean += (value - self._mean) / min(self._units, LATEST_UNITS)

    def counts(self) -> tuple[EvidenceCounts, EvidenceCounts]:
        """Return the counts of this router."""
        return self.higher.counts(), self.lower.counts()

    def set_others(self, others: Sequence[tuple[EvidenceCounts, EvidenceCounts]]) -> None:
        """Set the counts of other routers."""
        self.higher.set_others([higher for higher, _ in others])
        self.lower.set_others([lower for _, lower in others])

    def judge(self, bar: float) -> None:
        """Update the verdict. It stays until the opposite has the stronger evidence: arms may change after a
        verdict.
        """
        stronger = max(self.higher, self.lower, key=lambda evidence: evidence.value)
        if stronger.value >= bar:
            self.verdict = self._verdicts[0 if stronger is self.higher else 1]

    @property
    def peak(self) -> float:
        """The strongest evidence ever reached in either direction."""
        return max(self.higher.peak, self.lower.peak)

    def units_needed(self, bar: float) -> int | None:
        """Estimate how many more units a verdict needs; None if this cannot be estimated."""
        needed = [self.higher.units_needed(bar), self.lower.units_needed(bar)]
        return min((units for units in needed if units is not None), default=None)


class ArmComparison:
    """Comparison of an arm and the first arm in all `metrics`. `chance` is the arm's share of the units of both."""

    def __init__(
        self,
        chance: float,
        guard: GuardConfig,
        bars: EvidenceBars,
        metrics: Sequence[ReportedMetric] = METRICS,
    ) -> None:
        self.metrics = [MetricComparison(chance, find_verdicts(metric)) for metric in metrics]
        self._units = 0  # of the arm
        self._both = 0
        self._others: Sequence[ComparisonCounts] = ()
        self._chance = chance
        self._guard = guard
        self._guarded = METRICS.index(guard.metric)
        self._bars = bars
        higher_is_better = guard.metric in HIGHER_IS_BETTER  # then evidence is that the first's value is higher
        ratio = 1.0 if guard.metric in QUANTILES else 1 + guard.worse_by
        self._against_arm = not higher_is_better
        self.guard_evidence = EProcess(1 - chance if higher_is_better else chance, ratio)

    def observe(self, on_arm: bool, values: Values, guarded: float | None) -> None:
        """Add a unit. `guarded` is the unit's value of the guard's metric; for times, the margin is included in the
        threshold for the arm's units.
        """
        if guarded is not None:
            self.guard_evidence.observe(on_arm == self._against_arm, guarded, self.metrics[self._guarded].centre)
        for each, value in zip(self.metrics, values, strict=True):
            if value is not None:
                each.observe(on_arm, value)
        self._units += on_arm
        self._both += 1
        self._judge()

    def _judge(self) -> None:
        if self.units >= self._guard.min_units:
            for each in self.metrics:
                each.judge(self._bars.verdict)

    @property
    def units(self) -> int:
        """Units of the arm."""
        return self._units + sum(each.units for each in self._others)

    def counts(self) -> ComparisonCounts:
        """Return the counts of this router."""
        evidence = [each.counts() for each in self.metrics]
        return ComparisonCounts(self._units, self._both, self.guard_evidence.counts(), evidence)

    def set_others(self, others: Sequence[ComparisonCounts]) -> None:
        """Set the counts of other routers."""
        self._others = others
        self.guard_evidence.set_others([each.guard for each in others])
        for n, metric in enumerate(self.metrics):
            metric.set_others([each.metrics[n] for each in others])
        self._judge()

    @property
    def guard_tripped(self) -> bool:
        """Whether the guard must act now."""
        return self.units >= self._guard.min_units and self.guard_evidence.value >= self._bars.guard

    @property
    def is_lopsided(self) -> bool:
        """Whether the split of units between the arms cannot be due to chance: something else assigns them."""
        both = self._both + sum(each.both for each in self._others)
        return surprise(self.units, both, self._chance) >= log(self._bars.verdict)
