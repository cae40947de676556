"""One series of a histogram (`series.py`)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

WAIT_BOUNDS_S = (0.01, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 60.0, 120.0, 300.0, 600.0)


class Exemplar(NamedTuple):
    """A request that represents a bucket, with the id of its trace."""

    trace_id: str
    value: float
    at_wall_s: float


NO_EXEMPLARS: dict[int, Exemplar] = {}  # never written to


class HistogramBuckets:
    """One series of a histogram: counts per bucket, where the last bound is infinity, and the newest exemplar of
    each bucket.
    """

    __slots__ = ("_bounds", "counts", "exemplars", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0
        self.exemplars: dict[int, Exemplar] = NO_EXEMPLARS

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self._bounds, value)] += 1
        self.total += value

    def exemplify(self, exemplar: Exemplar) -> None:
        """Make an observed value the exemplar of its bucket."""
        if self.exemplars is NO_EXEMPLARS:
            self.exemplars = {}
        self.exemplars[bisect_left(self._bounds, exemplar.value)] = exemplar

    def freeze(self) -> HistogramBuckets:
        copy = HistogramBuckets(self._bounds)
        copy.counts, copy.total = self.counts.copy(), self.total
        copy.exemplars = self.exemplars.copy() if self.exemplars else NO_EXEMPLARS
        return copy
