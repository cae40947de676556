"""One metrics page from the pages of several workers.

Counters and histograms are summed per series. Gauges are taken from the worker on duty, because every worker has
the load of all workers; only gauges that every process has for itself (`SUMMED_GAUGES`) are summed. Counters of what
every worker sees (`SEEN_BY_ALL`: events and restarts of engines) are taken from the worker on duty too: a sum would
count each event once per worker. The counters of a worker that ended stay in the sum, since a counter must not fall.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec
from prometheus_client import Metric
from prometheus_client.core import Exemplar, Sample
from prometheus_client.registry import Collector

from router.telemetry.metrics.exposition import PageForm, render_page

SUMMED_GAUGES = frozenset(
    {
        "warmroute_client_connections",
        "warmroute_in_flight_requests",
        "warmroute_memory_bytes",
        "warmroute_memory_limit_bytes",
        "warmroute_wake_waiting_requests",
        "process_resident_memory_bytes",
        "process_virtual_memory_bytes",
        "process_open_fds",
    }
)
SEEN_BY_ALL = ("warmroute_stream_", "warmroute_engine_restarts")
SUMMED_KINDS = frozenset({"counter", "histogram"})


class SampleExemplar(NamedTuple):
    labels: dict[str, str]
    value: float
    at_wall_s: float


class MetricSample(NamedTuple):
    name: str
    labels: dict[str, str]
    value: float
    exemplar: SampleExemplar | None = None


class MetricFamily(NamedTuple):
    """A metric with its samples, in a form that can be sent to another process."""

    name: str
    kind: str
    meaning: str
    samples: list[MetricSample]

    @classmethod
    def of(cls, metric: Metric) -> MetricFamily:
        samples = [MetricSample(s.name, s.labels, float(s.value), _read_exemplar(s)) for s in metric.samples]
        return cls(metric.name, metric.type, metric.documentation, samples)


decode_families = msgspec.msgpack.Decoder(list[MetricFamily]).decode
"""The inverse of `encode_families`."""


def encode_families(page: Collector, *, whole: bool) -> bytes:
    """Encode a worker's `whole` page, or only the metrics that are summed over all workers."""
    families = [MetricFamily.of(metric) for metric in page.collect()]
    return msgspec.msgpack.encode(families if whole else [one for one in families if one.samples and is_summed(one)])


def select_counters(families: Iterable[MetricFamily]) -> list[MetricFamily]:
    """Return the families that stay in the sum after their worker ended."""
    return [family for family in families if family.kind in SUMMED_KINDS and is_summed(family)]


def is_summed(family: MetricFamily) -> bool:
    """Return whether a metric is summed over all workers."""
    if family.name.startswith(SEEN_BY_ALL):
        return False
    return family.kind in SUMMED_KINDS or family.name in SUMMED_GAUGES


def merge_families(workers: Iterable[Iterable[MetricFamily]]) -> list[MetricFamily]:
    """Sum the families of several workers."""
    return [MetricFamily.of(metric) for metric in MergedMetrics((), workers).collect()]


class MergedMetrics(Collector):
    """The metrics of the worker on duty, plus what `others` add to them."""

    def __init__(self, on_duty: Iterable[MetricFamily], others: Iterable[Iterable[MetricFamily]]) -> None:
        self._on_duty = on_duty
        self._others = others

    def render(self, form: PageForm) -> bytes:
        """Render the page. Takes tens of milliseconds with hundreds of targets."""
        return render_page(self, form)

    def collect(self) -> Iterator[Metric]:
        found: dict[str, Metric] = {}
        sums: dict[str, _SeriesSums] = {}
        for families in (self._on_duty, *self._others):
            for family in families:
                if family.name not in found:
                    found[family.name] = Metric(family.name, family.meaning, family.kind)
                    sums[family.name] = _SeriesSums()
                sums[family.name].add(family.samples)
        for name, metric in found.items():
            sums[name].write_to(metric)
            yield metric


class _SeriesSums:
    """Sums by series, in the order in which the series first appeared, with the newest exemplar of each."""

    def __init__(self) -> None:
        self._values: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
        self._exemplars: dict[tuple[str, tuple[tuple[str, str], ...]], SampleExemplar] = {}

    def add(self, samples: Iterable[MetricSample]) -> None:
        for name, labels, value, exemplar in samples:
            series = name, tuple(labels.items())
            self._values[series] = self._values.get(series, 0.0) + value
            if exemplar is not None:
                known = self._exemplars.get(series, exemplar)
                self._exemplars[series] = max(known, exemplar, key=lambda one: one.at_wall_s)

    def write_to(self, metric: Metric) -> None:
        for (name, labels), value in self._values.items():
            found = self._exemplars.get((name, labels))
            exemplar = None if found is None else Exemplar(*found)
            metric.add_sample(name, dict(labels), value, exemplar=exemplar)


def _read_exemplar(sample: Sample) -> SampleExemplar | None:
    found = sample.exemplar
    return None if found is None else SampleExemplar(dict(found.labels), found.value, float(found.timestamp or 0.0))
