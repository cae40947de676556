"""Counters and histograms as plain tables from label values to numbers.

Why not `prometheus_client.Counter` and `Histogram`: they lock each number and search buckets one by one, and a finished
request touches twenty of them (15 us; these cost a third). Only the event loop's thread counts, so nothing needs a
lock; a scrape takes a frozen copy (`freeze`), which another thread may then render.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple, Self

from prometheus_client import core
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric


class Counter(dict[tuple[str, ...], float]):
    """A counter with labels: `counts["/v1/score", "2xx"] += 1`."""

    def __init__(self, name: str, meaning: str, *labels: str) -> None:
        super().__init__()
        self.name, self.meaning, self.labels = name, meaning, labels

    def __missing__(self, labels: tuple[str, ...]) -> float:
        return 0.0

    def freeze(self) -> Self:
        copy = type(self)(self.name, self.meaning, *self.labels)
        copy.update(self)
        return copy

    def family(self) -> Metric:
        family = CounterMetricFamily(self.name, self.meaning, labels=self.labels)
        for labels, value in self.items():
            family.add_metric(labels, value)
        return family


class Exemplar(NamedTuple):
    """A request that stands for a bucket: it has a trace."""

    trace_id: str
    value: float
    at_wall_s: float


class HistogramBuckets:
    """One series of a histogram: counts per bucket, the last bound being infinity, and the newest exemplar of each."""

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
        """Make a value that was observed the exemplar of its bucket."""
        if self.exemplars is NO_EXEMPLARS:
            self.exemplars = {}
        self.exemplars[bisect_left(self._bounds, exemplar.value)] = exemplar

    def freeze(self) -> HistogramBuckets:
        copy = HistogramBuckets(self._bounds)
        copy.counts, copy.total = self.counts.copy(), self.total
        copy.exemplars = self.exemplars.copy() if self.exemplars else NO_EXEMPLARS
        return copy


class Histogram(dict[tuple[str, ...], HistogramBuckets]):
    """A histogram with labels: `added[("match",)].observe(0.002)`."""

    def __init__(self, name: str, meaning: str, bounds: Sequence[float], *labels: str) -> None:
        super().__init__()
        self.name, self.meaning, self.bounds, self.labels = name, meaning, bounds, labels

    def __missing__(self, labels: tuple[str, ...]) -> HistogramBuckets:
        buckets = self[labels] = HistogramBuckets(self.bounds)
        return buckets

    def freeze(self) -> Self:
        copy = type(self)(self.name, self.meaning, self.bounds, *self.labels)
        copy.update((labels, buckets.freeze()) for labels, buckets in self.items())
        return copy

    def family(self) -> Metric:
        family = HistogramMetricFamily(self.name, self.meaning, labels=self.labels)
        edges = [*(str(bound) for bound in self.bounds), "+Inf"]
        for labels, buckets in self.items():
            if not any(buckets.counts):
                continue  # created in advance, nothing observed yet
            counts = list(accumulate(buckets.counts))
            values: list[tuple[str, float] | tuple[str, float, core.Exemplar]] = list(zip(edges, counts, strict=True))
            for i, exemplar in buckets.exemplars.items():
                values[i] = edges[i], counts[i], _to_client(exemplar)
            family.add_metric(labels, values, sum_value=buckets.total)
        return family


NO_EXEMPLARS: dict[int, Exemplar] = {}  # never written to


def _to_client(exemplar: Exemplar) -> core.Exemplar:
    return core.Exemplar({"trace_id": exemplar.trace_id}, exemplar.value, exemplar.at_wall_s)
