"""Distributions from which presets draw.

A draw is a fixed function of one uniform number, so that scaling one quantity changes no other quantity: the same
seed gives the same shape at every scale and rate.
"""

from __future__ import annotations

import math
from bisect import bisect
from statistics import NormalDist
from typing import NamedTuple

from router.lab.rng import Rng

NORMAL = NormalDist()


def draw_uniform(rng: Rng) -> float:
    """Return a uniform number in (0, 1); the values next to both ends are exactly representable."""
    return ((rng.bits() >> 12) + 0.5) / (1 << 52)


def draw_gap_s(rng: Rng, per_s: float) -> float:
    """Return the seconds between two arrivals of a Poisson process: exponential, with mean 1 / `per_s`."""
    return -math.log(draw_uniform(rng)) / per_s


class LogNormal(NamedTuple):
    """A positive quantity with a normal logarithm; with sigma 0, always the median."""

    median: float
    sigma: float

    @classmethod
    def of_mean(cls, mean: float, sigma: float) -> LogNormal:
        """Return the distribution with this mean: mean = median x exp(sigma^2 / 2)."""
        return cls(mean * math.exp(-sigma * sigma / 2), sigma)

    @classmethod
    def of_p99(cls, median: float, p99: float) -> LogNormal:
        """Return the distribution with this 99th percentile: p99 = median x exp(2.326 sigma)."""
        return cls(median, math.log(p99 / median) / NORMAL.inv_cdf(0.99))  # 2.326, of the standard normal distribution

    def times(self, factor: float) -> LogNormal:
        """Return the distribution of `factor` times this quantity."""
        return LogNormal(self.median * factor, self.sigma)

    def draw(self, rng: Rng) -> float:
        return self.median * math.exp(self.sigma * NORMAL.inv_cdf(draw_uniform(rng)))

    def tokens(self, rng: Rng) -> int:
        """Draw a number of tokens, at least 1."""
        return max(1, round(self.draw(rng)))


class Quantiles(NamedTuple):
    """A positive quantity given by points of its distribution; between two points its logarithm is uniform."""

    points: tuple[tuple[float, float], ...]  # (share of draws below, value), from share 0 to share 1

    def times(self, factor: float) -> Quantiles:
        """Return the distribution of `factor` times this quantity."""
        return Quantiles(tuple((share, value * factor) for share, value in self.points))

    def draw(self, rng: Rng) -> float:
        at = draw_uniform(rng)
        above = bisect(self.points, at, key=lambda point: point[0])
        (low, least), (high, most) = self.points[above - 1 : above + 1]
        return least * math.pow(most / least, (at - low) / (high - low))
