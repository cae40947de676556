"""One metrics page from several."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, Exemplar, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from router.control.workers.metrics_merge import (
    MergedMetrics,
    MetricFamily,
    decode_families,
    encode_families,
    merge_families,
    select_counters,
)
from router.telemetry.metrics.exposition import PageForm, render_page


class Page(Collector):
    """`n` requests were answered here."""

    def __init__(self, n: int, model: str = "m") -> None:
        self.n, self.model = n, model

    def collect(self) -> Iterator[Metric]:
        requests = CounterMetricFamily("warmroute_requests_total", "requests", labels=("model",))
        requests.add_metric((self.model,), self.n)
        waits = HistogramMetricFamily("warmroute_ttft_seconds", "waits", labels=("model",))
        slow = Exemplar({"trace_id": f"trace-{self.n}"}, 0.2, 1000.0 - self.n)
        waits.add_metric((self.model,), [("0.1", self.n - 1), ("+Inf", self.n, slow)], sum_value=self.n / 4)
        events = CounterMetricFamily("warmroute_stream_events_total", "events", labels=("target",))
        events.add_metric(("a/0",), 40 + self.n)
        in_flight = GaugeMetricFamily("warmroute_in_flight_requests", "now", value=self.n)
        load = GaugeMetricFamily("warmroute_target_requests", "load", labels=("target",))
        load.add_metric(("a/0",), 100 * self.n)
        nothing = CounterMetricFamily("warmroute_poison_requests_total", "none yet")
        yield from (requests, waits, events, in_flight, load, nothing)


def of_duty(page: Page) -> list[MetricFamily]:
    """What the worker on duty sends."""
    return decode_families(encode_families(page, whole=True))


def of_other(page: Page) -> list[MetricFamily]:
    """What another worker sends."""
    return decode_families(encode_families(page, whole=False))


def merge(on_duty: Page, *others: Page, form: PageForm = "text") -> str:
    return MergedMetrics(of_duty(on_duty), map(of_other, others)).render(form).decode()


def test_the_page_of_one_worker_alone_is_its_own() -> None:
    assert merge(Page(3)) == render_page(Page(3), "text").decode()
    assert merge(Page(3), form="openmetrics") == render_page(Page(3), "openmetrics").decode()


def test_counters_and_histograms_add_up() -> None:
    page = merge(Page(3), Page(4), Page(5)).splitlines()
    assert 'warmroute_requests_total{model="m"} 12.0' in page
    assert 'warmroute_ttft_seconds_bucket{le="0.1",model="m"} 9.0' in page
    assert 'warmroute_ttft_seconds_count{model="m"} 12.0' in page
    assert 'warmroute_ttft_seconds_sum{model="m"} 3.0' in page
    assert "warmroute_in_flight_requests 12.0" in page


def test_the_newest_exemplar_of_all_workers_stays() -> None:
    pages = Page(3), *map(Page, (4, 2, 5))
    page = merge(*pages, form="openmetrics")
    assert 'warmroute_ttft_seconds_bucket{le="+Inf",model="m"} 14.0 # {trace_id="trace-2"} 0.2 998.0' in page
    assert page.count("trace_id") == 1
    assert "trace_id" not in merge(*pages)


def test_the_load_of_engines_and_their_events_are_as_the_worker_on_duty_knows_them() -> None:
    page = merge(Page(3), Page(4)).splitlines()
    assert 'warmroute_target_requests{target="a/0"} 300.0' in page
    assert 'warmroute_stream_events_total{target="a/0"} 43.0' in page


def test_series_that_the_worker_on_duty_does_not_have_are_there() -> None:
    page = merge(Page(3), Page(4, "other")).splitlines()
    assert 'warmroute_requests_total{model="m"} 3.0' in page
    assert 'warmroute_requests_total{model="other"} 4.0' in page


def test_what_workers_that_have_ended_had_counted_stays_in_the_sum() -> None:
    ended: list[MetricFamily] = []
    for families in (of_duty(Page(4)), of_other(Page(5))):
        ended = merge_families([ended, select_counters(families)])
    page = MergedMetrics(of_duty(Page(3)), [ended]).render("text").decode().splitlines()
    assert 'warmroute_requests_total{model="m"} 12.0' in page
    assert "warmroute_in_flight_requests 3.0" in page
    assert 'warmroute_stream_events_total{target="a/0"} 43.0' in page


def test_without_a_worker_on_duty_there_is_what_others_counted() -> None:
    page = MergedMetrics([], [of_other(Page(4))]).render("text").decode()
    assert 'warmroute_requests_total{model="m"} 4.0' in page.splitlines()
    assert "warmroute_target_requests" not in page
