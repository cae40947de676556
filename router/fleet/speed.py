"""How fast an instance prefills, learned from what its requests showed, starting from the configured prior.

The curve is the contract's (`scorers.contract.Speed`): milliseconds = base + a * new + b * new * (context + new / 2).
It is linear in (base, a, b), so recursive least squares with forgetting follows it in constant memory
(Ljung, System Identification, 11.2):

    error = ms - x.theta      gain = P x / (noise + x.P x)      theta += gain * error      P = (P - gain (P x)^T) / keep

with four changes that this data needs:

* Time to first token is proportionally noisy (a 10 s prefill is off by a second, a 20 ms one is not), so each
  sample's noise is a share of its time: the predicted or the shown, whichever is longer.
* Outliers (a compile, a preemption) are clipped at a few standard deviations of what was expected. While P is wide,
  at the start, nearly nothing is an outlier, so a wrong prior is left quickly.
* Forgetting inflates P in directions that the traffic does not excite (all prompts alike): P never grows beyond the
  prior's, else one odd prompt after a monotonous day would throw the curve anywhere.
* No coefficient is negative. One that would be is set to 0 *along P*, so the others take over what it explained.

Queueing would be mistaken for slowness: callers feed only requests that had the target's prefill for themselves
(`Booking.alone`), and whose cached part lay on the GPU.
"""

from __future__ import annotations

from router.config.schema import SpeedPrior
from router.fleet.load import attended_pairs
from scorers.contract import Speed

KEEP = 0.99  # forgetting: the last hundred samples make the curve
NOISE_SHARE = 0.15  # of a sample's time, one standard deviation
NOISE_FLOOR_MS = 2.0
CLIP_DEVIATIONS = 3.0
PRIOR_DOUBT = 3.0  # one standard deviation of each prior coefficient, as a multiple of it
VALUE_KEPT_S = 1.0  # a published Speed is reused this long: its age is then good to a second

Vector = list[float]


class Curve:
    """One instance's prefill curve. Features are scaled to thousands of tokens and millions of pairs, which makes
    theta exactly (base_ms, us_per_token, ns_per_token_context).
    """

    def __init__(self, prior: SpeedPrior) -> None:
        self._theta: Vector = [prior.base_ms, prior.us_per_token, prior.ns_per_token_context]
        doubts = [PRIOR_DOUBT * max(value, 1.0) for value in self._theta]
        self._ceiling: Vector = [doubt * doubt for doubt in doubts]
        self._p: list[Vector] = [[self._ceiling[i] if i == j else 0.0 for j in range(3)] for i in range(3)]
        self.samples = 0
        self._last_at: float | None = None
        self._value: Speed | None = None
        self._value_at = 0.0

    def observe(self, new: int, context: int, ms: float, now: float) -> None:
        """A prefill of `new` tokens after `context` cached ones took `ms` with nothing else in its way."""
        if new <= 0 or context < 0 or not 0 < ms < 3.6e6:
            return
        x = [1.0, new / 1e3, attended_pairs(new, context) / 1e6]
        predicted = _dot(self._theta, x)
        noise = (NOISE_FLOOR_MS + NOISE_SHARE * max(predicted, ms)) ** 2
        px = [_dot(row, x) for row in self._p]
        spread = noise + _dot(px, x)
        limit = CLIP_DEVIATIONS * spread**0.5
        error = min(max(ms - predicted, -limit), limit)
        self._theta = [theta + p * error / spread for theta, p in zip(self._theta, px, strict=True)]
        self._p = [[(self._p[i][j] - px[i] * px[j] / spread) / KEEP for j in range(3)] for i in range(3)]
        self._hold_ceiling()
        self._hold_positive()
        self.samples += 1
        self._last_at = now
        self._value = None

    def speed(self, now: float) -> Speed:
        value = self._value
        if value is None or now - self._value_at > VALUE_KEPT_S:
            age_s = None if self._last_at is None else now - self._last_at
            value = Speed(self._theta[0], self._theta[1], self._theta[2], self.samples, age_s, None, None, None)
            self._value = value
            self._value_at = now
        return value

    def _hold_ceiling(self) -> None:
        for i, ceiling in enumerate(self._ceiling):
            if self._p[i][i] > ceiling:
                shrink = (ceiling / self._p[i][i]) ** 0.5  # row and column alike: P stays positive definite
                for j in range(3):
                    self._p[i][j] *= shrink
                    self._p[j][i] *= shrink

    def _hold_positive(self) -> None:
        for i in range(3):
            if self._theta[i] < 0:
                step = self._theta[i] / self._p[i][i]
                self._theta = [theta - self._p[j][i] * step for j, theta in enumerate(self._theta)]
        self._theta = [max(0.0, theta) for theta in self._theta]  # a later projection may have undone an earlier


def _dot(a: Vector, b: Vector) -> float:
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]
