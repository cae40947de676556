"""One metrics page from several."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, Exemplar, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from router.control.workers import metrics_merge


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


def lines(leader: Page, *others: Page) -> list[str]:
    told = [metrics_merge.decode_families(metrics_merge.encode_families(page)) for page in others]
    return [
        line for line in metrics_merge.render_merged(leader, told).decode().splitlines() if not line.startswith("#")
    ]


def test_a_page_alone_is_itself() -> None:
    from prometheus_client import generate_latest

    assert metrics_merge.render_merged(Page(3), []) == generate_latest(Page(3))


def test_counters_and_histograms_add_up() -> None:
    page = lines(Page(3), Page(4), Page(5))
    assert 'warmroute_requests_total{model="m"} 12.0' in page
    assert 'warmroute_ttft_seconds_bucket{le="0.1",model="m"} 9.0' in page
    assert 'warmroute_ttft_seconds_count{model="m"} 12.0' in page
    assert 'warmroute_ttft_seconds_sum{model="m"} 3.0' in page
    assert "warmroute_in_flight_requests 12.0" in page


def test_the_newest_exemplar_of_all_workers_stays() -> None:
    told = [metrics_merge.decode_families(metrics_merge.encode_families(Page(n))) for n in (4, 2, 5)]
    page = metrics_merge.render_merged(Page(3), told, "openmetrics").decode()
    assert 'warmroute_ttft_seconds_bucket{le="+Inf",model="m"} 14.0 # {trace_id="trace-2"} 0.2 998.0' in page
    assert page.count("trace_id") == 1
    assert "trace_id" not in metrics_merge.render_merged(Page(3), told).decode()


def test_the_leader_knows_the_load_of_all_and_events_are_heard_by_all() -> None:
    page = lines(Page(3), Page(4))
    assert 'warmroute_target_requests{target="a/0"} 300.0' in page
    assert 'warmroute_stream_events_total{target="a/0"} 43.0' in page


def test_series_that_the_leader_does_not_have_are_there() -> None:
    page = lines(Page(3), Page(4, "other"))
    assert 'warmroute_requests_total{model="m"} 3.0' in page
    assert 'warmroute_requests_total{model="other"} 4.0' in page


def test_of_who_is_gone_what_was_counted_stays() -> None:
    gone = metrics_merge.select_counters(metrics_merge.decode_families(metrics_merge.encode_families(Page(4))))
    kept = metrics_merge.merge_families([metrics_merge.merge_families([[], gone]), gone])
    page = metrics_merge.render_merged(Page(3), [kept]).decode().splitlines()
    assert 'warmroute_requests_total{model="m"} 11.0' in page
    assert "warmroute_in_flight_requests 3.0" in page
