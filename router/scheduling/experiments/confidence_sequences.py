"""Confidence sequences: intervals that hold at all times simultaneously, however often they are read and whenever
the reader stops.

For values in [0, 1] with mean m, `total` their sum and `count` their number, the beta-binomial mixture (Robbins
1970; Howard, Ramdas, McAuliffe and Sekhon 2021)

    M(m) = integral of p^total (1 - p)^(count - total) dp / (m^total (1 - m)^(count - total))

begins at 1 and is not expected to grow: y -> (p/m)^y ((1-p)/(1-m))^(1-y) is convex, so a value between 0 and 1
moves M(m) no more than a coin of that mean does. By Ville's inequality, M(m) ever reaches 1/alpha with a
probability of at most alpha; the interval consists of the means for which M(m) has not reached it. A quantile is
the point with a known share of values above it, so its interval consists of the points that may have that share
above them (Howard and Ramdas 2022).

The mean must be constant: these intervals describe one arm. Verdicts (`e_process.py`) need no such assumption.
"""

from __future__ import annotations

from collections.abc import Callable
from math import lgamma, log

HALVINGS = 40


def surprise(total: float, count: float, mean: float) -> float:
    """Return log M(mean): how much better a mixture of all coins explains the values than one coin with `mean`,
    which is in (0, 1).
    """
    mixture = lgamma(total + 1) + lgamma(count - total + 1) - lgamma(count + 2)
    return mixture - total * log(mean) - (count - total) * log(1 - mean)


def mean_bounds(total: float, count: int, alpha: float) -> tuple[float, float]:
    """Return the interval of the mean of values in [0, 1]; (0, 1) before the first value."""
    if count == 0:
        return 0.0, 1.0
    return _reach(lambda mean: surprise(total, count, mean), total / count, alpha)


def share_bounds(share: float, count: int, alpha: float) -> tuple[float, float]:
    """Return the interval of the observed mean of `count` values whose true mean is `share` (in (0, 1)). If the
    share of observations above a point is in this interval, the point may be the quantile with the true `share`
    above it.
    """
    if count == 0:
        return 0.0, 1.0
    return _reach(lambda observed: surprise(observed * count, count, share), share, alpha)


def _reach(surprise_at: Callable[[float], float], middle: float, alpha: float) -> tuple[float, float]:
    """Return the interval around `middle` in which the surprise, a logarithm, stays below log(1/alpha)."""
    bar = -log(alpha)
    return _edge(surprise_at, middle, 0.0, bar), _edge(surprise_at, middle, 1.0, bar)


def _edge(surprise_at: Callable[[float], float], inside: float, outside: float, bar: float) -> float:
    """Return the edge of the interval by bisection; the remaining error makes the interval wider."""
    for _ in range(HALVINGS):
        middle = (inside + outside) / 2
        if middle in (0.0, 1.0):  # as close to the end as floats allow
            break
        if surprise_at(middle) < bar:
            inside = middle
        else:
            outside = middle
    return outside
