"""Step changes of the learned speed: an engine became several times slower, or recovered.

The forgetting of `RecursiveLeastSquares` takes about a hundred samples to follow. Here a runs rule, as in control
charts, finds the step: after `RUN` samples in a row that took more than `STEP_RATIO` times as long as predicted (or
all as much shorter), all coefficients are multiplied by the median of their ratios, and are in doubt again. Fewer
outliers in a row (a compile, a preemption) are no step, however large they are.

Samples until a step is found, and false steps, by `python -m tests.router.fleet.step_rates` (noise of 15 %; outliers
take 3 to 10 times as long):

    2 times slower                 3.8 on average, 11 at the 99th percentile
    3, 5, 20 times slower          3.0, 3
    false steps, 1 % outliers      1 in 600,000 samples
    false steps, 3 % outliers      1 in 20,000

A slow engine gets few requests, in a quiet hour none. So without samples for `STALE_S` its usual speed is assumed
again; the next sample shows whether it has recovered.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from router.fleet.recursive_least_squares import NOISE_FLOOR_MS, RecursiveLeastSquares
from router.fleet.saved_parts import SavedFit

STEP_RATIO = 1.5
RUN = 3
FLOOR_MS = 5 * NOISE_FLOOR_MS  # by which samples of a run differ at least from the prediction
LEARNED = 12  # samples before which there is no step: the predictions may still follow from the prior
DOUBT = 0.3  # of each coefficient after a step
STALE_S = 30.0
RECOVERED = 1.25  # slowdown below which there is none any more


class SteppedFit(RecursiveLeastSquares):
    """A fit that follows step changes. `slowdown`: how many times longer the usual sample took, when last measured,
    than before the engine became slower; 1.0 if it did not.
    """

    __slots__ = ("_before", "_ratios", "slowdown")

    def __init__(self, prior: Sequence[float]) -> None:
        super().__init__(prior)
        self.slowdown = 1.0
        self._before: list[float] | None = None  # coefficients before the engine became slower; None: it did not
        self._ratios: tuple[float, ...] = ()  # of the last samples to their predictions, all above 1 or all below

    def observe(self, x: Sequence[float], ms: float, now: float, beside_ms: float = 0.0, *, steps: bool = True) -> None:
        """Add a sample; without `steps` it is no part of a step."""
        self.relax(now)
        factor = self._find_step(self.predict(x), ms) if steps and self.samples >= LEARNED else None
        if factor is not None:
            if factor > 1 and self._before is None:
                self._before = list(self.theta)
            self.scale(factor, DOUBT)
        super().observe(x, ms, now, beside_ms)
        if self._before is not None:
            self.slowdown = self.ratio_to(self._before) or self.slowdown
            if self.slowdown < RECOVERED:
                self.slowdown, self._before = 1.0, None

    def _find_step(self, predicted_ms: float, ms: float) -> float | None:
        """Return the factor of the step that a sample completes; None if it completes none."""
        low_ms, high_ms = sorted((predicted_ms, ms))
        if low_ms <= 0 or high_ms - low_ms <= (STEP_RATIO - 1) * low_ms + FLOOR_MS:
            self._ratios = ()
            return None
        ratio = ms / predicted_ms
        goes_on = self._ratios and (self._ratios[0] > 1) == (ratio > 1)
        self._ratios = (*self._ratios, ratio) if goes_on else (ratio,)
        if len(self._ratios) < RUN:
            return None
        factor = median(self._ratios)
        self._ratios = ()
        return factor

    def relax(self, now: float) -> None:
        """Assume the usual speed if the last sample is older than `STALE_S`."""
        age_s = self.age_s(now)
        if self._before is not None and age_s is not None and age_s > STALE_S:
            self.set_coefficients(self._before)

    def forget_slowdown(self) -> None:
        """Assume the usual speed, because another process answers now."""
        if self._before is not None:
            self.set_coefficients(self._before)
        self.slowdown, self._before, self._ratios = 1.0, None, ()

    def save(self, now: float) -> SavedFit:
        saved = super().save(now)
        return SavedFit(saved.theta, saved.p, saved.samples, saved.age_s, self._before)

    def restore(self, saved: SavedFit, saved_at: float) -> bool:
        restored = super().restore(saved, saved_at)
        if restored and saved.before is not None and len(saved.before) == len(self.theta):
            self._before = list(saved.before)
        return restored
