"""Recursive least squares for service times: a line learned sample by sample in constant memory, from given priors.

With forgetting (Ljung, System Identification, 11.2): ms = x.theta, and with every sample

    error = ms - x.theta      gain = P x / (noise + x.P x)      theta += gain * error      P = (P - gain (P x)^T) / keep

with four changes that the times of a serving engine require:

* Times are proportionally noisy (a 10 s prefill is off by a second, a 20 ms prefill is not), so each sample's noise
  is a share of its time: the predicted or the measured time, whichever is longer.
* Outliers (a compile, a preemption) are clipped at a few standard deviations from the prediction. While P is wide,
  at the start, almost nothing is an outlier, so a wrong prior is corrected quickly.
* Forgetting inflates P in directions that the traffic does not excite (all prompts alike). So P never exceeds the
  prior's P; otherwise one odd prompt after a monotonous day would move the line arbitrarily.
* No coefficient is negative. A negative one is set to 0 *along P*, so the others take over what it explained.

The module is independent of tokens and engines: `latency_model.py` chooses x.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

from router.fleet.saved_parts import SavedFit

KEEP = 0.99  # forgetting factor: about the last hundred samples count
NOISE_SHARE = 0.15  # one standard deviation, as a share of a sample's time
NOISE_FLOOR_MS = 2.0
CLIP_DEVIATIONS = 3.0
HORIZON = 1 / (1 - KEEP)
USUAL_SHARE = 0.1  # weight of the newest sample in the features of the usual sample
PRIOR_DOUBT = 3.0  # one standard deviation of each prior coefficient, as a multiple of the coefficient

Vector = list[float]


class RecursiveLeastSquares:
    """Coefficients `theta`, one per coefficient of the prior. Scale features so that every coefficient is at least
    about 1: a smaller coefficient is treated as if it were as uncertain as 1.
    """

    __slots__ = ("_ceiling", "_floor_ms", "_last_at", "_p", "_rounded", "_usual", "samples", "theta")

    def __init__(self, prior: Sequence[float], floor_ms: float = NOISE_FLOOR_MS) -> None:
        self.theta: Vector = list(prior)
        self.samples = 0
        self._floor_ms = floor_ms  # noise of a time near 0
        self._last_at: float | None = None
        self._rounded: tuple[float, ...] | None = None
        self._usual: Vector | None = None  # mean features of the last samples
        self._ceiling: Vector = [(PRIOR_DOUBT * max(value, 1.0)) ** 2 for value in prior]
        size = range(len(prior))
        self._p: list[Vector] = [[self._ceiling[i] if i == j else 0.0 for j in size] for i in size]

    def observe(self, x: Sequence[float], ms: float, now: float, beside_ms: float = 0.0) -> None:
        """Add a sample: features `x` took `ms`. If `ms` is the rest of a longer time, `beside_ms` is the part that
        is explained otherwise. The noise is then that of the longer time, and `ms` may be negative.
        """
        predicted = self.predict(x)
        noise = (self._floor_ms + NOISE_SHARE * (beside_ms + max(predicted, ms))) ** 2
        px = [_dot(row, x) for row in self._p]
        spread = noise + _dot(px, x)
        limit = CLIP_DEVIATIONS * spread**0.5
        error = min(max(ms - predicted, -limit), limit)
        self.theta = [theta + p * error / spread for theta, p in zip(self.theta, px, strict=True)]
        for row, p in zip(self._p, px, strict=True):
            row[:] = [(was - p * q / spread) / KEEP for was, q in zip(row, px, strict=True)]
        self._clamp_covariance()
        self._clamp_coefficients()
        self.samples += 1
        self._last_at = now
        self._rounded = None
        usual = x if self._usual is None else self._usual
        self._usual = [was + USUAL_SHARE * (new - was) for was, new in zip(usual, x, strict=True)]

    def predict(self, x: Sequence[float]) -> float:
        """Return the milliseconds that `x` takes."""
        return _dot(self.theta, x)

    def set_coefficients(self, theta: Sequence[float]) -> None:
        """Replace the coefficients; they are as uncertain as before."""
        self.theta, self._rounded = list(theta), None

    def scale(self, factor: float, doubt: float) -> None:
        """Multiply the coefficients, each of which is then uncertain by `doubt` times itself (one standard deviation)
        more than before.
        """
        self.theta = [theta * factor for theta in self.theta]
        for i, row in enumerate(self._p):
            row[:] = [value * factor * factor for value in row]
            row[i] += (doubt * self.theta[i]) ** 2
        self._clamp_covariance()
        self._rounded = None

    def is_like(self, others: Sequence[float]) -> bool:
        """Return whether the samples cannot distinguish this fit from `others`, coefficients of the same features:
        for the usual sample, the predictions of both differ by no more than the noise that remains after this
        number of samples. False if the usual sample is unknown; True without samples.
        """
        if self._usual is None:
            return not self.samples
        ms = _dot(others, self._usual)
        deviation = (self._floor_ms + NOISE_SHARE * ms) / sqrt(min(float(self.samples), HORIZON))
        return abs(_dot(self.theta, self._usual) - ms) <= CLIP_DEVIATIONS * deviation

    def ratio_to(self, others: Sequence[float]) -> float | None:
        """Return how many times longer the usual sample takes than by the coefficients `others`; None if the usual
        sample is unknown.
        """
        return None if self._usual is None else self.predict(self._usual) / max(_dot(others, self._usual), 1e-9)

    @property
    def coefficients(self) -> tuple[float, ...]:
        """`theta` rounded to six digits for display and logs: further digits are noise, which does not compress."""
        if self._rounded is None:
            self._rounded = tuple(map(round_to_six_digits, self.theta))
        return self._rounded

    @property
    def deviations(self) -> tuple[float, ...]:
        """One standard deviation of each coefficient, rounded as they are: how far it may be off. A coefficient of
        features that the samples hardly have stays as uncertain as its prior.
        """
        return tuple(round_to_six_digits(sqrt(max(0.0, self._p[i][i]))) for i in range(len(self._p)))

    def age_s(self, now: float) -> float | None:
        """Return the time since the last sample, in whole milliseconds; None if there was none."""
        return None if self._last_at is None else round(now - self._last_at, 3)

    def save(self, now: float) -> SavedFit:
        """Return the present state as a value, for another process."""
        return SavedFit(list(self.theta), [list(row) for row in self._p], self.samples, self.age_s(now))

    def restore(self, saved: SavedFit, saved_at: float) -> bool:
        """Continue from `saved`, the state of another process at `saved_at`. Return False, and change nothing, if
        this fit already has samples, or `saved` has no samples or another number of coefficients.
        """
        size = len(self.theta)
        fits = len(saved.theta) == len(saved.p) == size and all(len(row) == size for row in saved.p)
        if self.samples or not saved.samples or saved.age_s is None or not fits:
            return False
        self.theta, self._p = list(saved.theta), [list(row) for row in saved.p]
        self._last_at = saved_at - saved.age_s
        self.samples = saved.samples
        self._rounded = None
        return True

    def _clamp_covariance(self) -> None:
        for i, ceiling in enumerate(self._ceiling):
            if self._p[i][i] > ceiling:
                shrink = (ceiling / self._p[i][i]) ** 0.5  # row and column together, so P stays positive definite
                for j in range(len(self._p)):
                    self._p[i][j] *= shrink
                    self._p[j][i] *= shrink

    def _clamp_coefficients(self) -> None:
        for i in range(len(self.theta)):
            if self.theta[i] < 0:
                step = self.theta[i] / self._p[i][i]
                self.theta = [theta - self._p[j][i] * step for j, theta in enumerate(self.theta)]
        self.theta = [max(0.0, theta) for theta in self.theta]  # a later projection may have undone an earlier one


def round_to_six_digits(value: float) -> float:
    """Return `value` rounded to six significant digits."""
    return float(f"{value:.6g}")


def _dot(a: Sequence[float], b: Sequence[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))
