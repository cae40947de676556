"""How sizes, pauses and gaps are drawn: distributions as values, one draw from the dice at a time.

A draw is a fixed function of one uniform number, so that scaling a length changes no other one: the same seed gives
the same shape at every scale and rate.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import NamedTuple

from router.testbed.rng import Rng

NORMAL = NormalDist()


def draw_uniform(dice: Rng) -> float:
    """In (0, 1), exactly representable at both ends."""
    return ((dice.bits() >> 12) + 0.5) / (1 << 52)


def draw_gap_s(dice: Rng, per_s: float) -> float:
    """Seconds from one arrival to the next of a Poisson process: exponential, of mean 1 / `per_s`."""
    return -math.log(draw_uniform(dice)) / per_s


class LogNormal(NamedTuple):
    """A positive quantity whose logarithm is normal; sigma 0: always the median."""

    median: float
    sigma: float

    @classmethod
    def of_mean(cls, mean: float, sigma: float) -> LogNormal:
        """mean = median x exp(sigma^2 / 2)"""
        return cls(mean * math.exp(-sigma * sigma / 2), sigma)

    @classmethod
    def of_p99(cls, median: float, p99: float) -> LogNormal:
        """p99 = median x exp(2.326 sigma), 2.326 being the 99th percentile of the standard normal"""
        return cls(median, math.log(p99 / median) / NORMAL.inv_cdf(0.99))

    def times(self, factor: float) -> LogNormal:
        return LogNormal(self.median * factor, self.sigma)

    def draw(self, dice: Rng) -> float:
        return self.median * math.exp(self.sigma * NORMAL.inv_cdf(draw_uniform(dice)))

    def tokens(self, dice: Rng) -> int:
        return max(1, round(self.draw(dice)))
