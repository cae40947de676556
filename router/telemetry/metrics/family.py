"""Builds the metrics of state that is read at a scrape."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

Samples = Iterable[tuple[Sequence[str], float | None]]
"""Label values and the metric's value; a value of None gives no sample."""


def build_family(name: str, meaning: str, labels: Sequence[str], samples: Samples) -> Metric:
    """Return `warmroute_NAME` with the help text `meaning`: a counter if its name ends with `_total`, else a
    gauge.
    """
    kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
    family = kind(f"warmroute_{name}", meaning, labels=labels)
    for values, value in samples:
        if value is not None:
            family.add_metric(values, value)
    return family


def by_label(values: Mapping[str, float | None]) -> Samples:
    """Return the samples of a metric with one label."""
    return (((label,), value) for label, value in values.items())


def one_of(states: Sequence[str], current: Iterable[tuple[Sequence[str], str]]) -> Samples:
    """Return 1 for the current state of each thing and 0 for the other states, so that alerts can use any of
    them.
    """
    return (((*labels, state), state == now) for labels, now in current for state in states)
