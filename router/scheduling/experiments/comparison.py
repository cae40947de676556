"""One arm against the first one: which is better in what, and whether the guard must act.

Of each unit of the two comes one value in [0, 1] per metric (`Values`). Each metric has evidence in both directions;
the guard's metric has a third one, that the arm is worse by more than it may be: for times, its requests are held
against (1 + worse_by) times the first arm's quantile; failures may be (1 + worse_by) times the first arm's; its hit
share may be the first arm's divided by (1 + worse_by).

What a verdict rejects is that the arm was *at no time* expected to be worse (or better), given what was before. Under
two equal policies that is exact, whatever load, sessions and caches do. Arms that differ also change each other's load:
then a verdict is about the arms as they run here, side by side.
"""

from __future__ import annotations

from math import log
from typing import NamedTuple, get_args

from router.config.sections.experiment import GuardConfig, Metric
from router.scheduling.experiments.arm_metrics import QUANTILES
from router.scheduling.experiments.confidence_sequences import surprise
from router.scheduling.experiments.e_process import EProcess
from router.scheduling.experiments.results import Verdict

METRICS: tuple[Metric, ...] = get_args(Metric)
HIGHER_IS_BETTER: frozenset[Metric] = frozenset({"hit_share"})
CENTRES = (0.01, 0.99)  # a bet needs room on both sides
LATEST_UNITS = 50  # make the mean that bets turn around

Values = tuple[float | None, ...]
"""Per metric, in the order of `METRICS`: the share of the unit's requests slower than the first arm's quantile so far,
the hit share, the failed share. None: the unit tells nothing of it.
"""


class EvidenceBars(NamedTuple):
    """What evidence must reach."""

    guard: float
    verdict: float


def compute_bars(alpha: float, arms: int) -> EvidenceBars:
    """Half of alpha is for the guard's claims, one per arm, the other half for all verdicts, two per arm and metric:
    the guard's is the claim on which something hangs.
    """
    others = max(1, arms - 1)
    return EvidenceBars(2 * others / alpha, 2 * others * 2 * len(METRICS) / alpha)


class MetricComparison:
    """One metric of the arm and the first one."""

    __slots__ = ("_higher_is_better", "_mean", "_units", "higher", "lower", "verdict")

    def __init__(self, chance: float, higher_is_better: bool) -> None:
        self.higher = EProcess(chance)  # that the arm's values are
        self.lower = EProcess(1 - chance)
        self.verdict: Verdict = "not yet known"
        self._higher_is_better = higher_is_better
        self._mean = 0.5
        self._units = 0

    @property
    def centre(self) -> float:
        """The mean of both arms' latest units, so the drift of the load is not mistaken for chance."""
        return min(max(self._mean, CENTRES[0]), CENTRES[1])

    def observe(self, on_arm: bool, value: float) -> None:
        centre = self.centre
        self.higher.observe(on_arm, value, centre)
        self.lower.observe(not on_arm, value, centre)
        self._units += 1
        self._mean += (value - self._mean) / min(self._units, LATEST_UNITS)

    def judge(self, bar: float) -> None:
        """A verdict stays until the opposite has the stronger evidence: things may change after it."""
        stronger = max(self.higher, self.lower, key=lambda evidence: evidence.value)
        if stronger.value >= bar:
            self.verdict = "better" if (stronger is self.higher) == self._higher_is_better else "worse"

    @property
    def peak(self) -> float:
        """The strongest evidence that there ever was, either way."""
        return max(self.higher.peak, self.lower.peak)

    def units_needed(self, bar: float) -> int | None:
        needed = [self.higher.units_needed(bar), self.lower.units_needed(bar)]
        return min((units for units in needed if units is not None), default=None)


class ArmComparison:
    """`chance` is the arm's share of the units that fall on it or on the first arm."""

    def __init__(self, chance: float, guard: GuardConfig, bars: EvidenceBars) -> None:
        self.metrics = [MetricComparison(chance, metric in HIGHER_IS_BETTER) for metric in METRICS]
        self.units = 0  # of the arm
        self._both = 0
        self._chance = chance
        self._guard = guard
        self._guarded = METRICS.index(guard.metric)
        self._bars = bars
        falls = guard.metric in HIGHER_IS_BETTER  # then what may be too high is the first arm's value
        ratio = 1.0 if guard.metric in QUANTILES else 1 + guard.worse_by
        self._against_arm = not falls
        self.guard_evidence = EProcess(1 - chance if falls else chance, ratio)

    def observe(self, on_arm: bool, values: Values, guarded: float | None) -> None:
        """One more unit. `guarded` is its value of the guard's metric; of the arm's, with the margin in its limit."""
        if guarded is not None:
            self.guard_evidence.observe(on_arm == self._against_arm, guarded, self.metrics[self._guarded].centre)
        for race, value in zip(self.metrics, values, strict=True):
            if value is not None:
                race.observe(on_arm, value)
        self.units += on_arm
        self._both += 1
        if self.units >= self._guard.min_units:
            for race in self.metrics:
                race.judge(self._bars.verdict)

    @property
    def guard_tripped(self) -> bool:
        """Must the guard act now?"""
        return self.units >= self._guard.min_units and self.guard_evidence.value >= self._bars.guard

    @property
    def is_lopsided(self) -> bool:
        """Do units fall on the arms otherwise than by chance? Then something else than chance assigns them."""
        return surprise(self.units, self._both, self._chance) >= log(self._bars.verdict)
