"""Distributions of sizes, pauses and arrival gaps, as values; each draw takes one number from the generator.

A draw is a fixed function of one uniform number, so that scaling a length changes no other one: the same seed gives
the same shape at every scale and rate.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import NamedTuple

from router.testbed.rng import Rng

NORMAL = NormalDist()


def draw_uniform(rng: Rng) -> float:
    """Return a uniform number in (0, 1); the values next to both ends are exactly representable."""
    return ((rng.bits() >> 12) + 0.5) / (1 << 52)


def draw_gap_s(rng: Rng, per_s: float) -> float:
    """Return the seconds between two arrivals of a Poisson process: exponential, with mean 1 / `per_s`."""
    return -math.log(draw_uniform(rng)) / per_s


class LogNormal(NamedTuple):
    """A positive quantity with a normal logarithm; with sigma 0 it is always the median."""

    median: float
    sigma: float

    @classmethod
    def of_mean(cls, mean: float, sigma: float) -> LogNormal:
        """Return the distribution with this mean: mean = median x exp(sigma^2 / 2)."""
        return cls(mean * math.exp(-sigma * sigma / 2), sigma)

    @classmethod
    def of_p99(cls, median: float, p99: float) -> LogNormal:
        """Return the distribution with this 99th percentile: p99 = median x exp(2.326 sigma).

        2.326 is the 99th percentile of the standard normal distribution.
        """
        return cls(median, math.log(p99 / median) / NORMAL.inv_cdf(0.99))

    def times(self, factor: float) -> LogNormal:
        """Return the distribution of `factor` times this quantity."""
        return LogNormal(self.median * factor, self.sigma)

    def draw(self, rng: Rng) -> float:
        return self.median * math.exp(self.sigma * NORMAL.inv_cdf(draw_uniform(rng)))

    def tokens(self, rng: Rng) -> int:
        """Draw a number of tokens, at least 1."""
        return max(1, round(self.draw(rng)))
