"""One metrics page from those of several workers.

Counters and histograms are added up, series by series. Gauges are the leader's, who sees everybody's load, but for what
each process has of its own (`ADDED`). What every worker hears for itself and all hear alike, the event streams, is the
leader's, too: engines did not publish twice. A worker that is gone leaves what it counted, or a counter would fall.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec
from prometheus_client import Metric, generate_latest
from prometheus_client.registry import Collector

ADDED = frozenset(
    {
        "warmroute_in_flight_requests",
        "warmroute_memory_bytes",
        "warmroute_memory_limit_bytes",
        "warmroute_admission_waiting_requests",
        "warmroute_admission_live_sessions",
        "warmroute_admission_context_tokens",
        "warmroute_admission_capacity_tokens",
        "process_resident_memory_bytes",
        "process_virtual_memory_bytes",
        "process_open_fds",
    }
)
HEARD_BY_ALL = "warmroute_stream_"
COUNTING = frozenset({"counter", "histogram"})


class MetricSample(NamedTuple):
    name: str
    labels: dict[str, str]
    value: float


class MetricFamily(NamedTuple):
    """A metric with its samples, as it can be told."""

    name: str
    kind: str
    meaning: str
    samples: list[MetricSample]


_decode = msgspec.msgpack.Decoder(list[MetricFamily]).decode


def told(page: Collector) -> bytes:
    """What of a worker's page is to be added to the others'."""
    families = [
        MetricFamily(m.name, m.type, m.documentation, [MetricSample(s.name, s.labels, s.value) for s in m.samples])
        for m in page.collect()
        if m.samples and _is_added(m)
    ]
    return msgspec.msgpack.encode(families)


def read(payload: bytes) -> list[MetricFamily]:
    """The inverse of `told`."""
    return _decode(payload)


def lasting(families: Iterable[MetricFamily]) -> list[MetricFamily]:
    """What stays of a worker that is gone."""
    return [family for family in families if family.kind in COUNTING]


def written(leader: Collector, others: Iterable[Iterable[MetricFamily]]) -> bytes:
    """The page of them all, as Prometheus reads it. Takes tens of milliseconds with hundreds of targets."""
    return generate_latest(MergedMetrics(leader, others))


def added(told: Iterable[Iterable[MetricFamily]]) -> list[MetricFamily]:
    """Several workers' families as one's."""
    return [
        MetricFamily(m.name, m.type, m.documentation, [MetricSample(s.name, s.labels, s.value) for s in m.samples])
        for m in MergedMetrics(None, told).collect()
    ]


class MergedMetrics(Collector):
    def __init__(self, leader: Collector | None, others: Iterable[Iterable[MetricFamily]]) -> None:
        self._leader = leader
        self._others = others

    def collect(self) -> Iterator[Metric]:
        found = {} if self._leader is None else {metric.name: metric for metric in self._leader.collect()}
        sums = {name: _Sums(metric) for name, metric in found.items() if _is_added(metric)}
        for families in self._others:
            for family in families:
                if family.name not in found:
                    found[family.name] = Metric(family.name, family.meaning, family.kind)
                    sums[family.name] = _Sums(found[family.name])
                sums[family.name].add(family.samples)
        for metric in found.values():
            if metric.name in sums:
                metric.samples = []
                sums[metric.name].fill(metric)
            yield metric


class _Sums:
    """Values by series, in the order of their coming."""

    def __init__(self, metric: Metric) -> None:
        self._values: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
        self.add(MetricSample(s.name, s.labels, s.value) for s in metric.samples)

    def add(self, samples: Iterable[MetricSample]) -> None:
        for name, labels, value in samples:
            series = name, tuple(labels.items())
            self._values[series] = self._values.get(series, 0.0) + value

    def fill(self, metric: Metric) -> None:
        for (name, labels), value in self._values.items():
            metric.add_sample(name, dict(labels), value)


def _is_added(metric: Metric) -> bool:
    if metric.name.startswith(HEARD_BY_ALL):
        return False
    return metric.type in COUNTING or metric.name in ADDED
